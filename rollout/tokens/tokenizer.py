"""Tokenizer of a model: text to ids and back, as the files of the model define it.

A folder has what model hubs publish: ``tokenizer.json``, and where the model has them ``tokenizer_config.json`` (special
tokens, chat template), ``chat_template.jinja``, ``generation_config.json`` (ids that end a response) and ``config.json``
(size of the vocabulary). Nothing is downloaded, and nothing of the folder is executed except its chat template.

Lifetimes: a tokenizer is read once for a worker process and shared by its rollouts; it has no state.

Rules
1. Encoding adds no special token of its own: the chat template writes them.
2. `literal` text is encoded as text, whatever it contains: a tool's output that contains ``<|im_end|>`` cannot end a turn.
3. Encoding fails for no string: a lone surrogate becomes U+FFFD. Decoding fails for no ids: ids that end within a
   character end in U+FFFD. Therefore ids are stored, and text is only shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from domain.errors import InvalidRequest

#: Encloses `literal` text. Noncharacters: no text of a user needs them, so they are replaced there.
LITERAL_BEGIN: Final = "\ufdd0"
LITERAL_END: Final = "\ufdd1"
_REPLACEMENT: Final = "\ufffd"
_NOT_TEXT = re.compile("[\ud800-\udfff]")
_NONCHARACTERS = re.compile("[\ufdd0-\ufdef]")
#: More characters than one token of natural text has; a text is cut to this before it is encoded.
_CHARACTERS_PER_TOKEN: Final = 16
#: Least limit of `ModelTokenizer.clip`: room for the note and for text beside it.
LEAST_CLIP_TOKENS: Final = 128
_NOTE: Final = "\n[... {count} characters left out ...]\n"
#: Of the note, and of what a cut adds on both sides of it.
_NOTE_TOKENS: Final = 64
_TEMPLATE_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token")


class ModelTokenizer:
    """Vocabulary of one model. `load_tokenizer` reads it."""

    def __init__(
        self,
        serialized: str,
        *,
        stop_ids: frozenset[int] = frozenset(),
        vocabulary_size: int = 0,
        template_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
    ) -> None:
        self._serialized = serialized
        self._tokenizer = Tokenizer.from_str(serialized)
        self._as_text: Tokenizer | None = None
        #: Ids that end a response.
        self.stop_ids = stop_ids
        #: Ids are below it. Models often have more rows than the tokenizer has tokens.
        self.vocabulary_size = max(vocabulary_size, self._tokenizer.get_vocab_size())
        #: ``bos_token`` and others, as chat templates name them.
        self.template_tokens = dict(template_tokens or {})
        #: Source of the model's own chat template, None without one.
        self.chat_template = chat_template
        added = self._tokenizer.get_added_tokens_decoder().values()
        special = sorted((token.content for token in added if token.special), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special))) if special else None

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``; special tokens in it are special, except in `literal` parts."""
        ids: list[int] = []
        for part, literal in _parts(_NOT_TEXT.sub(_REPLACEMENT, text)):
            tokenizer = self._text_tokenizer() if literal else self._tokenizer
            ids += tokenizer.encode(part, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of ``ids``; ``special``: with its special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=not special))

    def response_text(self, ids: Sequence[int]) -> str:
        """Return the text of a response, without the token that ended it; calls of tools may be special tokens."""
        ended = len(ids) > 0 and ids[-1] in self.stop_ids
        return self.decode(ids[:-1] if ended else ids, special=True)

    def literal(self, text: str) -> str:
        """Return ``text`` with every special token enclosed, so that `encode` takes it as text."""
        cleaned = _NONCHARACTERS.sub(_REPLACEMENT, text)
        if self._special is None:
            return cleaned
        return self._special.sub(lambda found: LITERAL_BEGIN + found[0] + LITERAL_END, cleaned)

    def clip(self, text: str, limit: int) -> str:
        """Return ``text`` with at most ``limit`` tokens: its middle is left out, and a note says how much of it.

        Takes time for ``limit`` tokens, however long ``text`` is. Raises ValueError below `LEAST_CLIP_TOKENS`.
        """
        if limit < LEAST_CLIP_TOKENS:
            raise ValueError(f"a limit of at least {LEAST_CLIP_TOKENS} tokens, not {limit}")
        most = limit * _CHARACTERS_PER_TOKEN
        cleaned = _NOT_TEXT.sub(_REPLACEMENT, text[: most + 1])
        if len(text) <= most and len(self._offsets(cleaned)) <= limit:
            return text
        half = (limit - _NOTE_TOKENS) // 2
        head, tail = cleaned[: most // 2], _NOT_TEXT.sub(_REPLACEMENT, text[-(most // 2) :])
        ends, begins = self._offsets(head), self._offsets(tail)
        head = head[: ends[half][0]] if len(ends) > half else head
        tail = tail[begins[-half][0] :] if len(begins) > half else tail
        return head + _NOTE.format(count=len(text) - len(head) - len(tail)) + tail

    def _offsets(self, text: str) -> list[tuple[int, int]]:
        """Return for each token of literal ``text`` the characters that it is of."""
        encoded = self._text_tokenizer().encode(text, add_special_tokens=False)
        return list(encoded.offsets)

    def _text_tokenizer(self) -> Tokenizer:
        if self._as_text is None:
            self._as_text = Tokenizer.from_str(self._serialized)
            self._as_text.encode_special_tokens = True
        return self._as_text


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a text in order, and whether each is literal."""
    while text:
        plain, begin, text = text.partition(LITERAL_BEGIN)
        if plain:
            yield plain, False
        if begin:
            inner, _, text = text.partition(LITERAL_END)
            if inner:
                yield inner, True


def load_tokenizer(folder: Path) -> ModelTokenizer:
    """Read the files of a model. Raises InvalidRequest, which names what is missing or damaged."""
    file = folder / "tokenizer.json"
    try:
        serialized = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"{file} cannot be read ({error}); give a folder with the tokenizer of a model"
        ) from error
    settings = _json(folder / "tokenizer_config.json")
    tokens = {name: _token(settings[name]) for name in _TEMPLATE_TOKENS if settings.get(name)}
    try:
        known = Tokenizer.from_str(serialized)
        return ModelTokenizer(
            serialized,
            stop_ids=_stop_ids(folder, known, tokens),
            vocabulary_size=_vocabulary_size(_json(folder / "config.json")),
            template_tokens=tokens,
            chat_template=_template(folder, settings),
        )
    except InvalidRequest:
        raise
    except Exception as error:  # the library raises nothing more exact
        raise InvalidRequest(f"{file} is no tokenizer: {error}") from error


def _stop_ids(folder: Path, known: Tokenizer, tokens: Mapping[str, str]) -> frozenset[int]:
    stated = _json(folder / "generation_config.json").get("eos_token_id")
    ids = stated if isinstance(stated, list) else [stated]
    ids.append(known.token_to_id(tokens["eos_token"]) if "eos_token" in tokens else None)
    return frozenset(each for each in ids if isinstance(each, int))


def _vocabulary_size(config: Mapping[str, Any]) -> int:
    inner = config.get("text_config")
    size = config.get("vocab_size") or (
        inner.get("vocab_size") if isinstance(inner, dict) else None
    )
    return size if isinstance(size, int) else 0


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    stated = settings.get("chat_template")
    if isinstance(stated, list):
        named = {each.get("name"): each.get("template") for each in stated}
        stated = named.get("tool_use") or named.get("default")
    return stated if isinstance(stated, str) else None


def _token(stated: Any) -> str:
    """Return the text of a token, which is stated alone or with its options."""
    return str(stated["content"] if isinstance(stated, dict) else stated)


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise InvalidRequest(f"{file} has no JSON object")
    return found
