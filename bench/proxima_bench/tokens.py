"""Texts of a wanted token count, without the model's tokenizer: the server's own `/tokenize` where there is one.

Common words are one token each in most vocabularies. Where the server can count, that is checked once for the whole
list, and the tokens that the chat template adds are measured; prompts then have exactly the wanted length. Without it
lengths are approximate, and the report shows what the server counted.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from proxima_bench.loads import Api

Count = Callable[[dict[str, Any]], Awaitable[int | None]]
"""Tokens of a `/tokenize` body; None where the server cannot say."""

WORDS = tuple((resources.files("proxima_bench") / "data" / "words.txt").read_text(encoding="utf-8").split())
CHARACTERS_PER_TOKEN = 4.0
"""Rule of thumb for English, used only where nobody can count."""
_FEW = 20


@dataclass(frozen=True)
class Vocabulary:
    """Words, what they cost, and what a message costs on top."""

    words: Sequence[str] = WORDS
    tokens_per_word: float = 1.0
    message_tokens: int = 0
    """Tokens that the chat template or the tokenizer adds to one message."""
    exact: bool = False
    """Whether a server's tokenizer confirmed all that."""

    def text(self, tokens: int, rng: random.Random) -> str:
        """Random words that are ``tokens`` long; at least one word."""
        return " ".join(rng.choices(self.words, k=max(1, round(tokens / self.tokens_per_word))))

    def message(self, tokens: int, rng: random.Random) -> str:
        """As ``text``, for a message that is ``tokens`` long with everything that is added to it."""
        return self.text(tokens - self.message_tokens, rng)


async def learn(count: Count, api: Api) -> Vocabulary:
    """The vocabulary of the served model, as far as the server helps."""
    total = await _text_tokens(count, WORDS)
    if total is None:
        return Vocabulary()
    words, cost = await _single_tokens(count, WORDS), 1.0
    if len(words) < _FEW:
        words, cost = list(WORDS), total / len(WORDS)
    body: dict[str, Any] = {"prompt": words[0]}
    if api is Api.CHAT:
        body = {"messages": [{"role": "user", "content": words[0]}]}
    framed, plain = await count(body), await count({"prompt": words[0], "add_special_tokens": False})
    added = framed - plain if framed is not None and plain is not None else 0
    return Vocabulary(words, cost, max(0, added), exact=cost == 1.0)


async def text_length(count: Count, text: str) -> int:
    """Tokens of a text by itself; estimated where the server cannot say."""
    counted = await count({"prompt": text, "add_special_tokens": False})
    return max(1, round(len(text) / CHARACTERS_PER_TOKEN)) if counted is None else counted


async def _single_tokens(count: Count, words: Sequence[str]) -> list[str]:
    """Those of the words that are one token each after a space; asks about halves only where it has to."""
    found = await _text_tokens(count, words)
    if found == len(words):
        return list(words)
    if found is None or len(words) == 1:
        return []
    half = len(words) // 2
    return await _single_tokens(count, words[:half]) + await _single_tokens(count, words[half:])


async def _text_tokens(count: Count, words: Sequence[str]) -> int | None:
    """Tokens of the words inside a text: a first word has no space before it, so a fixed one goes first."""
    start = {"prompt": "a", "add_special_tokens": False}
    whole = {"prompt": " ".join(("a", *words)), "add_special_tokens": False}
    before, all_of_it = await count(start), await count(whole)
    return None if before is None or all_of_it is None else all_of_it - before
