"""A backend that does anything, all at once: every request is answered, and nothing wrong is served."""

import random

import pytest

from kvcache_conformance.backend_tricks import flipped


@pytest.mark.parametrize("seed", range(6))
def test_every_request_is_answered_once_and_nothing_wrong_is_served(guarded, room, reads_into, seed):
    """Random requests against a backend that does anything: B2, S1, S9, S10 together. Asserted: exactly one answer each, only
    right pages, no byte left in flight, and that enough went well and wrong for that to mean something."""
    owner, backend = random.Random(seed), random.Random(seed + 1000)
    bound = 40 * guarded().frame.file_bytes
    world = guarded(reads_into() if seed % 2 else None, workers=1, max_bytes_in_flight=bound, failures_to_open=4, max_stuck=400)

    def anything(honest, keys):
        match backend.randrange(14):
            case 0:
                raise OSError("gone")
            case 1:
                answer = honest()
                return answer[:-1] if answer else answer
            case 2:
                answer = honest()
                return answer[::-1] if answer else answer
            case 3:
                answer = honest()
                return [flipped(value) if type(value) is bytes else value for value in answer or []] or answer
            case 4:
                return world.backend.hang(honest, keys)
        return honest()

    world.backend.tricks |= dict.fromkeys(("exists", "get", "get_into", "set", "delete"), anything)
    asked, answered, refused = 0, [], 0

    for _ in range(300):
        numbers = owner.sample(range(40), owner.randint(0, 12))

        def on_done(answer, numbers=numbers):
            answered.append((numbers, answer))

        def make(numbers=numbers):
            return [world.value(number) for number in numbers]

        keys = world.keys(numbers)
        match owner.randrange(4):
            case 0:
                taken = world.guard.exists(keys, on_done)
            case 1:
                taken = world.guard.store(keys, world.frame.file_bytes, make, on_done)
            case _:
                taken = world.guard.fetch(keys, world.frame, room(len(keys), world.frame, owner.random() < 0.5), on_done)
        asked += taken
        refused += not taken
        while owner.random() < 0.6 and not world.guard.idle and not world.backend.hanging.acquire(blocking=False):
            world.guard.wait(0.005)
            world.guard.poll()
        if owner.random() < 0.3:
            world.clock.now += owner.choice([0.1, 5.0, 10.0])
        world.guard.poll()
    world.backend.released.set()
    world.backend.tricks.clear()
    world.clock.now += 5.0
    world.settle()
    assert len(answered) == asked
    right = 0
    for numbers, answer in answered:
        assert len(answer) == len(numbers)
        for number, item in zip(numbers, answer, strict=True):
            assert item in (True, False, None, world.payload(number))
            right += type(item) is bytes
    assert right > 20
    assert refused > 5
    assert sum(world.counters.misses.values()) > 50
