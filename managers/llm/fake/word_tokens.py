"""Word tokens: ids and texts that encode each other, without a tokenizer.

A token is four characters. An answer is made of words with four letters each, so that a client which sends it back as text
sends the same ids: caches of prefixes are found by text as by ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from string import ascii_lowercase
from typing import Any, Final

LENGTH: Final = 4
#: Ids of words, all below the vocabulary of any published model.
WORDS: Final = 26**3
#: Ids of other pieces of text are above those of words.
VOCABULARY: Final = 2 * WORDS
#: Answers that have no stated length have from 1 to so many tokens.
_TYPICAL_TOKENS: Final = 256
_LETTERS: Final = frozenset(ascii_lowercase)


def text_of(ids: Sequence[int]) -> str:
    """Return the text of ids; four characters each."""
    return "".join(map(_word, ids))


def ids_of(text: str) -> list[int]:
    """Return the ids of a text; one for each four characters, the last piece filled up with spaces."""
    return [_id(text[at : at + LENGTH]) for at in range(0, len(text), LENGTH)]


def chat_ids(messages: Sequence[Any]) -> list[int]:
    """Return the ids of a chat; each message begins with a token of its own, and so does the answer."""
    found: list[int] = []
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content)
        found.append(_id(f"<{message['role']}>"))
        found += ids_of(str(content))
    found.append(_id("<assistant>"))
    return found


def answer_ids(prompt: Sequence[int], seed: int) -> Iterator[int]:
    """Yield the ids of an answer without an end; the same prompt and seed give the same ones."""
    digest = hashlib.blake2b(repr((len(prompt), prompt[-64:], seed)).encode(), digest_size=8)
    state = int.from_bytes(digest.digest(), "big") | 1
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield (state >> 33) % WORDS


def answer_length(prompt: Sequence[int], seed: int, most: int) -> int:
    """Return the length of an answer whose request states none, at most ``most``."""
    return min(most, 1 + next(answer_ids(prompt, seed + 1)) % _TYPICAL_TOKENS)


def logprob_of(number: int) -> float:
    """Return the log-probability of an id, the same everywhere."""
    return -((number * 37) % 997 + 1) / 500


def _word(number: int) -> str:
    if number >= WORDS:
        return f"{number:04x}"[-LENGTH:]
    first, rest = divmod(number, 676)
    second, third = divmod(rest, 26)
    return " " + ascii_lowercase[first] + ascii_lowercase[second] + ascii_lowercase[third]


def _id(piece: str) -> int:
    letters = piece[1:]
    if len(piece) == LENGTH and piece[0] == " " and set(letters) <= _LETTERS:
        first, second, third = (ord(letter) - ord("a") for letter in letters)
        return first * 676 + second * 26 + third
    digest = hashlib.blake2b(piece.encode(), digest_size=4).digest()
    return WORDS + int.from_bytes(digest, "big") % WORDS
