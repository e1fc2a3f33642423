"""SentencePiece's BPE from the fields of a GGUF file: pieces merge pairwise, the best-scored result first.

The `tokenizers` library wants merges in order instead of scores; every way to split a token into two tokens is one. What is no
token falls back to its bytes.
"""

from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, normalizers

_NORMAL = 1
_SPACE = "\u2581"


def spm_tokenizer(
    tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int], unknown: str | None
) -> tokenizers.Tokenizer:
    """Without added tokens. `kinds` are GGUF's; `unknown`: the token for what has no bytes in the vocabulary either.

    Raises whatever the library raises for a vocabulary it cannot use.
    """
    inner = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=_merges(tokens, scores, kinds),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=unknown,
        )
    )
    inner.normalizer = normalizers.Replace(" ", _SPACE)
    inner.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return inner


def _merges(tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]) -> list[tuple[str, str]]:
    """Best score of the merged token first. Only normal tokens take part: user-defined ones are cut from the raw text before."""
    normal = {token for token, kind in zip(tokens, kinds, strict=True) if kind == _NORMAL}
    found: list[tuple[float, int, tuple[str, str]]] = []
    for i, token in enumerate(tokens):
        if kinds[i] != _NORMAL:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in normal and right in normal:
                found.append((-scores[i], i, (left, right)))
    # Stable: ways to make the same token stay in the order of their cuts.
    found.sort(key=lambda merge: merge[:2])
    return [pair for _, _, pair in found]
