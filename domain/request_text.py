"""The request of an action for people: its command, its files, and its JSON with secrets masked, which may be submitted again.

Rules
1. Pure: it reads the request as it was submitted (`contract.requests.ActionRequest` as a row has it), and changes nothing.
2. Secrets are masked as in `domain.command_text`, each with a JSON Pointer; below a member with a secret name all text is.
3. JSON of more than `PAGE_CHARACTERS` is left out. `RequestDetails.obstacle` says why a request cannot be submitted again as it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from domain.command_text import MASK, PAGE_CHARACTERS, command_block, is_secret_name, masked
from domain.rewards import JUNIT

#: Masked members that a sentence names.
_NAMED: Final = 3


class DeclaredFile(msgspec.Struct, frozen=True):
    """A file or an input that a request names."""

    #: Path in the environment, or what it is.
    path: str
    #: ``given``: the request has its content. ``read``: its content decides the reward. ``begins``: the environment begins with it.
    use: str
    #: Size of its content where the request has it.
    bytes: int | None = None


class RequestDetails(msgspec.Struct):
    """The request that an action came from, with secrets masked."""

    #: Its command, or ``POST target/path`` of a call; cut at 4,096 characters.
    command: str
    #: Name of the token or account that submitted it; null: not recorded.
    submitted_by: str | None
    files: list[DeclaredFile]
    #: The body of its submission; null where it has more than 4,096 characters or is not kept.
    body: dict[str, Any] | None
    #: JSON Pointers to the masked members of ``body``.
    masked: list[str]
    #: Why ``body`` cannot be submitted again as it is; null: it can.
    obstacle: str | None


def request_details(spec: Mapping[str, Any] | None, submitted_by: str | None) -> RequestDetails:
    """Return the details of a request; ``spec`` is empty where the request is not kept."""
    hidden: list[str] = []
    body = masked_request(spec or {}, hidden)
    size = len(msgspec.json.encode(body).decode())
    return RequestDetails(
        command=command_block(spec),
        submitted_by=submitted_by,
        files=list(declared_files(spec or {})),
        body=body if spec and size <= PAGE_CHARACTERS else None,
        masked=hidden,
        obstacle=_obstacle(spec, size, hidden),
    )


def masked_request(spec: Mapping[str, Any], hidden: list[str]) -> dict[str, Any]:
    """Return a request with secrets masked; pointers to them are added to ``hidden``."""
    found: dict[str, Any] = _masked(spec, "", False, hidden)
    return found


def masked_members(body: Any) -> list[str]:
    """Return pointers to the members of a JSON value that still have the mask in place of a secret."""
    if isinstance(body, str):
        return [""] if MASK in body else []
    items: Any = body.items() if isinstance(body, Mapping) else ()
    if isinstance(body, list):
        items = enumerate(body)
    return [_below("", name) + rest for name, each in items for rest in masked_members(each)]


def declared_files(spec: Mapping[str, Any]) -> Iterator[DeclaredFile]:
    """Yield the files and inputs that a request names."""
    environment, reward = spec.get("environment") or {}, spec.get("reward") or {}
    if environment.get("snapshot"):
        yield DeclaredFile(f"snapshot {environment['snapshot']}", "begins")
    yield from _input(spec.get("exec") or {}, "stdin", "standard input")
    yield from _input(spec.get("call") or {}, "body", "body of the call")
    for path, text in (reward.get("files") or {}).items():
        yield DeclaredFile(path, "given", len(str(text).encode(errors="surrogatepass")))
    if reward.get("file"):
        yield DeclaredFile(reward["file"], "read")
    if reward.get("from") == JUNIT and reward.get("path"):
        yield DeclaredFile(reward["path"], "read")


def _input(work: Mapping[str, Any], name: str, says: str) -> Iterator[DeclaredFile]:
    """Yield a text that the request gives, in its place or in the store of large bodies."""
    stored = work.get(f"stored_{name}")
    if stored:
        yield DeclaredFile(says, "given", stored["bytes"])
    elif work.get(name):
        yield DeclaredFile(says, "given", len(work[name].encode(errors="surrogatepass")))


def _obstacle(spec: Mapping[str, Any] | None, size: int, hidden: Sequence[str]) -> str | None:
    if not spec:
        return "its request is not kept"
    if size > PAGE_CHARACTERS:
        return f"its request has {size:,} characters; more than {PAGE_CHARACTERS:,} are cut"
    for part in ("exec", "call"):
        for name in ("stored_stdin", "stored_body"):
            if stored := (spec.get(part) or {}).get(name):
                return f"its input of {stored['bytes']:,} bytes is kept apart from the request"
    if not hidden:
        return None
    names = ", ".join(hidden[:_NAMED])
    more = f" and {len(hidden) - _NAMED} more" if len(hidden) > _NAMED else ""
    return f"its secrets are masked: {names}{more}"


def _masked(value: Any, pointer: str, secret: bool, hidden: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _masked(each, _below(pointer, name), secret or is_secret_name(name), hidden)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return _masked_words(value, pointer, secret, hidden)
    if not isinstance(value, str) or not value:
        return value
    shown = MASK if secret else masked(value)
    if shown != value:
        hidden.append(pointer)
    return shown


def _masked_words(words: Sequence[Any], pointer: str, secret: bool, hidden: list[str]) -> list[Any]:
    """Mask a list; in a command line a word is secret by the word before it, as after ``--token``."""
    found: list[Any] = []
    for number, word in enumerate(words):
        place = _below(pointer, number)
        before = words[number - 1] if number else None
        if not secret and isinstance(word, str) and isinstance(before, str) and word:
            shown = _after(before, word)
            found.append(shown)
            if shown != word:
                hidden.append(place)
        else:
            found.append(_masked(word, place, secret, hidden))
    return found


def _after(before: str, word: str) -> str:
    """Return ``word`` masked as it is behind ``before``."""
    start = f"{masked(before)} "
    both = masked(f"{before} {word}")
    return both[len(start) :] if both.startswith(start) else MASK


def _below(pointer: str, name: str | int) -> str:
    return f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}"
