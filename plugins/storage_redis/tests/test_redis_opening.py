"""C5, and what a store says of its servers when it opens: errors without secrets, warnings where pages will be lost."""

import logging
import socket
import subprocess
import sys
import traceback

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.redis_servers import RedisServer, make_certificates, redis_command, valkey_command
from kvcache_conformance.server_process import LOOPBACK, free_port, started
from kvcache_conformance.storage_numbered import numbered_key
from kvcache_core.cli import main
from kvcache_core.contracts.storage import StorageScope
from kvcache_core.errors import StorageError
from kvcache_storage_redis import opening, scanning
from kvcache_storage_redis.config import RedisOptions
from kvcache_storage_redis.errors import PagesError, ServerError, one_line
from kvcache_storage_redis.facts import ServerFacts, parse_info
from kvcache_storage_redis.opening import make

KEYS = [numbered_key(number) for number in range(5)]
SECRET = "hunter2"


@pytest.fixture
def locked(tmp_path):
    """A server with the password SECRET, and a user `pages` who may do what the README says."""
    with started(lambda: RedisServer(valkey_command(), tmp_path / "locked", password=SECRET)) as server:
        yield server


def refused(**options) -> str:
    """The error of opening, from which nobody learns a secret."""
    with pytest.raises(StorageError) as caught:
        make(RedisOptions.model_validate(options), StorageScope("model", 16))
    assert caught.value.path[:2] == ("hicache", "storage")
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


def test_a_closed_port_says_what_to_look_at():
    port = free_port()
    text = refused(host=LOOPBACK, port=port)
    assert f"cannot use {LOOPBACK}:{port}: ConnectionError" in text
    assert "check 'host' and 'port'" in text


def test_a_name_that_nobody_has_says_so():
    assert "no-such-host.invalid:6379: ConnectionError" in refused(host="no-such-host.invalid")


@pytest.mark.parametrize(
    "login",
    [
        {"password": f"{SECRET}?"},
        {"username": "nobody", "password": SECRET},
        {},
        {"url": True},
    ],
    ids=["wrong", "unknown user", "missing", "wrong in url"],
)
def test_a_wrong_password_says_so_and_does_not_show_it(locked, login):
    if "url" in login:
        text = refused(url=f"redis://default:{SECRET}%3F@{LOOPBACK}:{locked.port}")
    else:
        text = refused(host=LOOPBACK, port=locked.port, **login)
    assert "check 'username' and 'password'" in text


def test_a_password_that_nobody_asks_for_says_so(valkey):
    assert "check 'username' and 'password'" in refused(host=LOOPBACK, port=valkey.port, password=SECRET)


def test_a_password_comes_from_a_file(locked, stores, tmp_path):
    file = tmp_path / "password"
    for written in (f"{SECRET}\n", f"{SECRET}\r\nmore", f"\ufeff{SECRET}"):
        file.write_text(written, encoding="utf-8", newline="")
        stores.open(locked, password_file=str(file)).set(KEYS[:1], [b"page"])
    for text, said in ((None, "No such file"), ("", "has no password in its first line"), ("\n", "has no password")):
        file.unlink()
        if text is not None:
            file.write_text(text)
        assert said in refused(host=LOOPBACK, port=locked.port, password_file=str(file))
        file.write_text("x")
    file.write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in refused(host=LOOPBACK, port=locked.port, password_file=str(file))


def test_a_user_needs_no_more_than_the_readme_says(locked, stores):
    commands = (
        "+set +get +getex +exists +unlink +scan +strlen +object|idletime +info +config|get +client|no-touch +client|setinfo"
    )
    locked.ask("ACL", "SETUSER", "pages", "on", f">{SECRET}pages", f"~{stores.prefix}:*", *commands.split())
    login = {"username": "pages", "password": f"{SECRET}pages"}
    for ttl_seconds in (None, 100):
        storage = stores.open(locked, ttl_seconds=ttl_seconds, **login)
        storage.set(KEYS[:2], [b"a", b"b"])
        assert storage.exists(KEYS[:3]) == [True, True, False]
        assert storage.get(KEYS[:3]) == [b"a", b"b", None]
        assert sorted(page.key for page in storage.scan()) == sorted(KEYS[:2])
        storage.delete(KEYS[:1])
    assert stores.look(locked, **login).get(KEYS[:2]) == [None, b"b"]
    with pytest.raises(PagesError, match="NoPermissionError"):
        stores.open(locked, key_prefix="others", **login).set(KEYS[:1], [b"a"])


@pytest.mark.parametrize("forbidden", ["scan", "strlen", "exists", "object|idletime"])
def test_pages_that_may_not_be_listed_are_an_error_and_no_empty_store(locked, stores, forbidden):
    locked.ask("ACL", "SETUSER", "blind", "on", f">{SECRET}blind", "~*", "+@all", f"-{forbidden}")
    storage = stores.open(locked, username="blind", password=f"{SECRET}blind")
    storage.set(KEYS[:1], [b"page"])
    with pytest.raises(ServerError, match=f"{LOOPBACK}:{locked.port}: NoPermissionError: .*{forbidden}") as caught:
        list(storage.scan())
    assert "access control list" in caught.value.advice


def test_a_secret_at_the_end_of_what_is_shown_is_not_cut_but_covered():
    text = one_line(OSError(295 * "x" + SECRET), [SECRET])
    assert SECRET[:3] not in text
    assert text.startswith(f"OSError: {295 * 'x'}*****")


@pytest.fixture
def six(tmp_path):
    """A server on an IPv6 address."""
    try:
        with socket.socket(socket.AF_INET6) as found:
            found.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    with started(lambda: RedisServer(valkey_command(), tmp_path / "six", ["--bind", "127.0.0.1", "::1"])) as server:
        yield server


@pytest.mark.parametrize("form", ["host", "brackets", "url"])
def test_a_server_with_an_ipv6_address(six, stores, form):
    place = {"host": "::1"} if form == "host" else {"host": "[::1]"}
    options = {"url": f"redis://[::1]:{six.port}", "host": "localhost", "port": 6379} if form == "url" else place
    storage = stores.open(six, **options)
    storage.set(KEYS[:1], [b"page"])
    assert storage.get(KEYS[:2]) == [b"page", None]
    assert str(storage.facts[0].address) == f"[::1]:{six.port}"


def test_a_server_that_tells_nothing_is_used_and_said_to(locked, stores, caplog):
    locked.ask("ACL", "SETUSER", "mute", "on", f">{SECRET}mute", "~*", "+set", "+get")
    storage = stores.open(locked, username="mute", password=f"{SECRET}mute")
    storage.set(KEYS[:1], [b"page"])
    assert storage.get(KEYS[:1]) == [b"page"]
    (facts,) = storage.facts
    assert (facts.evicts, facts.survives_restart) == (None, None)
    assert "does not tell how it evicts and persists (NoPermissionError" in caplog.text
    assert SECRET not in caplog.text


def test_a_server_that_hangs_fails_the_start_in_time(own_valkey):
    own_valkey.pause()
    text = refused(host=LOOPBACK, port=own_valkey.port, socket_timeout=0.2)
    assert "TimeoutError" in text
    assert "it does not answer" in text
    own_valkey.resume()


def test_tls_and_no_tls_do_not_meet(valkey, tmp_path):
    assert "speak" in refused(url=f"rediss://{LOOPBACK}:{valkey.port}", socket_timeout=0.3)
    certificates = make_certificates(tmp_path / "certificates")
    with started(lambda: RedisServer(redis_command(), tmp_path / "tls", certificates=certificates)) as server:
        assert "speaks TLS" in refused(host=LOOPBACK, port=server.port, socket_timeout=0.3)
        untrusted = refused(host=LOOPBACK, port=server.port, tls=True)
        assert "certificate verify failed" in untrusted
        assert "tls_ca_file" in untrusted
        missing = refused(host=LOOPBACK, port=server.port, tls=True, tls_ca_file=str(tmp_path / "missing.pem"))
        assert "No such file" in missing


ON_A_TERMINAL = """
import pty, sys
sys.exit(pty.spawn([sys.executable, "-c", sys.argv[1], *sys.argv[2:]]))
"""
OPENING = """
import sys
from kvcache_core.contracts.storage import StorageScope
from kvcache_core.errors import StorageError
from kvcache_storage_redis.config import RedisOptions
from kvcache_storage_redis.opening import make

_, port, certificate, key = sys.argv
options = RedisOptions(host="127.0.0.1", port=int(port), tls=True, tls_cert_file=certificate, tls_key_file=key)
try:
    make(options, StorageScope("model", 16))
except StorageError as error:
    print(error)
"""


def test_an_encrypted_key_is_an_error_and_no_question_on_the_terminal(valkey, tmp_path):
    made = make_certificates(tmp_path / "certificates")
    encrypted = tmp_path / "encrypted.pem"
    command = ["openssl", "pkey", "-in", str(made.key), "-aes128", "-passout", f"pass:{SECRET}", "-out", str(encrypted)]
    subprocess.run(command, check=True, capture_output=True)
    words = [sys.executable, "-c", ON_A_TERMINAL, OPENING, str(valkey.port), str(made.certificate), str(encrypted)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert "pass phrase" not in done.stdout
    assert "[SSL] PEM lib" in done.stdout
    assert "check 'tls', 'tls_ca_file' and the other tls options" in done.stdout


def test_a_certificate_that_is_not_checked_is_a_warning(tmp_path, stores, caplog):
    certificates = make_certificates(tmp_path / "certificates")
    with started(lambda: RedisServer(redis_command(), tmp_path / "tls", certificates=certificates)) as server:
        storage = stores.open(server, tls=True, tls_verify=False)
        storage.set(KEYS[:1], [b"page"])
        assert "tls_verify is false" in caplog.text
        named = stores.open(server, tls=True, tls_ca_file=str(certificates.authority))
        assert named.get(KEYS[:1]) == [b"page"]


def test_one_server_and_a_cluster_are_not_taken_for_each_other(valkey, cluster):
    assert "set cluster: true" in refused(host=LOOPBACK, port=cluster[0].port)
    assert "leave out 'cluster'" in refused(host=LOOPBACK, port=valkey.port, cluster=True)


def test_a_node_without_a_cluster_says_so(tmp_path):
    options = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
    with started(lambda: RedisServer(valkey_command(), tmp_path / "node", options)) as server:
        assert "its cluster has no slots" in refused(host=LOOPBACK, port=server.port, cluster=True)


def test_further_nodes_are_asked_when_the_first_is_gone(cluster, stores):
    nodes = [f"{LOOPBACK}:{free_port()}", f"{LOOPBACK}:{cluster[2].port}"]
    storage = stores.open(cluster[0], port=free_port(), cluster=True, nodes=nodes)
    storage.set(KEYS, [b"page"] * 5)
    assert storage.get(KEYS) == [b"page"] * 5


def test_a_replica_is_for_looking_only(own_valkey, tmp_path, stores):
    stores.open(own_valkey).set(KEYS[:1], [b"page"])
    own_valkey.ask("CONFIG", "SET", "repl-diskless-sync-delay", 0)
    options = ["--replicaof", LOOPBACK, str(own_valkey.port)]
    with started(lambda: RedisServer(valkey_command(), tmp_path / "replica", options)) as replica:
        assert "it is a replica" in refused(host=LOOPBACK, port=replica.port)
        while stores.look(replica).get(KEYS[:1]) != [b"page"]:
            pass  # it copies what there is first


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ({}, {}, "has no maxmemory"),
        ({"maxmemory": "64mb"}, {}, "evicts nothing"),
        ({"maxmemory": "64mb", "maxmemory-policy": "volatile-lru"}, {}, "evicts only keys with a time to live (volatile-lru)"),
        ({"maxmemory": "64mb", "maxmemory-policy": "volatile-lru"}, {"ttl_seconds": 60}, None),
        ({"maxmemory": "64mb", "maxmemory-policy": "allkeys-lru"}, {}, None),
        ({"maxmemory": "64mb", "maxmemory-policy": "allkeys-lfu"}, {}, None),
    ],
)
def test_how_a_server_evicts_is_reported(own_valkey, stores, caplog, settings, options, said):
    caplog.set_level(logging.INFO)
    for name, value in settings.items():
        own_valkey.ask("CONFIG", "SET", name, value)
    storage = stores.open(own_valkey, **options)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [said in warning for warning in warnings] == ([] if said is None else [True])
    policy = settings.get("maxmemory-policy", "noeviction")
    assert f"maxmemory-policy {policy}; pages are lost when it restarts" in caplog.text
    (facts,) = storage.facts
    assert facts.policy == policy
    assert facts.evicts is (policy != "noeviction")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--appendonly", "yes"], "pages are kept over restarts (append-only file)"),
        (["--save", "3600 1"], "pages are kept over restarts (snapshots)"),
        (["--save", "3600 1", "--appendonly", "yes"], "pages are kept over restarts (append-only file and snapshots)"),
    ],
)
def test_how_a_server_persists_is_reported(tmp_path, stores, caplog, options, said):
    caplog.set_level(logging.INFO)
    with started(lambda: RedisServer(valkey_command(), tmp_path / "persisting", options)) as server:
        (facts,) = stores.open(server).facts
    assert facts.survives_restart is True
    assert said in caplog.text


def test_what_is_kept_over_a_restart_is_found_by_the_same_store(tmp_path, stores):
    with started(lambda: RedisServer(valkey_command(), tmp_path / "kept", ["--appendonly", "yes"])) as server:
        storage = stores.open(server)
        storage.set(KEYS, [key.encode() for key in KEYS])
        server.end()
        with pytest.raises(PagesError):
            storage.get(KEYS)
        server.start()
        assert storage.get(KEYS) == [key.encode() for key in KEYS]


def test_what_is_not_told_is_unknown():
    facts = ServerFacts(("host", 1), maxmemory=None, policy=None, append_only=False, snapshots=None)  # type: ignore[arg-type]
    assert (facts.evicts, facts.survives_restart) == (None, None)
    assert "maxmemory unknown; maxmemory-policy unknown; pages are unknown whether kept over restarts" in str(facts)
    assert parse_info(b"# Server\r\nredis_version:7.0\r\n\r\na:b:c\r\n") == {"redis_version": "7.0", "a": "b:c"}


def test_the_command_points_at_the_file_and_shows_no_secret(locked, tmp_path, capsys):
    file = tmp_path / "cache.yaml"
    options = {"kind": "redis", "host": LOOPBACK, "port": locked.port, "password": f"{SECRET}?"}
    file.write_text("hicache:\n  storage:\n" + "".join(f"    {name}: {value}\n" for name, value in options.items()))
    assert main(["storage", "check", str(file)]) == 1
    out, err = capsys.readouterr()
    assert "cache.yaml:3:5: hicache.storage: " in out + err
    assert "check 'username' and 'password'" in out + err
    assert SECRET not in out + err
    file.write_text(file.read_text().replace("?", ""))
    assert main(["storage", "check", str(file)]) == 0
    assert "storage 'redis' works" in capsys.readouterr().out


class TestOpeningFaults(PlantedFaultTests):
    faults = (
        Fault(
            "a node of a cluster is taken for a server",
            test_one_server_and_a_cluster_are_not_taken_for_each_other,
            Replacement(opening, "_checked_facts", "facts.cluster and not options.cluster", "False"),
        ),
        Fault(
            "a replica is taken for a server",
            test_a_replica_is_for_looking_only,
            Replacement(opening, "_checked_facts", "facts.replica and not read_only", "False"),
        ),
        Fault(
            "pages that may not be listed are none",
            lambda locked, stores: test_pages_that_may_not_be_listed_are_an_error_and_no_empty_store(locked, stores, "strlen"),
            Replacement(scanning, "_described", "isinstance(reply, NoPermissionError)", "False"),
        ),
    )
