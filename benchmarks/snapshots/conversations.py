"""Conversations over a few documents, the same in every run: some ask about a whole document, most branch off inside it.

A character is a token of the tiny models. It knows no engine and no cache.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

SYLLABLES: Final = ("ba", "ce", "di", "fo", "gu", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "wo")


@final
@dataclass(frozen=True, slots=True)
class Conversation:
    """`name`: who asks about what. `system`: what stands before the first of `questions`."""

    name: str
    system: str
    questions: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class Workload:
    """`readers` conversations of `turns` questions for each of `documents`, which are `document_tokens` long. The first reader of
    a document has all of it; every other one has a copy that differs from some place in the last three quarters on, the way
    prompts do that are put together from parts."""

    documents: int
    readers: int
    turns: int
    document_tokens: int = 1536
    question_tokens: int = 96
    answer_tokens: int = 24
    seed: int = 7

    def conversations(self, *, later: bool = False) -> Sequence[Conversation]:
        """Reader by reader, so that those of one document do not follow each other. `later` readers have the same documents, and
        are none of those before."""
        words = random.Random(self.seed)
        documents = [_text(words, self.document_tokens) for _ in range(self.documents)]
        if later:
            words = random.Random(self.seed + 1)
        made: list[Conversation] = []
        for reader in range(self.readers):
            for number, document in enumerate(documents):
                branch = words.randrange(self.document_tokens // 4, self.document_tokens) if reader else self.document_tokens
                system = document[:branch] + _text(words, self.document_tokens - branch)
                questions = tuple(_text(words, self.question_tokens) for _ in range(self.turns))
                made.append(Conversation(f"document {number}, reader {reader}", system, questions))
        return made


def _text(words: random.Random, n: int) -> str:
    """Exactly `n` characters of words that mean nothing."""
    text = ""
    while len(text) < n:
        text += "".join(words.choices(SYLLABLES, k=words.randint(1, 4))) + " "
    return text[:n]
