"""A state machine that drives one store against a plain dictionary, and counts the situations it reached.

Batches with keys that repeat and that are absent, values of every size and kind, overwrites, several threads, and, where the
backend declares it, closing and opening again and a second opener. After every step every key is compared. Idea: zarr's store
machine (zarr/testing/stateful.py). It knows the contract and the kit, no backend.
"""

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.errors import Flaky, HypothesisException, StopTest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcache_conformance.prefix_cache_machine import drive
from kvcache_conformance.storage_bench import SCOPE, StorageBench, content, expect_pages, in_threads
from kvcache_conformance.storage_buffers import inverse, read_into
from kvcache_conformance.storage_kit import StorageKit
from kvcache_core.contracts.storage import Value

EVENTS = (
    "set",
    "set twice in one batch",
    "overwritten by a longer value",
    "overwritten by a shorter value",
    "empty value",
    "big value",
    "buffer",
    "view",
    "empty batch",
    "page found",
    "page missed",
    "asked twice in one batch",
    "deleted",
    "absent page deleted",
    "threads with keys of their own",
    "threads over one key",
)
"""What every run reaches; "opened again", "second opener" and "damaged" too, where the backend can and the kit gives access."""

_KEYS = [f"{number:064x}" for number in range(9)]
_SIZES = (0, 1, 7, 300, 4096, 70_000)
_which = st.integers(0, len(_KEYS) - 1)
_some = st.lists(_which, max_size=6)
_page = st.tuples(_which, st.sampled_from(_SIZES), st.integers(0, 3), st.sampled_from(["bytes", "buffer", "view"]))
Page = tuple[int, int, int, str]


class StorageMachine(RuleBasedStateMachine):
    """One store, one opener at first. `events` is shared by all runs of a test."""

    def __init__(self, kit: StorageKit, events: Counter[str], found: list[BaseException], folder: Path) -> None:
        """`found` takes what ended each run: where that differs from run to run, hypothesis only says that it did."""
        super().__init__()
        self.kit = kit
        self.events = events
        self.found = found
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        self.bench = StorageBench(kit, self.folder)
        self.storage = self.bench.open()
        self.raw = kit.raw(self.bench.place, SCOPE)
        self.model: dict[str, bytes] = {}
        if self.storage.exists(_KEYS) != [False] * len(_KEYS):  # a store that places share, such as a server's
            self.storage.delete(_KEYS)

    def teardown(self) -> None:
        error = sys.exception()  # of a rule or of the check after it, on its way to hypothesis, which has errors of its own there
        if error is not None and not isinstance(error, HypothesisException | StopTest):
            self.found.append(error)
        try:
            self.storage.delete(_KEYS)
            self.bench.__exit__(None, None, None)
        except BaseException as late:
            self.found.append(late)
            raise
        finally:
            shutil.rmtree(self.folder)

    @invariant()
    def every_key_has_its_value(self) -> None:
        expect_pages(self.storage, _KEYS, [self.model.get(key) for key in _KEYS])

    @rule(batch=st.lists(_page, max_size=6))
    def set(self, batch: list[Page]) -> None:
        keys = [_KEYS[which] for which, *_ in batch]
        self.storage.set(keys, [self._value(page) for page in batch])
        self._remember(batch)
        self.events["set twice in one batch"] += len(set_of(keys)) < len(keys)
        self.events["empty batch"] += not batch

    @precondition(lambda self: self.model)
    @rule(which=_which, size=st.sampled_from(_SIZES), salt=st.integers(0, 3))
    def overwrite(self, which: int, size: int, salt: int) -> None:
        key = sorted(self.model)[which % len(self.model)]
        before = len(self.model[key])
        self.events["overwritten by a longer value"] += before < size
        self.events["overwritten by a shorter value"] += before > size
        self.storage.set([key], [content(size, salt)])
        self.model[key] = content(size, salt)

    @rule(some=_some)
    def ask(self, some: list[int]) -> None:
        keys = [_KEYS[which] for which in some]
        expect_pages(self.storage, keys, [self.model.get(key) for key in keys])
        self.events["page found"] += any(key in self.model for key in keys)
        self.events["page missed"] += any(key not in self.model for key in keys)
        self.events["asked twice in one batch"] += len(set_of(keys)) < len(keys)

    @rule(some=_some)
    def delete(self, some: list[int]) -> None:
        keys = [_KEYS[which] for which in some]
        self.storage.delete(keys)
        self.events["absent page deleted"] += any(key not in self.model for key in keys)
        for key in keys:
            self.events["deleted"] += self.model.pop(key, None) is not None

    @rule(batches=st.lists(st.lists(_page, min_size=1, max_size=3), min_size=2, max_size=3), some=_some)
    def threads_with_keys_of_their_own(self, batches: list[list[Page]], some: list[int]) -> None:
        """Each thread sets its share of the keys; one more asks for all of them meanwhile, and answers that have come and gone
        are as good as those to come."""
        n = len(batches)
        shares = [[page for batch in batches for page in batch if page[0] % n == thread] for thread in range(n)]

        def write(share: list[Page]) -> None:
            for page in share:
                self.storage.set([_KEYS[page[0]]], [self._value(page)])

        def read() -> None:
            keys = [_KEYS[which] for which in some]
            answers = self.storage.get(keys)
            assert len(answers) == len(some), f"get gave {len(answers)} answers for {len(some)} keys"
            read_into(self.storage, keys, [bytes(300)] * len(keys))

        in_threads(read, *(partial(write, share) for share in shares))
        for share in shares:
            self._remember(share)
        self.events["threads with keys of their own"] += sum(map(bool, shares)) > 1

    @rule(which=_which, sizes=st.lists(st.sampled_from(_SIZES), min_size=2, max_size=3, unique=True))
    def threads_over_one_key(self, which: int, sizes: list[int]) -> None:
        key = _KEYS[which]
        in_threads(*(partial(self.storage.set, [key], [content(size)]) for size in sizes))
        (found,) = self.storage.get([key])
        assert found in [content(size) for size in sizes], "a key that several threads set has none of their values"
        self.model[key] = found
        self.events["threads over one key"] += 1

    @precondition(lambda self: "persistent" in self.kit.declared())
    @rule()
    def open_again(self) -> None:
        self.bench.close(self.storage)
        self.storage = self.bench.open()
        self.events["opened again"] += bool(self.model)

    @precondition(lambda self: "shared" in self.kit.declared())
    @rule(page=_page, stay=st.booleans())
    def second_opener(self, page: Page, stay: bool) -> None:
        """It sees everything, sets something, and one of the two goes."""
        second = self.bench.open()
        expect_pages(second, _KEYS, [self.model.get(key) for key in _KEYS])
        second.set([_KEYS[page[0]]], [self._value(page)])
        self._remember([page])
        self.every_key_has_its_value()
        if stay:
            self.storage, second = second, self.storage
        self.bench.close(second)
        self.events["second opener"] += 1

    @precondition(lambda self: self.raw is not None and self.model)
    @rule(which=_which, cut=st.integers(0, 50))
    def damage_and_repair(self, which: int, cut: int) -> None:
        assert self.raw is not None
        key = sorted(self.model)[which % len(self.model)]
        good = self.model[key]
        assert self.raw.read(key) == good, "what is stored is not what was set"
        self.raw.write(key, good[:cut] + b"!")
        (found,) = self.storage.get([key])
        assert found in (None, good[:cut] + b"!"), "get gave neither what is stored nor None"
        into = read_into(self.storage, [key], [inverse(good[:cut] + b"!")])
        assert into in (None, [None], [good[:cut] + b"!"]), "get_into gave neither what is stored nor None"
        self.storage.set([key], [good])
        self.events["damaged"] += 1

    def _remember(self, batch: list[Page]) -> None:
        for which, size, salt, kind in batch:
            key = _KEYS[which]
            self.events["set"] += 1
            self.events["empty value"] += size == 0
            self.events["big value"] += size == max(_SIZES)
            self.events[kind] += 1
            self.model[key] = content(size, salt)

    def _value(self, page: Page) -> Value:
        _, size, salt, kind = page
        value = content(size, salt)
        if kind == "buffer":
            return bytearray(value)
        return memoryview(b"<" + value + b">")[1:-1] if kind == "view" else value


def set_of(keys: list[str]) -> frozenset[str]:
    """The rule `set` hides the builtin inside the class."""
    return frozenset(keys)


def expected_events(kit: StorageKit, folder: Path) -> Iterator[str]:
    """The situations that a run on this kit has to reach before its silence means anything. `folder`: for a look at `kit.raw`."""
    yield from EVENTS
    if "persistent" in kit.declared():
        yield "opened again"
    if "shared" in kit.declared():
        yield "second opener"
    if kit.raw(folder, SCOPE) is not None:
        yield "damaged"


def run_storage_machine(
    kit: StorageKit, folder: Path, *, examples: int, steps: int, seed: int, shrink: bool = True
) -> Counter[str]:
    """Run the machine and return how often each situation was reached. The same arguments give the same run
    in a process that has imported the same modules. Its stores are in `folder`, and gone afterwards.

    Raises:
        Exception: the backend broke its contract; with `shrink`, hypothesis prints the shortest way there.
    """
    events: Counter[str] = Counter()
    found: list[BaseException] = []
    try:
        drive(lambda: StorageMachine(kit, events, found, folder), examples=examples, steps=steps, seed=seed, shrink=shrink)
    except Flaky as error:
        first = found[0] if found else error
        raise AssertionError(f"not in every run, so probably with threads: {type(first).__name__}: {first}") from first
    return events
