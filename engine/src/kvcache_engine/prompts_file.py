"""The prompts file: one JSON object a line. Reads and checks it, line by line; a bad line harms no other.

It knows neither tokenizer nor model: an item holds text, ids or chat messages as they were written.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError, model_validator

from kvcache_core.contracts.tokens import ExtraKey
from kvcache_core.errors import KVCacheError
from kvcache_engine.errors import RequestError


class Message(BaseModel):
    """One message of the OpenAI chat format."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Literal["system", "user", "assistant"]
    content: str


class PromptItem(BaseModel):
    """One line. Exactly one of `prompt` (text or token ids) and `messages`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1)
    prompt: str | list[Annotated[StrictInt, Field(ge=0, lt=2**31)]] | None = None
    messages: list[Message] | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(default=None, ge=0, lt=2**32)
    stop: str | list[str] = Field(default_factory=list[str])
    extra_key: str | list[str] = Field(default_factory=list[str])

    @model_validator(mode="after")
    def _one_kind(self) -> "PromptItem":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give exactly one of `prompt` and `messages`")
        if self.messages is not None and not self.open_turns():
            raise ValueError("no user message is left to answer: each is followed by an assistant message")
        if "" in self.stop_texts():
            raise ValueError("`stop` must not hold an empty text")
        return self

    def open_turns(self) -> Sequence[int]:
        """Positions of the user messages that no assistant message follows; they are answered in turn."""
        messages = self.messages or []
        return [
            i
            for i, message in enumerate(messages)
            if message.role == "user" and (i + 1 == len(messages) or messages[i + 1].role != "assistant")
        ]

    def stop_texts(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def extra_key_parts(self) -> ExtraKey:
        """The parts as bytes; one text is one part."""
        parts = [self.extra_key] if isinstance(self.extra_key, str) else self.extra_key
        return tuple(part.encode() for part in parts)


@dataclass(frozen=True, slots=True)
class PromptLine:
    """A line of the file: `item`, or `error` where it is malformed. `line` counts from 1; `id` falls back to `line N`."""

    line: int
    id: str
    item: PromptItem | None
    error: str | None


def read_prompts(path: Path) -> list[PromptLine]:
    """Read a prompts file. Blank lines are skipped.

    Raises:
        RequestError: the file cannot be read or holds no request at all. A malformed line is reported in its `PromptLine`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read the prompts file {path}: {error}") from error
    lines: list[PromptLine] = []
    first_seen: dict[str, int] = {}
    for number, raw in enumerate(text.split("\n"), start=1):
        if not raw.strip():
            continue
        line = _read_line(path, number, raw)
        if line.item is not None and line.id in first_seen:
            error = f"{path}:{number}: id {line.id!r} was used before, on line {first_seen[line.id]}"
            line = PromptLine(number, f"line {number}", None, error)
        elif line.item is not None:
            first_seen[line.id] = number
        lines.append(line)
    if not lines:
        raise RequestError(f"the prompts file {path} holds no request")
    return lines


def _read_line(path: Path, number: int, raw: str) -> PromptLine:
    try:
        data = json.loads(raw, object_pairs_hook=_no_duplicates)
        if not isinstance(data, dict):
            raise RequestError(f"a JSON object is expected, not {type(data).__name__}")
        item = PromptItem.model_validate(data)
    except json.JSONDecodeError as error:
        return PromptLine(number, f"line {number}", None, f"{path}:{number}:{error.colno}: not JSON: {error.msg}")
    except ValidationError as error:
        return PromptLine(number, f"line {number}", None, f"{path}:{number}: {_describe(error)}")
    except KVCacheError as error:
        return PromptLine(number, f"line {number}", None, f"{path}:{number}: {error}")
    return PromptLine(number, item.id, item, None)


def _no_duplicates(pairs: Sequence[tuple[str, object]]) -> Mapping[str, object]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise RequestError(f"the key {key!r} stands twice")
    return dict(pairs)


def _describe(error: ValidationError) -> str:
    def one(location: Sequence[object], message: str) -> str:
        path = ".".join(str(part) for part in location)
        return f"{path}: {message}" if path else message.removeprefix("Value error, ")

    return "; ".join(one(e["loc"], e["msg"]) for e in error.errors(include_url=False))
