"""Results of actions, from the bytes of the journal to bounded JSON."""

from __future__ import annotations

from typing import Any, Final

import msgspec

#: Characters of each output stream that a row keeps; the journal's window has all of it.
KEPT_CHARACTERS: Final = 65536


def bounded_result(raw: msgspec.Raw) -> tuple[str, int | None]:
    """Return a reported result (msgpack) as JSON text with its output cut to a bound, and its exit code."""
    result: Any = msgspec.msgpack.decode(raw)
    exit_code = None
    if isinstance(result, dict):
        exit_code = result.get("exit_code")
        for stream in ("stdout", "stderr", "body"):
            text = result.get(stream)
            if isinstance(text, str) and len(text) > KEPT_CHARACTERS:
                result[stream] = text[:KEPT_CHARACTERS]
                result["truncated"] = True
    encoded = msgspec.json.encode(result).decode()
    return encoded, exit_code if isinstance(exit_code, int) else None
