"""The host without a model: its answers depend on every token of the prefix and on nothing else."""

from typing import NamedTuple

import numpy as np
import pytest

from kvcache_conformance.token_store import TokenStore, answer, next_token


class Row(NamedTuple):
    ids: np.ndarray
    start: int
    tables: dict


def row(ids, start, *pages):
    return Row(np.array(ids, np.int32), start, {"full": np.array(pages, np.int32)})


def test_answers_follow_the_tokens_in_the_pages():
    store = TokenStore("full", total=6, page_size=2, vocab=97)
    prefix = np.array([5, 6, 7], np.int32)
    assert store.execute([row([5, 6, 7], 0, 4, 2)]) == [next_token(prefix, 97)]
    first = next_token(prefix, 97)
    assert store.execute([row([first], 3, 4, 2)]) == [answer(prefix, 2, 97)[1]]
    assert store.tokens_computed == 4
    assert store.read(np.array([4, 2]), 3).tolist() == [5, 6, 7]


def test_a_foreign_page_changes_the_answer():
    store = TokenStore("full", total=6, page_size=2, vocab=10_007)
    store.execute([row([5, 6, 7], 0, 4, 2), row([8, 9], 0, 1)])
    right, wrong = store.execute([row([1], 3, 4, 2), row([1], 3, 1, 2)])
    assert right != wrong


def test_a_scheduler_that_forgot_to_make_room_is_caught():
    store = TokenStore("full", total=6, page_size=2, vocab=97)
    with pytest.raises(ValueError, match="do not fit"):
        store.execute([row([1, 2, 3], 0, 4)])
    with pytest.raises(ValueError, match="dummy page"):
        store.execute([row([1, 2, 3], 0, 4, 0)])


def test_an_answer_ends_with_the_end_token():
    prompt = np.array([1], np.int32)
    free = answer(prompt, 30, 7)
    assert answer(prompt, 30, 7, [free[3]])[-1] == free[3]
    assert len(answer(prompt, 30, 7, [free[3]])) <= 4
