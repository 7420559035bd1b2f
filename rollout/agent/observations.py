"""Observations: what a model sees of a tool's output. Pure, and linear in the length of what it is given.

Rules
1. A long one is cut in its middle, and a note there says how much is missing. No character is cut.
2. Output of a terminal is its text: without escape sequences, each line as it was at last.
"""

from __future__ import annotations

import re
from typing import Final

MAX_CHARACTERS: Final = 40_000
#: Sequences that move the cursor, colour, or name a window; single characters that are no text.
_SEQUENCES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI
    r"|\x1b[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC and other strings
    r"|\x1b[ -/]*[0-~]"
    r"|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]"
)


def cut_observation(text: str, most: int = MAX_CHARACTERS) -> str:
    """Return a text whose middle is left out where it has more than ``most`` characters."""
    if len(text) <= most:
        return text
    head = most // 2
    tail = len(text) - (most - head)
    note = f"\n[{tail - head} of {len(text)} characters are left out here]\n"
    return text[:head] + note + text[tail:]


def terminal_text(output: str) -> str:
    """Return what a terminal shows of output, line by line."""
    text = _SEQUENCES.sub("", output)
    return "\n".join(map(_shown, text.split("\n")))


def _shown(line: str) -> str:
    """Return a line as it was at last: a carriage return begins it again, a backspace takes a character back."""
    line = line.rstrip("\r").rpartition("\r")[2]
    if "\b" not in line:
        return line
    shown: list[str] = []
    for each in line:
        if each != "\b":
            shown.append(each)
        elif shown:
            shown.pop()
    return "".join(shown)
