"""Builds a tokenizer from the fields of a GGUF file.

Byte-level BPE ("gpt2"), where the field `tokenizer.ggml.pre` says how text is cut into pieces first, and SentencePiece's BPE
("llama"), which cuts nothing.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from kvcache_engine.chat_template import ChatTemplate
from kvcache_engine.errors import ModelFileError, UnsupportedModelError
from kvcache_engine.tokenizer import Tokenizer
from kvcache_engine.weights.gguf_spm import spm_tokenizer

_CONTROL, _USER_DEFINED = 3, 4
_QWEN2_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def gguf_tokenizer(path: Path, field: Callable[[str], Any]) -> Tokenizer:
    """`field(key)` gives a metadata value or None; `path` is for error texts.

    Raises ModelFileError for missing or contradictory fields, UnsupportedModelError for another kind of tokenizer.
    """
    kind = field("tokenizer.ggml.model")
    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModelError(
            f"{path}: tokenizer {kind!r}; this engine builds 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE) only"
        )
    if kind == "gpt2" and field("tokenizer.ggml.pre") not in _SPLITTERS:
        raise UnsupportedModelError(
            f"{path}: pre-tokenizer {field('tokenizer.ggml.pre')!r}; this engine knows {', '.join(_SPLITTERS)}"
        )
    if kind == "llama" and field("tokenizer.ggml.add_space_prefix") is not False:
        raise UnsupportedModelError(f"{path}: a tokenizer that puts a space in front of the text is not supported")
    order = "merges" if kind == "gpt2" else "scores"
    ranks = field(f"tokenizer.ggml.{order}")
    if not tokens or not ranks or not kinds or len(kinds) != len(tokens) or (kind == "llama" and len(ranks) != len(tokens)):
        raise ModelFileError(f"{path}: tokenizer.ggml.tokens, token_type or {order} is missing, or their lengths differ")

    def token_id(key: str) -> int | None:
        value = field(f"tokenizer.ggml.{key}")
        if value is not None and not 0 <= int(value) < len(tokens):
            raise ModelFileError(f"{path}: tokenizer.ggml.{key} = {value} is outside the vocabulary of {len(tokens)}")
        return None if value is None else int(value)

    unknown = token_id("unknown_token_id")
    try:
        if kind == "gpt2":
            inner = _byte_level(tokens, ranks, field("tokenizer.ggml.pre"))
        else:
            inner = spm_tokenizer(tokens, ranks, kinds, None if unknown is None else tokens[unknown])
    # The Rust library reports a bad vocabulary as a bare Exception.
    except Exception as error:
        raise ModelFileError(f"{path}: the tokenizer's vocabulary and {order} do not fit: {error}") from error
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    inner.add_tokens(added)

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


def _byte_level(tokens: list[str], merges: list[str], pre: str) -> tokenizers.Tokenizer:
    pairs: Any = [tuple(merge.split(" ")) for merge in merges]
    inner = tokenizers.Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    _SPLITTERS[pre](inner)
    inner.decoder = decoders.ByteLevel()
    return inner


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
