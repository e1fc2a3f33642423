"""Builds a tokenizer from the fields of a GGUF file.

Only byte-level BPE; how text is cut into pieces first depends on the field `tokenizer.ggml.pre`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from kvcache_engine.chat_template import ChatTemplate
from kvcache_engine.errors import ModelFileError, UnsupportedModelError
from kvcache_engine.tokenizer import Tokenizer

_CONTROL, _USER_DEFINED = 3, 4
_QWEN2_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def gguf_tokenizer(path: Path, field: Callable[[str], Any]) -> Tokenizer:
    """`field(key)` gives a metadata value or None; `path` is for error texts.

    Raises ModelFileError for missing or contradictory fields, UnsupportedModelError for another kind of tokenizer.
    """
    kind, pre = field("tokenizer.ggml.model"), field("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise UnsupportedModelError(f"{path}: tokenizer {kind!r}; this engine builds 'gpt2' (byte-level BPE) only")
    if pre not in _SPLITTERS:
        raise UnsupportedModelError(f"{path}: pre-tokenizer {pre!r}; this engine knows {', '.join(_SPLITTERS)}")
    tokens, kinds, merges = (field(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type", "merges"))
    if not tokens or not merges or not kinds or len(kinds) != len(tokens):
        raise ModelFileError(f"{path}: tokenizer.ggml.tokens, token_type or merges is missing, or their lengths differ")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    try:
        inner = tokenizers.Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    # The Rust library reports a bad vocabulary as a bare Exception.
    except Exception as error:
        raise ModelFileError(f"{path}: the tokenizer's vocabulary and merges do not fit: {error}") from error
    _SPLITTERS[pre](inner)
    inner.decoder = decoders.ByteLevel()
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    inner.add_tokens(added)

    def token_id(key: str) -> int | None:
        value = field(f"tokenizer.ggml.{key}")
        if value is not None and not 0 <= int(value) < len(tokens):
            raise ModelFileError(f"{path}: tokenizer.ggml.{key} = {value} is outside the vocabulary of {len(tokens)}")
        return None if value is None else int(value)

    bos, eos, eot = (token_id(f"{name}_token_id") for name in ("bos", "eos", "eot"))
    template = field("tokenizer.chat_template")
    return Tokenizer(
        inner,
        end_ids=frozenset(i for i in (eos, eot) if i is not None),
        bos_id=bos if field("tokenizer.ggml.add_bos_token") else None,
        chat_template=None
        if template is None
        else ChatTemplate(
            template,
            bos_token="" if bos is None else tokens[bos],
            eos_token="" if eos is None else tokens[eos],
        ),
    )


def _split_gpt2(inner: tokenizers.Tokenizer) -> None:
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)


def _split_smollm(inner: tokenizers.Tokenizer) -> None:
    # Every Unicode number character (category N) becomes a piece of its own before the GPT-2 split sees the text.
    digits = pre_tokenizers.Digits(individual_digits=True)
    inner.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def _split_qwen2(inner: tokenizers.Tokenizer) -> None:
    inner.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_QWEN2_SPLIT), behavior="isolated")
    inner.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_SPLITTERS: dict[str, Callable[[tokenizers.Tokenizer], None]] = {
    "gpt-2": _split_gpt2,
    "qwen2": _split_qwen2,
    "smollm": _split_smollm,
}
