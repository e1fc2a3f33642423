"""SentencePiece's BPE out of a GGUF file's fields: scores, bytes, and tokens that are cut out first."""

from pathlib import Path
from typing import Any

import pytest

from kvcache_engine.errors import ModelFileError, UnsupportedModelError
from kvcache_engine.tokenizer import Tokenizer
from kvcache_engine.weights.gguf_tokenizer import gguf_tokenizer

NORMAL, CONTROL, USER, BYTE = 1, 3, 4, 6
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = [("<pad>", CONTROL), ("<eos>", CONTROL), ("<bos>", CONTROL), ("<unk>", CONTROL), ("  ", USER), ("<b>", USER)]
WORDS = ["\u2581", "a", "b", "c", "<", ">", "ab", "bc", "abc", "\u2581a", "\u2581\u2581"]
TOKENS = [*(token for token, _ in SPECIAL), *BYTES, *WORDS]
KINDS = [*(kind for _, kind in SPECIAL), *[BYTE] * 256, *[NORMAL] * len(WORDS)]


def fields(**changes: Any) -> dict[str, Any]:
    """`bc` scores better than `ab`; everything else by its place."""
    scores = [0.0] * len(TOKENS)
    for i, word in enumerate(("bc", "ab", "abc", "\u2581a", "\u2581\u2581")):
        scores[TOKENS.index(word)] = -float(1 + i)
    base = {"model": "llama", "tokens": TOKENS, "scores": scores, "token_type": KINDS, "bos_token_id": 2, "eos_token_id": 1}
    return base | {"unknown_token_id": 3, "add_bos_token": True, "add_space_prefix": False} | changes


def tokenizer(**changes: Any) -> Tokenizer:
    given = {f"tokenizer.ggml.{key}": value for key, value in fields(**changes).items()}
    return gguf_tokenizer(Path("m.gguf"), given.get)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        # The better score goes first although another pair stands further left.
        ("abc", ["abc"]),
        ("abca", ["abc", "a"]),
        ("ab c", ["ab", "\u2581", "c"]),
        (" a", ["\u2581a"]),
        # User-defined tokens are cut from the raw text, where spaces are spaces.
        ("a  b", ["a", "  ", "b"]),
        ("a<b>c", ["a", "<b>", "c"]),
        ("<eos>b", ["<eos>", "b"]),
        # What is no token falls back to its bytes.
        ("\u00e9", ["<0xC3>", "<0xA9>"]),
        ("a\n", ["a", "<0x0A>"]),
    ],
)
def test_pieces(text, pieces) -> None:
    built = tokenizer()
    ids = built.encode(text).tolist()
    assert [TOKENS[i] for i in ids] == ["<bos>", *pieces]
    assert built.decode(ids[1:], keep_control=True) == text


def test_the_score_decides_which_pair_merges_first() -> None:
    """Without `abc`, "abc" is a + bc by the scores above, and ab + c by others."""
    without = [token if token != "abc" else "other" for token in TOKENS]
    assert [without[i] for i in tokenizer(tokens=without).encode("abc")][1:] == ["a", "bc"]
    scores = fields()["scores"]
    scores[TOKENS.index("ab")] = 0.0
    assert [without[i] for i in tokenizer(tokens=without, scores=scores).encode("abc")][1:] == ["ab", "c"]


def test_end_token_and_no_start_token_unless_asked_for() -> None:
    assert tokenizer().end_ids == frozenset({1})
    assert tokenizer(add_bos_token=False).encode("a").tolist() == [TOKENS.index("a")]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "t5"}, UnsupportedModelError, "tokenizer 't5'; this engine builds 'gpt2' .* and 'llama'"),
        ({"add_space_prefix": True}, UnsupportedModelError, "a space in front of the text"),
        ({"add_space_prefix": None}, UnsupportedModelError, "a space in front of the text"),
        ({"scores": None}, ModelFileError, "scores is missing, or their lengths differ"),
        ({"scores": [0.0]}, ModelFileError, "scores is missing, or their lengths differ"),
        ({"unknown_token_id": 9999}, ModelFileError, "unknown_token_id = 9999 is outside the vocabulary"),
    ],
)
def test_what_cannot_be_built(changes, error, message) -> None:
    with pytest.raises(error, match=message):
        tokenizer(**changes)
