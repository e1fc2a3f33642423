"""What would be a miss for every page is an error at the start, in time, with no secret in it (FAULTS C5)."""

import json
import logging
import socket
from dataclasses import replace

import obstore
import pytest

from kvcache_conformance.s3_servers import ACCESS_KEY, READER_KEY
from kvcache_conformance.storage_bench import content, expect_pages, new_keys
from kvcache_core.cli import main
from kvcache_core.contracts.storage import StorageScope
from kvcache_core.errors import StorageError
from kvcache_storage_object import opening
from kvcache_storage_object.config import ObjectOptions

SCOPE = StorageScope(model_id="model", page_size=16)
LOOKING = replace(SCOPE, read_only=True)
SECRET = "wr0ng-s3cr3t"


def refusal(store, scope=SCOPE, **changes) -> str:
    """The text of the error at the start, which shows no secret, nor do the errors behind it."""
    with pytest.raises(StorageError) as caught:
        store.open(scope, **changes)
    assert caught.value.path == ("hicache", "storage")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    text = str(caught.value)
    assert "\n" not in text
    for secret in (SECRET, ACCESS_KEY[1]):
        assert secret not in text
    return text


def test_wrong_credentials(store):
    text = refusal(store, secret_access_key=SECRET)
    assert "SignatureDoesNotMatch" in text
    assert "check the credentials" in text
    assert "InvalidAccessKeyId" in refusal(store, access_key_id="nobody", secret_access_key=SECRET)


def test_credentials_that_may_not_write(store):
    name, secret = READER_KEY
    assert "AccessDenied" in refusal(store, access_key_id=name, secret_access_key=secret)
    store.open()
    looking = store.open(LOOKING, access_key_id=name, secret_access_key=secret)
    with pytest.raises(OSError, match="read only"):
        looking.set([], [])


def test_credentials_of_the_environment_that_cannot_be_sent(store, monkeypatch):
    """Over them the library panics, which is no Exception, instead of raising an error."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"{ACCESS_KEY[0]}\n")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    text = refusal(store, access_key_id=None, secret_access_key=None)
    assert "PanicException" in text
    assert "no credentials were given" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "az://account/container", "account_key": f"{SECRET}!"}, "check 'url', 'endpoint', 'account_key' and"),
        ({"url": "az://account/container", "sas_token": SECRET}, "check 'url', 'endpoint', 'sas_token' and"),
        ({"url": "gs://bucket", "service_account": "/no/such/key.json"}, "check 'url', 'service_account' and"),
    ],
)
def test_credentials_that_are_none_are_named(options, said):
    with pytest.raises(StorageError) as caught:
        opening.make(ObjectOptions.model_validate(options), SCOPE)
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_missing_bucket(store):
    text = refusal(store, url="s3://no-such-bucket/kv")
    assert "s3://no-such-bucket/kv" in text
    assert "no such bucket" in text


def test_a_closed_port(store):
    with socket.socket() as bound:  # bound and not listening: nobody else gets it meanwhile
        bound.bind(("127.0.0.1", 0))
        text = refusal(store, endpoint=f"http://127.0.0.1:{bound.getsockname()[1]}")
    assert "cannot connect: Connection refused" in text


def test_a_server_that_accepts_and_says_nothing(store):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        text = refusal(store, endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.3)
    assert "no answer within 0.3 s" in text or "did not answer in time" in text


def test_a_prefix_where_nothing_was_stored_is_an_error_for_one_who_looks(store):
    text = refusal(store, LOOKING)
    assert "nothing was ever stored here" in text
    assert store.objects() == []


def test_one_who_looks_changes_nothing(store):
    storage, keys = store.open(), new_keys(2)
    storage.set(keys[:1], [content(100)])
    before = store.objects()
    looking = store.open(LOOKING)
    assert looking.atomic_create is None
    expect_pages(looking, keys, [content(100), None])
    assert [page.key for page in looking.scan()] == keys[:1]
    for change in (lambda: looking.set(keys[1:], [b""]), lambda: looking.delete(keys[:1])):
        with pytest.raises(OSError, match="read only"):
            change()
    assert store.objects() == before


@pytest.mark.parametrize("marker", [b'{"format": 2}', b'{"format": "1"}', b"[]", b"", b"\xff"])
def test_a_store_of_another_format_is_left_alone(store, client, marker):
    name = f"{store.prefix}/.kvcache-store.json"
    obstore.put(client, name, marker)
    for scope in (SCOPE, LOOKING):
        assert "is of format" in refusal(store, scope)
    assert bytes(obstore.get(client, name).bytes()) == marker


def test_a_store_is_marked_once(store):
    first = store.open()
    assert first.atomic_create is True
    (before,) = store.objects()
    assert before["path"] == f"{store.prefix}/.kvcache-store.json"
    assert store.open().atomic_create is True
    assert store.objects() == [before]


def test_a_model_id_that_fits_into_no_name(store):
    assert "model id is too long" in refusal(store, StorageScope(400 * "/", 16))


def test_settings_of_the_environment_that_cannot_work(store, monkeypatch):
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "no-such-way")
    with pytest.raises(StorageError) as caught:
        store.open()
    assert "storage 'object' cannot use" in str(caught.value)


def test_a_server_that_ignores_create_if_absent_is_noticed_and_works(careless_store, caplog):
    with caplog.at_level(logging.WARNING):
        storage = careless_store.open()
    assert storage.atomic_create is False
    assert "overwrites where it was asked to create" in caplog.text
    keys, values = new_keys(4), [content(size) for size in (1, 70_000, 2**20)]
    storage.set(keys[:3], values)
    storage.set(keys[:1], [b"anew"])
    expect_pages(storage, keys, [b"anew", *values[1:], None])
    assert sorted(page.key for page in storage.scan()) == sorted(keys[:3])
    storage.delete(keys)
    expect_pages(storage, keys, [None] * 4)


@pytest.mark.parametrize("command", [["config", "show"], ["config", "resolve"], ["config", "explain"], ["storage", "check"]])
def test_no_command_shows_a_secret(store, tmp_path, capsys, command):
    file = tmp_path / "cache.yaml"
    storage = {"kind": "object", **store.options(secret_access_key=SECRET)}
    # JSON is YAML, too.
    file.write_text(json.dumps({"model_class": "full_attention", "hicache": {"storage": storage}}))
    failed = main([*command, str(file)])
    shown = capsys.readouterr()
    assert bool(failed) == (command == ["storage", "check"])
    assert "object" in shown.out + shown.err
    assert SECRET not in shown.out + shown.err
