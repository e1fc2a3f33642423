"""The prompts file: one JSON object a line. Reads and checks it, line by line; a bad line harms no other.

It knows neither tokenizer nor model: an item holds text, ids or chat messages as they were written.
"""

import codecs
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvcache_core.contracts.tokens import ExtraKey
from kvcache_engine.errors import RequestError


class Message(BaseModel):
    """One message of the OpenAI chat format."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    role: Literal["system", "user", "assistant"]
    content: str


class PromptItem(BaseModel):
    """One line. Exactly one of `prompt` (text or token ids) and `messages`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: str = Field(min_length=1)
    prompt: str | list[Annotated[int, Field(ge=0, lt=2**31)]] | None = None
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

    def names(self) -> Sequence[str]:
        """The ids under which this line is reported: one, or one for each turn."""
        return [self.id] if self.messages is None else [f"{self.id}#{k + 1}" for k in range(len(self.open_turns()))]

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
        data = path.read_bytes()
    except OSError as error:
        raise RequestError(f"cannot read the prompts file {path}: {error.strerror}") from error
    lines: list[PromptLine] = []
    first_seen: dict[str, int] = {}
    for number, raw in enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if not raw.strip():
            continue
        line = _read_line(path, number, raw)
        names = [line.id] if line.item is None else line.item.names()
        taken = next((name for name in names if name in first_seen), None)
        if taken is not None and line.error is None:
            error = f"{path}:{number}: id {taken!r} was used before, on line {first_seen[taken]}"
            line = PromptLine(number, f"line {number}", None, error)
        else:
            first_seen.update(dict.fromkeys(names, number))
        lines.append(line)
    if not lines:
        raise RequestError(f"the prompts file {path} holds no request")
    return lines


def _read_line(path: Path, number: int, raw: bytes) -> PromptLine:
    def malformed(what: str, name: object = None) -> PromptLine:
        known = name if isinstance(name, str) and name else f"line {number}"
        return PromptLine(number, known, None, f"{path}:{number}: {what}")

    try:
        data = json.loads(raw.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        return malformed(f"column {error.colno}: not JSON: {error.msg}")
    except UnicodeDecodeError as error:
        return malformed(f"byte {error.start + 1}: not UTF-8: {error.reason}")
    except (RequestError, ValueError, RecursionError) as error:  # such as a number of 5,000 digits, or 100,000 brackets
        return malformed(str(error))
    if not isinstance(data, dict):
        return malformed(f"a JSON object is expected, not {type(data).__name__}")
    fields = cast("dict[str, object]", data)
    name = fields.get("id")
    try:
        # JSON can spell half a surrogate pair, which no tokenizer and no cache key can take.
        json.dumps(fields, ensure_ascii=False).encode("utf-8")
        item = PromptItem.model_validate(fields)
    except UnicodeEncodeError:
        return malformed("a text holds half a surrogate pair (\\ud800 to \\udfff), which is no character")
    except ValidationError as error:
        return malformed(_describe(error), name)
    return PromptLine(number, item.id, item, None)


def _no_duplicates(pairs: Sequence[tuple[str, object]]) -> Mapping[str, object]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise RequestError(f"the key {key!r} stands twice")
    return dict(pairs)


def _describe(error: ValidationError) -> str:
    def one(location: Sequence[int | str], message: str) -> str:
        # Where a value may be a text or a list, pydantic names the kinds it tried; nobody wrote those.
        path = ".".join(str(part) for part in location if part != "str" and "[" not in str(part))
        return f"{path}: {message}" if path else message.removeprefix("Value error, ")

    return "; ".join(dict.fromkeys(one(e["loc"], e["msg"]) for e in error.errors(include_url=False)))
