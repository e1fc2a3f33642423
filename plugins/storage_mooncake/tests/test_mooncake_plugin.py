"""The backend `mooncake` as a configuration meets it."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from kvcache_core.registry.default import default_registry
from kvcache_storage_mooncake.config import MooncakeOptions


def test_it_is_found_by_its_name_with_its_capabilities():
    descriptor = default_registry().storage("mooncake").descriptor
    assert descriptor.options is MooncakeOptions
    assert descriptor.capabilities == {"shared"}


def test_a_master_is_all_it_needs():
    options = MooncakeOptions.model_validate({"master": "store-1.example:50051"})
    assert options.address == ("store-1.example", 50051)
    assert options.model_dump(exclude={"master"}, exclude_defaults=True) == {}
    assert MooncakeOptions.model_validate({"master": "h:1", "segment_bytes": "4GiB"}).segment_bytes == 2**32


@pytest.mark.parametrize(
    "wrong",
    [
        {"master": ""},
        {"master": "host"},
        {"master": "host:0"},
        {"master": "host:65536"},
        {"master": "http://host:1"},
        {"master": "user@host:1"},
        {"hostname": ""},
        {"metadata": ""},
        {"segment_bytes": -1},
        {"buffer_bytes": 1000},
        {"buffer_bytes": "64 megs"},
        {"key_prefix": "a b"},
        {"timeout": 0},
        {"connect_timeout": float("inf")},
        {"protocol": "rdma"},
    ],
)
def test_wrong_options_are_errors(wrong):
    with pytest.raises(ValidationError) as caught:
        MooncakeOptions.model_validate({"master": "host:1"} | wrong)
    assert caught.value.errors()[0]["loc"] == (next(iter(wrong)),)


def test_what_is_imported_before_a_store_is_opened_is_not_the_library():
    """It starts threads and takes over signals."""
    code = "import sys, kvcache_storage_mooncake.opening; print([m for m in ('jax', 'mooncake') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
