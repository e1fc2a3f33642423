"""What one process computed, the next one reuses: tokens computed equal those of a plain page trie, whatever the settings."""

import numpy as np
import pytest


def plain_trie(history, tokens, page):
    """The length that a trie of whole pages, fed with `history`, has of all but the last token of `tokens`."""
    most = 0
    for earlier in history:
        whole = len(earlier) // page * page
        same = next((i for i, (a, b) in enumerate(zip(earlier[:whole], tokens[:-1], strict=False)) if a != b), None)
        same = min(whole, len(tokens) - 1) if same is None else same
        most = max(most, same // page * page)
    return most


def conversations(page, seed):
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 9, 3 * page + 1).tolist()]
    for _ in range(11):
        base = prompts[rng.integers(len(prompts))]
        prompts.append([*base[: rng.integers(1, len(base) + 1)], *rng.integers(0, 9, rng.integers(1, 3 * page)).tolist()])
    return [prompt[: 12 * page] for prompt in prompts]


@pytest.mark.parametrize("persist_on", ["evict", "insert"])
@pytest.mark.parametrize("page", [1, 16, 64])
def test_a_second_process_computes_what_a_page_trie_would(start, page, persist_on):
    first = start(page_size=page, pages=128, hicache={"persist_on": persist_on})
    history = conversations(page, page)
    for tokens in history:
        first.serve(tokens)
    first.cache.close()
    second = start(page_size=page, pages=128, hicache={"persist_on": persist_on})
    reused = 0
    for tokens in [*history[::-1], *conversations(page, page + 1)]:
        hits = plain_trie(history, tokens, page)
        served = second.serve(tokens)
        assert served.computed == len(tokens) - hits
        reused += hits
        history.append(tokens)
    assert reused > 20 * page
