"""The backend `redis` as a configuration meets it: what is right, what is refused, and that no secret is ever shown."""

import json
import subprocess
import sys
import traceback

import pytest
from pydantic import ValidationError

from kvcache_core.cli import main
from kvcache_core.config.load import load_config
from kvcache_core.config.model import CacheConfig
from kvcache_core.errors import InvalidConfigError
from kvcache_core.registry.default import default_registry
from kvcache_storage_redis.config import RedisOptions
from kvcache_storage_redis.url import UrlParts, parse_url, shown_url

SECRET = "hunter2"


def test_it_is_found_by_its_name_with_its_flag_and_capabilities():
    descriptor = default_registry().storage("redis").descriptor
    assert descriptor.options is RedisOptions
    assert descriptor.flags == (("url", "--hicache-storage-url"),)
    assert descriptor.capabilities == {"persistent", "scan", "shared"}


def test_its_defaults():
    assert RedisOptions().model_dump() == {
        "url": None,
        "host": "localhost",
        "port": 6379,
        "db": 0,
        "username": None,
        "password": None,
        "tls": False,
        "password_file": None,
        "tls_ca_file": None,
        "tls_cert_file": None,
        "tls_key_file": None,
        "tls_verify": True,
        "cluster": False,
        "nodes": (),
        "key_prefix": "kvcache",
        "ttl_seconds": None,
        "max_value_bytes": None,
        "pipeline_bytes": 8 << 20,
        "connect_timeout": 1.0,
        "socket_timeout": 2.0,
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": ""},
        {"url": 5},
        {"url": "http://host"},
        {"url": f"redis//user:{SECRET}@host"},
        {"url": f"redis://host:port:{SECRET}"},
        {"url": f"redis://user:{SECRET}%zz@host"},
        {"url": f"redis://user:{SECRET}#x@host"},
        {"url": f"redis://host?password={SECRET}"},
        {"url": f"redis://user:{SECRET}@host/zero"},
        {"url": "redis://host:99999"},
        {"url": "redis://user:**********@host"},
        {"host": ""},
        {"port": 0},
        {"port": "6379"},
        {"db": -1},
        {"password": 12345},
        {"password": ""},
        {"password": "**********"},
        {"tls": "yes"},
        {"nodes": [f"redis://user:{SECRET}@host:1"]},
        {"nodes": ["host"]},
        {"nodes": ["host:0"]},
        {"key_prefix": "a{b}"},
        {"key_prefix": "a*"},
        {"key_prefix": ""},
        {"ttl_seconds": 0},
        {"max_value_bytes": "1GiB"},
        {"pipeline_bytes": None},
        {"connect_timeout": 0},
        {"socket_timeout": float("nan")},
        {"tls_ca_file": "a\0b"},
        {"pasword": SECRET},
    ],
)
def test_wrong_options_are_errors_that_name_them_and_no_secret(wrong):
    with pytest.raises(ValidationError) as caught:
        RedisOptions.model_validate(wrong)
    assert caught.value.errors()[0]["loc"][:1] == (next(iter(wrong)),)
    shown = "".join(traceback.format_exception(caught.value))
    assert not [value for value in wrong.values() if isinstance(value, str) and SECRET in value and value in shown]
    assert SECRET not in shown


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"url": "redis://host", "host": "other"}, "give host there"),
        ({"url": f"redis://:{SECRET}@host", "password": SECRET}, "give password there"),
        ({"url": f"redis://:{SECRET}@host", "password_file": "secret.txt"}, "give the password once"),
        ({"password": SECRET, "password_file": "secret.txt"}, "give the password once"),
        ({"nodes": ["host:1"]}, "set cluster: true"),
        ({"cluster": True, "db": 1}, "the database 0 only"),
        ({"cluster": True, "url": "redis://host/1"}, "the database 0 only"),
        ({"tls_ca_file": "ca.pem"}, "set tls: true"),
        ({"tls_verify": False}, "set tls: true"),
        ({"tls": True, "tls_cert_file": "client.pem"}, "needs its key"),
    ],
)
def test_options_that_contradict_each_other_are_errors(wrong, said):
    with pytest.raises(ValidationError, match=said) as caught:
        RedisOptions.model_validate(wrong)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "parts", "shown"),
    [
        ("redis://host", UrlParts(False, "host", None, None, None, None), "redis://host"),
        ("rediss://host:7000/3", UrlParts(True, "host", 7000, 3, None, None), "rediss://host:7000/3"),
        ("redis://:p%40w%25@host", UrlParts(False, "host", None, None, None, "p@w%"), "redis://:**********@host"),
        ("redis://me:pw@[::1]:1", UrlParts(False, "::1", 1, None, "me", "pw"), "redis://me:**********@[::1]:1"),
        ("redis://me@host", UrlParts(False, "host", None, None, "me", None), "redis://me@host"),
    ],
)
def test_urls_are_read_and_shown_without_their_passwords(url, parts, shown):
    assert parse_url(url) == parts
    assert shown_url(url) == shown
    assert shown in repr(RedisOptions(url=url))


def test_what_is_resolved_and_has_no_secret_is_right_again():
    for options in ({"url": "redis://host:1/2"}, {"host": "host", "nodes": ["a:1", "b:2"], "cluster": True}):
        dumped = RedisOptions.model_validate(options).model_dump(mode="json")
        assert RedisOptions.model_validate(dumped) == RedisOptions.model_validate(options)


@pytest.fixture
def file(tmp_path):
    """Writes a configuration with these lines below `storage:`; gives its path as text."""

    def write(*lines: str) -> str:
        path = tmp_path / "cache.yaml"
        path.write_text("hicache:\n  storage:\n" + "".join(f"    {line}\n" for line in lines))
        return str(path)

    return write


@pytest.mark.parametrize("options", [("password: hunter2",), ("url: 'redis://me:hunter2@host'",)])
@pytest.mark.parametrize("command", ["validate", "explain", "show", "resolve"])
@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_no_command_shows_a_secret(file, capsys, options, command, json_flag):
    assert main(["config", command, file("kind: redis", *options), *json_flag]) == 0
    out, err = capsys.readouterr()
    assert SECRET not in out + err
    assert command not in ("show", "resolve") or "**********" in out


@pytest.mark.parametrize(
    "lines",
    [
        ("kind: redis", "password: {a: hunter2}"),
        ("kind: redis", "password: [hunter2]"),
        ("kind: redis", "pasword: hunter2"),
        ("kind: redis", "password: hunter2", "password: hunter2"),
        ("kind: redis", "password: @hunter2"),
        ("kind: redis", "password: !hunter2 x"),
        ("kind: redis", "password: *hunter2"),
        ("kind: redis", "password: 0o17hunter2", "port: 0"),
        ("kind: redis", "password: 'hunter2"),
        ("kind: redis", "url: redis//me:hunter2@host"),
        ("kind: redis", "ulr: redis://me:hunter2@host"),
        ("kind: redis", "url: redis://me:hunter2"),
        ("kind: redis", "url: redis://:hunter2/x"),
        ("kind: redis", "url: 'redis://me:x hunter2/#@host:1'"),
        ("kind: redis", "url: redis:/me:hunter2"),
        ("kind: redis", '"url": "redis//me:hunter2@host"'),
        ("kind: redis", "url: [redis://me:hunter2@host]"),
        ("{kind: redis, prt: 1, password: hunter2}",),
        ("{kind: redis, password: hunter2, port: 0}",),
        ("redis://me:hunter2@host",),
        ("kind: redis://me:hunter2@host",),
        ("kind: nosuch", "password: hunter2"),
        ("- kind: redis", "  password: hunter2"),
        ("kind: redis", "host: {password: hunter2}"),
        ("kind: redis", "nodes: [{password: hunter2}]"),
        ("kind: redis", "nodes: ['redis://me:hunter2']"),
    ],
)
@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_no_error_shows_a_secret(file, capsys, lines, json_flag):
    assert main(["config", "validate", file(*lines), *json_flag]) == 2
    out, err = capsys.readouterr()
    assert "cache.yaml" in out + err
    assert SECRET not in out + err


@pytest.mark.parametrize(
    "flags",
    [
        ["--hicache-storage-url", "redis//me:hunter2@host"],
        ["--hicache-storage-url", "redis://me:hunter2"],
        ["--set", "hicache.storage.password={hunter2"],
        ["--set", "hicache.storage.password=[hunter2]"],
        ["--set", "hicache.storage.url=redis://me:hunter2@host", "--set", "hicache.storage.url.host=x"],
    ],
)
def test_no_error_of_a_flag_shows_a_secret(capsys, flags):
    assert main(["config", "validate", "--hicache-storage", "redis", *flags]) == 2
    out, err = capsys.readouterr()
    assert "--" in err
    assert SECRET not in out + err


def test_no_error_in_plain_python_shows_a_secret():
    for options in ({"password": SECRET, "port": 0}, {"pasword": SECRET}, {"password": [SECRET]}, {"url": f"x://{SECRET}@h"}):
        with pytest.raises(ValidationError) as caught:
            CacheConfig.model_validate({"hicache": {"storage": {"kind": "redis", **options}}})
        shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.errors()) + caught.value.json()
        assert SECRET not in shown


def test_a_loaded_secret_is_whole_and_its_repr_is_not(file):
    loaded = load_config(file("kind: redis", "username: me", "password: hunter2"))
    assert SECRET not in repr(loaded) + repr(loaded.config) + str(loaded.config) + loaded.config.model_dump_json()
    assert loaded.config.hicache is not None
    assert loaded.config.hicache.storage is not None
    options = loaded.config.hicache.storage.options
    assert isinstance(options, RedisOptions)
    assert options.password is not None
    assert options.password.get_secret_value() == SECRET


def test_what_stands_for_a_secret_is_not_taken_for_one(file, capsys):
    """What `config resolve` prints has stars in place of the password, and says so when it is used."""
    assert main(["config", "resolve", file("kind: redis", "password: hunter2")]) == 0
    resolved = capsys.readouterr().out
    path = file("kind: redis")
    with open(path, "w", encoding="utf-8") as written:  # noqa: PTH123 - the fixture gives text
        written.write(resolved)
    with pytest.raises(InvalidConfigError, match="the stars stand for a secret"):
        load_config(path)


def test_files_are_relative_to_the_configuration(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path.parent)
    lines = [
        "kind: redis",
        "tls: true",
        "password_file: keys/pw",
        "tls_ca_file: ~/ca.pem",
        "tls_cert_file: /c",
        "tls_key_file: ../k",
    ]
    assert main(["config", "validate", file(*lines)]) == 0
    hicache = load_config(file(*lines)).config.hicache
    assert hicache is not None
    assert hicache.storage is not None
    found = hicache.storage.options.model_dump()
    assert found["password_file"] == str(tmp_path / "keys" / "pw")
    assert (found["tls_ca_file"], found["tls_cert_file"]) == ("~/ca.pem", "/c")
    assert found["tls_key_file"] == str(tmp_path.parent / "k")


def test_the_schema_says_what_is_secret(capsys):
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)["$defs"]["storage_redis"]["properties"]
    assert "password" in json.dumps(schema["password"]["anyOf"])
    assert schema["key_prefix"]["default"] == "kvcache"


def test_importing_it_imports_no_client_and_no_jax():
    code = "import sys, kvcache_storage_redis.plugin; print([name for name in ('jax', 'redis') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
