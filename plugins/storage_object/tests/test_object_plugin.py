"""The backend `object` as a configuration meets it."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from kvcache_core.config.load import load_config
from kvcache_core.registry.default import default_registry
from kvcache_storage_object.address import Address
from kvcache_storage_object.config import ObjectOptions

KEYS = {"access_key_id": "name", "secret_access_key": "s3cr3t-value"}
SECRETS = {
    "secret_access_key": {"url": "s3://bucket", **KEYS},
    "session_token": {"url": "s3://bucket", **KEYS, "session_token": "s3cr3t-value"},
    "account_key": {"url": "az://account/container", "account_key": "s3cr3t-value"},
    "sas_token": {"url": "az://account/container", "sas_token": "s3cr3t-value"},
}


def test_it_is_found_by_its_name_with_its_capabilities():
    descriptor = default_registry().storage("object").descriptor
    assert descriptor.options is ObjectOptions
    assert descriptor.capabilities == {"persistent", "scan", "shared"}


def test_a_url_is_all_it_needs():
    options = ObjectOptions.model_validate({"url": "s3://bucket"})
    given = options.model_dump(exclude={"url"}, exclude_defaults=True)
    assert given == {}
    assert options.secrets == []


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("s3://bucket", Address("s3", "", "bucket", "")),
        ("s3://bucket/", Address("s3", "", "bucket", "")),
        ("s3://my.bucket-1/a/b.c=d", Address("s3", "", "my.bucket-1", "a/b.c=d/")),
        ("gs://my_bucket/kv", Address("gcs", "", "my_bucket", "kv/")),
        ("az://account/container", Address("azure", "account", "container", "")),
        ("az://account/container/a/b/", Address("azure", "account", "container", "a/b/")),
    ],
)
def test_urls(url, address):
    options = ObjectOptions.model_validate({"url": url})
    assert options.address == address
    assert str(address) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "bucket",
        "s3:",
        "s3:///prefix",
        "s3://b",
        "s3://buck et",
        "s3://bucket:80",
        "s3://[::1",
        "file:///folder",
        "https://bucket.s3.amazonaws.com",
        "az://account",
        "az:///container",
        "s3://bucket/a//b",
        "s3://bucket/../up",
        "s3://bucket/a/./b",
        "s3://bucket/a%2Fb",
        "s3://bucket/a b",
        "s3://bucket?region=x",
        "s3://bucket#x",
        "s3://bucket/" + 201 * "x",
    ],
)
def test_wrong_urls_are_errors(url):
    with pytest.raises(ValidationError) as caught:
        ObjectOptions.model_validate({"url": url})
    assert [error["loc"] for error in caught.value.errors()] == [("url",)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoint": "127.0.0.1:8333"},
        {"endpoint": "ftp://host"},
        {"endpoint": "http://"},
        {"endpoint": "http://host:99999"},
        {"endpoint": "http://host?a=b"},
        {"region": ""},
        {"workers": 0},
        {"workers": True},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"timeout": "4"},
        {"connect_timeout": -1.0},
        {"retries": 99},
        {"secret_access_key": ""},
        {"max_bytes": 1},
    ],
)
def test_wrong_options_are_errors(wrong):
    with pytest.raises(ValidationError) as caught:
        ObjectOptions.model_validate({"url": "s3://bucket", **wrong})
    assert caught.value.errors()[0]["loc"] == (next(iter(wrong)),)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"url": "s3://bucket", "access_key_id": "name"}, "give both or none"),
        ({"url": "s3://bucket", "secret_access_key": "s3cr3t-value"}, "give both or none"),
        ({"url": "s3://bucket", "session_token": "s3cr3t-value"}, "belongs to an 'access_key_id'"),
        ({"url": "s3://bucket", "account_key": "s3cr3t-value"}, "is an option for azure"),
        ({"url": "gs://bucket", "virtual_hosted": True}, "is an option for s3"),
        ({"url": "gs://bucket", "endpoint": "http://host"}, "is an option for s3 and azure"),
        ({"url": "az://account/box", "account_key": "s3cr3t-value", "sas_token": "s3cr3t-value"}, "give one of them"),
        ({"url": "s3://bucket", "anonymous": True, **KEYS}, "no credentials are sent"),
    ],
)
def test_options_that_contradict_each_other_are_errors(wrong, said):
    with pytest.raises(ValidationError) as caught:
        ObjectOptions.model_validate(wrong)
    assert said in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("values", SECRETS.values(), ids=SECRETS)
def test_secrets_never_show(values):
    options = ObjectOptions.model_validate(values)
    assert set(options.secrets) == {"s3cr3t-value"}
    for text in (repr(options), str(options), options.model_dump_json(), repr(options.model_dump())):
        assert "s3cr3t" not in text


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("end", ["\n", "\r", " ", "\0", "ü"])
def test_a_secret_with_a_line_break_is_refused_and_not_shown(name, end):
    """As it comes out of many a file; the library cannot send it, and ends its thread."""
    with pytest.raises(ValidationError, match="line break") as caught:
        ObjectOptions.model_validate(SECRETS[name] | {name: f"s3cr3t-value{end}"})
    assert caught.value.errors()[0]["loc"] == (name,)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://name:s3cr3t@bucket/kv", "s3://s3cr3t@bucket", "http://name:s3cr3t@host"])
@pytest.mark.parametrize("option", ["url", "endpoint"])
def test_a_password_in_a_url_is_refused_and_not_repeated(option, url):
    with pytest.raises(ValidationError) as caught:
        ObjectOptions.model_validate({"url": "s3://bucket", option: url})
    assert "name or password" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_a_relative_key_file_belongs_to_the_folder_of_the_configuration(tmp_path):
    file = tmp_path / "cache.yaml"
    for written, meant in (("key.json", str(tmp_path / "key.json")), ("~/key.json", "~/key.json"), ("/key.json", "/key.json")):
        file.write_text(f"hicache:\n  storage: {{kind: object, url: 'gs://bucket', service_account: '{written}'}}\n")
        hicache = load_config(str(file)).config.hicache
        assert hicache is not None
        assert hicache.storage is not None
        assert hicache.storage.options.model_dump()["service_account"] == meant


def test_the_plugin_imports_neither_the_client_nor_jax():
    code = "import sys, kvcache_storage_object.plugin; print([m for m in ('jax', 'obstore') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
