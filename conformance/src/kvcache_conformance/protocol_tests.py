"""Directed tests of whole requests under the scheduler protocol of CONTRACT 2: what is kept, handed over, computed twice.

FAULTS L4, L5, L7, L8. Every page that a request reads is compared by content before each of its chunks.
"""

import numpy as np

from kvcache_conformance.cache_kit import PAGE, CacheKit, tokens
from kvcache_conformance.checked_cache import CheckedCache
from kvcache_conformance.request_model import RequestModel
from kvcache_core.contracts.tokens import ExtraKey


def _start(world: CheckedCache, prompt: list[int], extra_key: ExtraKey = ()) -> RequestModel:
    request = RequestModel(world, prompt, extra_key)
    assert request.admit()
    return request


def _run(request: RequestModel, chunk: int = PAGE, answer: int = 0) -> None:
    """Prefill in chunks, then decode `answer` tokens; not finished."""
    while request.to_compute:
        assert request.compute(chunk)
        request.chunk_done()
        request.world.verify()
    for token in range(answer):
        request.append(token)
        assert request.compute(1)


def _prompt(length: int, first: int = 1) -> list[int]:
    return tokens(length, first).tolist()


class ProtocolTests(CacheKit):
    def test_a_second_request_takes_what_the_first_computed(self) -> None:
        for page in (1, 2, 16, 64, 256):
            for length in (1, page - 1, page, page + 1, 2 * page - 1, 2 * page, 3 * page + 1):
                if length < 1:
                    continue
                world = self.world(page)
                for turn in range(2):
                    request = _start(world, _prompt(length))
                    assert request.hits == (self.kept(length - 1, page) if turn else 0)
                    _run(request, chunk=max(1, page - 1))
                    request.finish()
                    world.verify()
                self.drain(world)

    def test_the_next_turn_of_a_conversation_takes_prompt_and_answer(self) -> None:
        world = self.world(total=24)
        prompt = _prompt(2 * PAGE + 1)
        for turn in range(3):
            request = _start(world, prompt)
            assert request.hits == (self.kept(len(prompt) - 3) if turn else 0)
            _run(request, answer=PAGE + 2)
            request.finish()
            world.verify()
            prompt = [*request.tokens, 90, 91, 92]
        self.drain(world)

    def test_what_ends_inside_a_page_is_found_up_to_the_page_before(self) -> None:
        """CONTRACT T2: a window and a state of the last page boundary are kept until the next one is reached."""
        for length in range(3 * PAGE, 5 * PAGE):
            for chunk in (length, PAGE + 1):
                world = self.world(total=24)
                first = _start(world, _prompt(length))
                _run(first, chunk)
                first.finish()
                second = _start(world, [*_prompt(length), 900])
                assert second.hits == self.kept(length), f"{length} tokens in chunks of {chunk}"
                second.abort()
                self.drain(world)

    def test_two_requests_compute_the_same_prefix_at_the_same_time(self) -> None:
        """The second's pages are freed only after its page table points at the cached ones, and it goes on reading right ones."""
        world = self.world(total=24)
        prompt = _prompt(4 * PAGE + 2)
        first, second = _start(world, prompt), _start(world, [*prompt[: 3 * PAGE], 900, 901, 902, 903, 904])
        for request in (first, second) * 3:
            request.compute(2 * PAGE)
            request.chunk_done()
            world.verify()
            # Whatever was freed is overwritten at once.
            for name in world.host.geometries:
                spare = world.alloc(name, 1)
                if spare is not None:
                    world.write(name, int(spare[0]), (b"somebody else",), b"")
                    world.free(name, spare)
        if self.reuses_prefixes:
            assert second.duplicates > 0, "the second request offered nothing that the first had offered before"
        for request in (second, first):
            request.append(1)
            assert request.compute(1)
            request.finish()
            world.verify()
        self.drain(world)

    def test_a_duplicate_found_only_at_the_end_is_freed(self) -> None:
        world = self.world(total=24)
        requests = [_start(world, _prompt(3 * PAGE)) for _ in range(3)]
        for request in requests:
            assert request.compute(3 * PAGE)
        for request in requests:
            request.finish()
            world.verify()
        self.drain(world)

    def test_a_request_can_be_aborted_in_every_state(self) -> None:
        world = self.world(total=24)
        prompt = _prompt(3 * PAGE + 2)
        RequestModel(world, prompt).abort()
        self.store(world, tokens(PAGE))
        for chunks in range(5):
            request = _start(world, prompt, (b"aborted", bytes([chunks])) if chunks % 2 else ())
            for _ in range(chunks):
                assert request.compute(PAGE)
                request.chunk_done()
            request.abort()
            world.verify()
        request = _start(world, prompt)
        _run(request, answer=2)
        request.abort()
        assert not any(world.request_owned.values()), "an aborted request left pages behind"
        self.drain(world)

    def test_a_preempted_request_goes_on_from_what_it_left(self) -> None:
        world = self.world(total=24)
        request = _start(world, _prompt(3 * PAGE + 1))
        _run(request, answer=PAGE + 1)
        for _ in range(2):
            request.finish()
            self.store(world, tokens(PAGE, 500))
            world.verify()
            assert request.admit()
            assert request.computed == self.kept(len(request.tokens) - 1)
            _run(request, answer=2)
        request.finish()
        self.drain(world)

    def test_a_running_request_is_not_touched_by_what_others_do(self) -> None:
        world = self.world(total=16)
        running = _start(world, _prompt(2 * PAGE + 1))
        _run(running)
        for first in range(100, 1000, 100):
            other = RequestModel(world, [*_prompt(PAGE), *_prompt(3 * PAGE, first)])
            if other.admit():
                while other.to_compute and other.compute(PAGE):
                    other.chunk_done()
                other.finish()
            world.verify()
            for name, allocator in world.host.allocators.items():
                world.evict(name, allocator.total)
            running.append(first)
            assert running.compute(1)
            world.verify()
        running.finish()
        self.drain(world)

    def test_nothing_grows_over_many_requests(self) -> None:
        random = np.random.default_rng(0)
        world = self.world(page_size=2, total=24)
        known: list[list[int]] = [[1]]
        for _ in range(200):
            base = known[random.integers(len(known))]
            more: list[int] = random.integers(0, 3, random.integers(1, 12)).tolist()
            prompt = [*base[: random.integers(len(base) + 1)], *more][:16]
            request = RequestModel(world, prompt, ((), (b"salt",))[random.integers(2)])
            fate = random.integers(4)
            admitted = request.admit()
            while admitted and request.to_compute and request.compute(3):
                request.chunk_done()
                if fate == 0:
                    break
            if fate < 2:
                request.abort()
            elif admitted:
                request.finish()
                known = [*known[-20:], prompt]
            world.verify()
        assert not any(world.request_owned.values())
        self.drain(world)
