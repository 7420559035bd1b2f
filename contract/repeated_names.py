"""Names that appear twice in one JSON object: readers disagree which value counts, so both are refused.

Decoders keep the last value in silence. A proxy or a filter in front that keeps the first one would
judge another request than the one that runs.

`repeated_name` is on the path of every submission. It splits the text behind its names, which is one
pass in C, and counts the distinct names of all objects together; only where a name appears twice in the
whole text, or is written in an unusual way, is the text parsed once more to see whether it is twice in
*one* object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

#: Between a name and its colon; no common encoder writes one.
_GAP: Final = re.compile(rb'"[ \n\t\r]')


class _Repeated(Exception):
    """Carries the name."""


def repeated_name(text: bytes) -> str | None:
    """Return a name that one object of ``text`` has twice; None when there is none.

    ``text`` is valid JSON, in UTF-8. Raises RecursionError when it is nested too deeply to be sure.
    """
    plain, escaped = text, b"\\" in text
    if escaped:
        # From the left, as they were written: \\ first, so that \" is an escaped quote. What is
        # left of a name only decides whether the text is parsed.
        plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    pieces = plain.split(b'":')
    names = {piece.rpartition(b'"')[2] for piece in pieces}
    # A name with an escape may be equal to one without.
    unusual = len(names) < len(pieces) or (escaped and b"\\" in b"".join(names))
    if unusual or _GAP.search(plain):
        return _parsed(text)
    return None


def _parsed(text: bytes) -> str | None:
    try:
        json.loads(text, object_pairs_hook=_check, parse_int=_nothing, parse_float=_nothing)
    except _Repeated as found:
        return str(found)
    return None


def _check(members: Sequence[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in members:
        if name in seen:
            raise _Repeated(name)
        seen.add(name)


def _nothing(_: str) -> None:
    """Return no number: its value does not matter, and a long one takes long."""
