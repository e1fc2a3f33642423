"""The server hangs, is killed, comes back and fills up while a store is open; stores are closed under calls; a process forks."""

import http.client
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kvcache_conformance.s3_servers import ACCESS_KEY, S3Server
from kvcache_conformance.storage_bench import content, expect_exists, expect_get, expect_pages, new_keys
from kvcache_conformance.storage_outages import LONG, check_fork_is_refused, every_call, until
from kvcache_conformance.storage_processes import StorageOpener
from kvcache_core.contracts.storage import StorageScope

SCOPE = StorageScope(model_id="model", page_size=16)
SHORT = 1.0


def test_a_server_that_hangs_is_an_error_in_time_and_is_found_again(own_store):
    storage, keys = own_store.open(timeout=SHORT, retries=0), new_keys(2)
    storage.set(keys[:1], [content(1000)])
    own_store.server.pause()
    for call in every_call(storage, keys, scans=True):
        with pytest.raises(TimeoutError):
            call()
    own_store.server.resume()
    # What was late may have been done, but nothing in parts.
    until(lambda: storage.get(keys[:1])[0] in (None, content(1000), b"value"))
    # Not under the same keys: a write that was given up may come after this one. A page's value follows from its key, so that the
    # same write twice does no harm; here it would be another value.
    keys = new_keys(2)
    until(lambda: storage.set(keys, [content(10), content(20)]) is None)
    expect_pages(storage, keys, [content(10), content(20)])


def test_a_server_that_is_killed_is_no_empty_store_and_comes_back_with_its_pages(own_store):
    storage, keys = own_store.open(retries=0), new_keys(3)
    values = [content(size) for size in (0, 1000, 300_000)]
    storage.set(keys, values)
    own_store.server.kill()
    for call in every_call(storage, keys, scans=True):
        with pytest.raises(OSError, match=r"cannot connect|error sending request|answer"):
            call()
    own_store.server.start()
    until(lambda: storage.get(keys) == values)
    expect_pages(storage, keys, values)
    storage.set(keys[:1], [content(5)])
    expect_pages(own_store.open(), keys, [content(5), *values[1:]])


def test_a_server_that_is_full_refuses_new_pages_and_gives_the_old_ones(small_store):
    storage = small_store.open(retries=0)
    stored: dict[str, bytes] = {}

    def fill():
        for number, key in enumerate(new_keys(1000)):
            storage.set([key], [content(2**18, number)])
            stored[key] = content(2**18, number)

    with pytest.raises(OSError, match=r"500|Internal|full|space|volume") as caught:
        fill()
    assert type(caught.value) is OSError
    assert len(stored) >= 4
    expect_pages(storage, [*stored], [*stored.values()])
    storage.delete([*stored])
    expect_exists(storage, [*stored], [False] * len(stored))


class Gate(ThreadingHTTPServer):
    """Passes requests on to a server, and keeps those for certain names until it is closed."""

    daemon_threads = True

    def __init__(self, server: S3Server) -> None:
        super().__init__(("127.0.0.1", 0), PassOn)
        self.behind = server.endpoint.removeprefix("http://")
        self.kept: set[str] = set()
        self.opened = threading.Event()


class PassOn(BaseHTTPRequestHandler):
    """The signature is over headers that are passed on as they are."""

    protocol_version = "HTTP/1.1"
    server: Gate

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if any(name in self.path for name in self.server.kept):
            self.server.opened.wait(LONG)
            self.close_connection = True
            return
        behind = http.client.HTTPConnection(self.server.behind)
        behind.request(self.command, self.path, body, dict(self.headers))
        answer = behind.getresponse()
        content = answer.read()
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", answer.getheader("Content-Length") or str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        behind.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def gate(server):
    with Gate(server) as gate:
        thread = threading.Thread(target=gate.serve_forever)
        thread.start()
        try:
            yield gate
        finally:
            gate.opened.set()
            gate.shutdown()
            thread.join()


def test_pages_that_come_in_time_are_used(store, caplog):
    """The rest of the batch is absent, and said once; where nothing comes at all it is an error."""
    with gate(store.server) as between:
        storage = store.open(endpoint=f"http://127.0.0.1:{between.server_port}", timeout=SHORT, retries=0)
        keys = new_keys(4)
        storage.set(keys[:3], [content(size) for size in (10, 20, 30)])
        between.kept = {keys[1]}
        for _ in range(2):
            expect_get(storage, keys, [content(10), None, content(30), None])
            expect_exists(storage, keys, [True, False, True, False])
        assert caplog.text.count("count as absent") == 1
        for call in (storage.get, storage.exists):
            with pytest.raises(TimeoutError):
                call([keys[1], keys[3]])
        with pytest.raises(TimeoutError) as caught:
            storage.set(keys, [content(1)] * 4)
        assert "1 of 4" in caught.value.__notes__[0]
        between.kept = set()
        expect_get(storage, [keys[0], *keys[2:]], [content(1)] * 3)


def test_closing_ends_the_calls_that_hang(own_store):
    storage, keys = own_store.open(timeout=LONG), new_keys(2)
    own_store.server.pause()
    raised = []

    def ask():
        try:
            storage.get(keys)
        except ValueError as error:
            raised.append(str(error))

    callers = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
    for caller in callers:
        caller.start()
    ends = time.monotonic() + LONG
    while len(storage._fan_out._batches) < 3:
        assert time.monotonic() < ends, f"{len(storage._fan_out._batches)} of 3 calls are under way"
        time.sleep(0.001)
    storage.close()
    for caller in callers:
        caller.join(LONG)
    assert raised == ["this storage is closed"] * 3
    own_store.server.resume()


def test_a_request_that_begins_while_it_closes_is_no_failure_of_the_server(store, monkeypatch):
    storage, keys = store.open(workers=1, timeout=LONG), new_keys(1)
    storage.set(keys, [content(10)])
    closing, begun, answers = storage._fan_out.close, threading.Event(), []

    def begin(name):
        begun.wait(LONG)
        return storage._read(name)

    def ask():
        answers.extend(storage._find(keys, begin).values())

    def close_later(patience):
        begun.set()
        caller.join(LONG)
        closing(patience)

    caller = threading.Thread(target=ask)
    caller.start()
    until(lambda: storage._fan_out._batches)
    monkeypatch.setattr(storage._fan_out, "close", close_later)
    storage.close()
    assert answers == [content(10)]


def test_a_closed_store_says_so(store):
    storage, keys = store.open(), new_keys(1)
    for _ in range(2):
        storage.close()
    for call in every_call(storage, keys, scans=True):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert not any(thread.is_alive() for thread in storage._fan_out._threads)


def test_the_child_of_a_fork_is_told_and_the_parent_goes_on(store):
    check_fork_is_refused(StorageOpener("object", store.options(), SCOPE))


def test_no_secret_shows_in_errors_of_calls(own_store):
    server = own_store.server
    storage = own_store.open(timeout=SHORT, retries=0)
    shown = [repr(storage)]
    server.kill()
    for call in every_call(storage, new_keys(2), scans=True):
        with pytest.raises(OSError, match=r".") as caught:
            call()
        error: BaseException | None = caught.value
        while error is not None:
            shown.append(f"{error!r} {error} {getattr(error, '__notes__', '')}")
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert not [text for text in shown if ACCESS_KEY[1] in text]
