"""Text to token ids and back. It knows nothing about models, files or requests."""

from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt
import tokenizers

from kvcache_engine.chat_template import ChatTemplate, Message
from kvcache_engine.errors import ChatTemplateError


@final
class Tokenizer:
    """A vocabulary with its end tokens and chat template. `end_ids`: any of them ends an answer."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        *,
        end_ids: frozenset[int],
        bos_id: int | None = None,
        chat_template: ChatTemplate | None = None,
    ) -> None:
        self._inner = inner
        self._bos = [] if bos_id is None else [bos_id]
        self._chat_template = chat_template
        self.end_ids = end_ids

    @property
    def vocab_size(self) -> int:
        """Tokens with an id, added ones included; a model's output may be wider."""
        return self._inner.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """The ids of a prompt. Control tokens written out in `text` are recognised; a model that wants one gets its BOS."""
        return self._ids(self._bos + self._inner.encode(text, add_special_tokens=True).ids)

    def encode_chat(self, messages: Sequence[Message]) -> npt.NDArray[np.int32]:
        """The ids of a conversation, ending where the assistant's answer begins; the template writes BOS itself.

        Raises ChatTemplateError: no template, or it refuses the messages.
        """
        if self._chat_template is None:
            raise ChatTemplateError("this model has no chat template: give a `prompt` instead of `messages`")
        return self._ids(self._inner.encode(self._chat_template.render(messages), add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int] | npt.NDArray[np.int32], *, keep_control: bool = False) -> str:
        """The text of `ids`; control tokens are left out unless `keep_control`. Broken UTF-8 becomes U+FFFD."""
        return self._inner.decode([int(i) for i in ids], skip_special_tokens=not keep_control)

    @staticmethod
    def _ids(ids: list[int]) -> npt.NDArray[np.int32]:
        return np.array(ids, dtype=np.int32)
