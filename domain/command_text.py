"""The command or call of an action as text for people, with secrets masked.

Rules
1. Pure: it reads the request of an action as it was submitted, and changes nothing.
2. Masked are values of variables and headers whose names say that they are secret (`is_secret_name`), what follows such a name in a
   command line or an address, and tokens in the known forms of services. The prefix of a token stays, so that it can be recognised.
3. Masking is best effort: a secret under an ordinary name in a form of its own is not recognised (docs/security.md).
4. Text is cut at a number of characters, and says how many it leaves out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

MASK: Final = "••••"
#: Most characters of a row in a table, and of a page.
ROW_CHARACTERS: Final = 120
PAGE_CHARACTERS: Final = 4096

_NAME: Final = (
    r"[A-Za-z0-9_.-]*(?:token(?!s|iz)|secret|passw(?:or)?d|passwd|api[-_]?key|access[-_]?key|private[-_]?key"
    r"|credential|authorization|cookie)[A-Za-z0-9_.-]*"
)
_SECRET_NAME: Final = re.compile(_NAME, re.IGNORECASE)
#: Each with a group of what stays before the mask; what is behind it is masked.
_FORMS: Final = (
    # NAME=value, --name value, "name": "value", Name: Bearer value
    re.compile(
        rf"(?i)(?P<kept>(?<![A-Za-z0-9])(?:--?)?{_NAME}['\"]?(?:\s*[=:]\s*|(?<=[a-z])\s+(?=\S))['\"]?"
        rf"(?:(?:bearer|basic|token)\s+)?)(?P<hidden>[^\s'\"&,;]+)"
    ),
    re.compile(r"(?i)(?P<kept>\b(?:bearer|basic)\s+)(?P<hidden>[A-Za-z0-9._~+/=-]{8,})"),
    # scheme://user:password@host
    re.compile(r"(?P<kept>\b[a-z][a-z0-9+.-]*://[^\s/:@'\"]*:)(?P<hidden>[^\s/@'\"]+)(?=@)"),
    re.compile(
        r"(?P<kept>-----BEGIN [A-Z ]*PRIVATE KEY-----)(?P<hidden>.*?)(?=-----END|\Z)", re.DOTALL
    ),
    re.compile(
        r"(?P<kept>\b(?:gh[pousr]_|github_pat_|glpat-|sk-(?:proj-|ant-)?|hf_|xox[abprs]-|npm_|tgm_|AKIA|ASIA|AIza|eyJ))"
        r"(?P<hidden>[A-Za-z0-9._-]{8,})"
    ),
)


def is_secret_name(name: str) -> bool:
    """Return whether the name of a variable, header or member says that its value is secret."""
    return _SECRET_NAME.fullmatch(name) is not None


def masked(text: str) -> str:
    """Return ``text`` with secrets masked, as far as they can be recognised."""
    for form in _FORMS:
        text = form.sub(lambda found: found["kept"] + MASK, text)
    return text


def command_text(spec: Mapping[str, Any] | None, characters: int = ROW_CHARACTERS) -> str:
    """Return what an action runs in one line, masked: its command, ``POST target/path``, or its kind and cost.

    ``spec`` is the request as it was submitted; without one the text is empty.
    """
    if not spec:
        return ""
    text = " ".join(masked(_whole(spec)).split())
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def command_block(spec: Mapping[str, Any] | None, characters: int = PAGE_CHARACTERS) -> str:
    """Return the same with its lines kept, cut at ``characters``, and how many are left out."""
    text = masked(_whole(spec)) if spec else ""
    left = len(text) - characters
    return text if left <= 0 else f"{text[:characters]}\n… {left} characters are left out"


def variables(spec: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield the variables of a command, or the headers of a call, with secrets masked."""
    given = spec or {}
    exec_, call = given.get("exec") or {}, given.get("call") or {}
    for name, value in sorted({**(exec_.get("env") or {}), **(call.get("headers") or {})}.items()):
        yield name, MASK if is_secret_name(name) else masked(str(value))


def _whole(spec: Mapping[str, Any]) -> str:
    exec_, call = spec.get("exec"), spec.get("call")
    if isinstance(exec_, Mapping):
        words = [str(word) for word in exec_.get("command") or ()]
        if (
            len(words) == 3
            and words[0] in ("sh", "bash", "/bin/sh", "/bin/bash")
            and words[1] == "-c"
        ):
            return words[2]
        if words:
            return words[0] if len(words) == 1 else shlex.join(words)
        session = exec_.get("session")
        return f"continue session {session}" if session else ""
    if isinstance(call, Mapping):
        return f"{call.get('method') or 'POST'} {call.get('target') or ''}{call.get('path') or ''}"
    cost = ", ".join(
        f"{name} {counts}" for name, counts in sorted((spec.get("cost") or {}).items())
    )
    return f"{spec.get('kind') or 'action'} of {cost}" if cost else str(spec.get("kind") or "")
