"""Renders a model's own chat template. The template comes with the weights, so it is untrusted and runs in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, final

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvcache_engine.errors import ChatTemplateError

Message = Mapping[str, str]
"""`role` and `content`, as in the OpenAI chat format."""


@final
class ChatTemplate:
    """A jinja2 template as Hugging Face tokenizers carry it: blocks trimmed, `raise_exception` and `tojson` at hand."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Raises ChatTemplateError when `source` is not a template."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], autoescape=False
        )
        environment.filters["tojson"] = _to_json
        self._names = {"bos_token": bos_token, "eos_token": eos_token, "raise_exception": _refuse}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the model's chat template cannot be read: {error}") from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt text of `messages`, ending where the assistant's answer begins.

        Raises ChatTemplateError when the template refuses the messages, for instance for the order of their roles.
        """
        values: dict[str, Any] = {"messages": [dict(m) for m in messages], "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(**values, **self._names)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the model's chat template refuses these messages: {error}") from error
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ChatTemplateError(f"the model's chat template fails on these messages: {error}") from error


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    # jinja2's own filter escapes HTML, which is not what models were trained on.
    return json.dumps(value, ensure_ascii=False, indent=indent)
