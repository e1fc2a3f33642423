"""Keys: the same for the same page in every process, and another as soon as anything that decides its bytes is another."""

import hashlib
import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_unified_hicache.storage import page_keys
from kvcache_unified_hicache.storage.framing import frame
from kvcache_unified_hicache.storage.page_keys import PageKeys

MODEL = ModelSpec("org/model", "rev-1", "full_attention")
TOKENS = np.arange(8, dtype="<i4").tobytes()


def keys_of(model=MODEL, page_size=4, extra_key=(), tokens=TOKENS, component=("full", b"pool")):
    keys = PageKeys(model, page_size)
    return page_keys.storage_keys(keys.chain(keys.root(extra_key), tokens), page_keys.component_identity(*component))


def test_a_key_is_64_hex_digits_and_nothing_from_outside():
    """K6: whatever a model id or an extra key holds, it cannot become a path."""
    for name in ("../../etc", "/etc/passwd", "a\0b", "C:\\x", "\ud800", "", "x" * 10_000):
        model = replace(MODEL, model_id=name, model_version=name)
        for key in keys_of(model, extra_key=(b"../..", b"/"), component=(name, b"../..")):
            assert re.fullmatch(r"[0-9a-f]{64}", key)


# Every field that says what a page's bytes are. The change is small on purpose: sizes and joined texts often stay equal.
CHANGES = {
    "model id": {"model": replace(MODEL, model_id="org/model2")},
    "model version": {"model": replace(MODEL, model_version="rev-2")},
    "id and version joined": {"model": ModelSpec("org/modelrev", "-1", "full_attention")},
    "page size": {"page_size": 2},
    "extra key": {"extra_key": (b"lora-a",)},
    "an empty extra key": {"extra_key": (b"",)},
    "tokens": {"tokens": np.array([0, 1, 2, 3, 4, 5, 6, 8], "<i4").tobytes()},
    "an earlier token": {"tokens": np.array([1, 1, 2, 3, 4, 5, 6, 7], "<i4").tobytes()},
    "component": {"component": ("swa", b"pool")},
    "pool: dtype, layout, layers, shard": {"component": ("full", b"pooI")},
    "component and pool joined": {"component": ("fullpool", b"")},
    "process shard": {"component": ("full", b"pool", (1, 2))},
    "count of process shards": {"component": ("full", b"pool", (0, 2))},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_each_field_alone_gives_another_key(change):
    """K1, K3, K5: the last page, whose key depends on everything before it."""
    assert keys_of(**change)[-1] != keys_of()[-1]
    assert set(keys_of(**change)).isdisjoint(keys_of()) or "tokens" in change


def test_digest_0_has_every_field_of_the_identity():
    """Also the page size, of which the lengths of what is hashed would tell as well: the formula should not depend on that."""
    models = [MODEL, replace(MODEL, model_id="m"), replace(MODEL, model_version="v")]
    roots = [PageKeys(model, size).root(extra_key) for model in models for size in (1, 4) for extra_key in ((), (b"a",))]
    assert len(set(roots)) == len(roots)


def test_all_changed_keys_differ_from_each_other():
    """So that no two of them could meet: a LoRA is not another's salt."""
    changed = [keys_of(**change)[-1] for change in CHANGES.values()]
    assert len(set(changed)) == len(changed)


@pytest.mark.parametrize(
    ("a", "b"), [((b"a", b"bc"), (b"ab", b"c")), ((b"x", b""), (b"x",)), ((b"lora", b""), (b"", b"lora")), ((), (b"",))]
)
def test_parts_of_an_extra_key_are_framed(a, b):
    """K2."""
    assert keys_of(extra_key=a) != keys_of(extra_key=b)


@pytest.mark.parametrize("extra_key", ["lora", ("lora",), [b"lora"], None])
def test_an_extra_key_of_another_type_is_refused(extra_key):
    with pytest.raises(TypeError):
        PageKeys(MODEL, 4).root(extra_key)


@given(st.lists(st.integers(0, 2**31 - 1), max_size=24), st.data(), st.integers(1, 5))
def test_how_tokens_are_cut_into_calls_does_not_matter(ids, data, page_size):
    """K4: the last page of the whole, and every page on the way."""
    keys = PageKeys(MODEL, page_size)
    pages = len(ids) // page_size
    tokens = np.array(ids[: pages * page_size], "<i4").tobytes()
    whole = keys.chain(keys.root(()), tokens)
    assert len(whole) == 32 * pages
    digest, pieces, start = keys.root(()), b"", 0
    while start < pages:
        end = data.draw(st.integers(start + 1, pages))
        piece = keys.chain(digest, memoryview(tokens)[start * page_size * 4 : end * page_size * 4])
        pieces, digest, start = pieces + piece, piece[-32:], end
    assert pieces == whole


def test_a_page_has_one_key_after_every_prefix():
    """The same tokens after other tokens are another page."""
    keys = PageKeys(MODEL, 2)
    one, other = (keys.chain(keys.root(()), np.array(ids, "<i4").tobytes()) for ids in ([1, 2, 9, 9], [3, 4, 9, 9]))
    assert one[32:] != other[32:]


def test_part_of_a_page_is_refused():
    keys = PageKeys(MODEL, 4)
    with pytest.raises(ValueError, match="pages of 16"):
        keys.chain(keys.root(()), TOKENS[:-4])
    with pytest.raises(ValueError, match="digest"):
        keys.chain(b"short", TOKENS)


def test_keys_are_those_of_the_format_page():
    """The formula of docs/page_format.md, written out once more, and a value that no version of this schema may change."""
    parts = (b"kvcache page key 1", b"org/model", b"rev-1", b"4", frame(b"lora", b"salt"))
    digest = hashlib.sha256(frame(*parts)).digest()
    expected = []
    for start in (0, 16):
        digest = hashlib.sha256(digest + TOKENS[start : start + 16]).digest()
        expected.append(hashlib.sha256(digest + frame(b"full", b"pool", b"0", b"1")).hexdigest())
    assert keys_of(extra_key=(b"lora", b"salt")) == expected
    assert expected[1] == "77e1df0b1f188e3ac51cad7ba8bb2557995eed0196486fc0135b89bca0a77cb2"


SCRIPT = """
import numpy as np
from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_unified_hicache.storage.page_keys import PageKeys, component_identity, storage_keys
keys = PageKeys(ModelSpec("org/model", "rev-1", "full_attention"), 4)
digests = keys.chain(keys.root(()), np.arange(8, dtype="<i4").tobytes())
print(*storage_keys(digests, component_identity("full", b"pool")))
"""


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_another_process_has_the_same_keys(seed):
    """K4: under every PYTHONHASHSEED."""
    environment = os.environ | {"PYTHONHASHSEED": seed}
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, check=True, capture_output=True, text=True, timeout=120)
    assert run.stdout.split() == keys_of()


def every_field_counts():
    for change in CHANGES.values():
        test_each_field_alone_gives_another_key(change)


def extra_keys_are_framed():
    test_parts_of_an_extra_key_are_framed((b"a", b"bc"), (b"ab", b"c"))


class TestFaultsOfKeys(PlantedFaultTests):
    faults = (
        Fault(
            "extra key left out",
            every_field_counts,
            Replacement(PageKeys, "root", "frame(*self._identity, frame(*check_extra_key(extra_key)))", "frame(*self._identity)"),
        ),
        Fault(
            "extra key joined",
            extra_keys_are_framed,
            Replacement(PageKeys, "root", "frame(*check_extra_key(extra_key))", 'b"".join(extra_key)'),
        ),
        Fault(
            "extra key of any type",
            lambda: test_an_extra_key_of_another_type_is_refused([b"lora"]),
            Replacement(PageKeys, "root", "check_extra_key(extra_key)", "extra_key"),
        ),
        Fault(
            "model version left out",
            every_field_counts,
            Replacement(PageKeys, "__init__", "_text(model.model_version), ", ""),
        ),
        Fault(
            "page size left out",
            test_digest_0_has_every_field_of_the_identity,
            Replacement(PageKeys, "__init__", 'str(page_size).encode("ascii")', 'b""'),
        ),
        Fault(
            "identity joined",
            every_field_counts,
            Replacement(page_keys, "component_identity", "return frame(", "return (lambda *parts: b''.join(parts))("),
        ),
        Fault(
            "pages without their prefix",
            test_a_page_has_one_key_after_every_prefix,
            Replacement(PageKeys, "chain", "sha.update(digest + data", "sha.update(parent + data"),
        ),
        Fault(
            "component left out",
            every_field_counts,
            Replacement(
                page_keys,
                "storage_keys",
                "digests[start : start + DIGEST_BYTES] + identity",
                "digests[start : start + DIGEST_BYTES]",
            ),
        ),
        Fault(
            "hash of the process",
            lambda: test_another_process_has_the_same_keys("1"),
            Replacement(PageKeys, "root", "frame(*self._identity,", "frame(str(hash('salt')).encode(), *self._identity,"),
        ),
        Fault(
            "names in keys",
            test_a_key_is_64_hex_digits_and_nothing_from_outside,
            Replacement(
                page_keys, "storage_keys", "keys.append(sha.hexdigest())", "keys.append(identity.decode('latin-1')[-8:])"
            ),
        ),
    )
