"""The pages of a batch, each a request of its own, on threads that all batches share, and a deadline for the whole batch.

Daemon threads: a request that hangs must not keep the interpreter from ending. What is late is nobody's any more. It does not
know what the work is.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, final

T = TypeVar("T")
R = TypeVar("R")


class Answers(NamedTuple, Generic[R]):
    """By the number of the item: what came of it, or why nothing did. Every item is in exactly one of the two."""

    results: dict[int, R]
    errors: dict[int, Exception]

    @property
    def first_error(self) -> Exception:
        """There has to be one."""
        return self.errors[min(self.errors)]


@final
class _Batch(Generic[T, R]):
    def __init__(self, items: Sequence[T], work: Callable[[T], R]) -> None:
        self._items = items
        self._work = work
        self.size = len(items)
        self._left = set(range(len(items)))
        self._answers = Answers[R]({}, {})
        self._changed = threading.Condition(threading.Lock())
        self._over = False

    def do(self, number: int) -> None:
        """One item, unless it is too late for it."""
        if self._over:
            return
        try:
            result = self._work(self._items[number])
        except Exception as error:
            self._end_one(number, self._answers.errors, error)
        except BaseException as error:  # a panic inside a client library is none of the usual kinds; its thread is needed again
            self._end_one(number, self._answers.errors, RuntimeError(f"{type(error).__name__}: {error}"))
        else:
            self._end_one(number, self._answers.results, result)

    def wait(self, seconds: float) -> Answers[R]:
        """Until all have ended or nobody waits any more. What is missing then is a TimeoutError."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or not self._left, seconds)
            self._over = True
            self._answers.errors.update({number: TimeoutError(f"no answer within {seconds:g} s") for number in self._left})
            return self._answers

    def give_up(self) -> None:
        """What is missing is missing for ever."""
        with self._changed:
            self._over = True
            self._answers.errors.update({number: ValueError("this storage is closed") for number in self._left})
            self._left.clear()
            self._changed.notify_all()

    def _end_one(self, number: int, answers: dict[int, Any], answer: object) -> None:
        with self._changed:
            if self._over:
                return
            answers[number] = answer
            self._left.discard(number)
            if not self._left:
                self._changed.notify_all()


@final
class FanOut:
    """`workers` threads at most, started when they are first needed. Thread safe."""

    def __init__(self, workers: int, timeout: float) -> None:
        """`timeout`: seconds for one batch; that it waited for a thread counts."""
        self._workers = workers
        self._timeout = timeout
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._jobs: queue.SimpleQueue[tuple[_Batch[Any, Any], int] | None] = queue.SimpleQueue()
        self._batches: set[_Batch[Any, Any]] = set()
        self._closed = False

    def run(self, items: Sequence[T], work: Callable[[T], R]) -> Answers[R]:
        """`work` for each item, side by side. Raises ValueError when it is closed."""
        batch = _Batch(items, work)
        with self._lock:
            if self._closed:
                raise ValueError("this storage is closed")
            self._batches.add(batch)
            wanted = min(self._workers, sum(one.size for one in self._batches))
            while len(self._threads) < wanted:
                thread = threading.Thread(target=self._serve, name=f"kvcache-object-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        for number in range(batch.size):
            self._jobs.put((batch, number))
        try:
            return batch.wait(self._timeout)
        finally:
            with self._lock:
                self._batches.discard(batch)

    def close(self, patience: float) -> None:
        """Calls that wait get what has come; threads are waited for `patience` seconds at most. Idempotent."""
        with self._lock:
            self._closed = True
            batches, threads = [*self._batches], [*self._threads]
        for batch in batches:
            batch.give_up()
        for _ in threads:
            self._jobs.put(None)
        until = time.monotonic() + patience
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            batch, number = job
            batch.do(number)
            del job, batch  # they hold the values of their batch, and the next one may be long in coming
