"""Lines and fields of a trace, read strictly and within limits.

Errors name the file, the line and the field. A file is not loaded whole, except for one JSON object.
A line that is longer than `MOST_LINE_BYTES` is bad; the rest of it is passed over.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, TypeVar

from simulator.foreign.trace import BadLines
from tangram_client.traces.recording import GZIP, MOST, TraceError

#: A prompt with an answer of a million tokens is shorter.
MOST_LINE_BYTES: Final = 16 * 2**20
#: Of a file that is one JSON object, which is held in memory several times as large.
MOST_DOCUMENT_BYTES: Final = 256 * 2**20
#: Of a file that is read line by line; its requests or steps stay in memory.
MOST_FILE_BYTES: Final = 2**30
#: Characters of a wrong value in an error.
_SHOWN: Final = 40
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_OTHER_ENCODINGS: Final = (b"\xff\xfe", b"\xfe\xff")

T = TypeVar("T")


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each line that is not blank with its number, at most one byte more than allowed of it.

    Raises TraceError when the file cannot be read, is too large, compressed or not UTF-8 as a whole.
    """
    with opened(path, MOST_FILE_BYTES) as file:
        number = 0
        while line := file.readline(MOST_LINE_BYTES + 1):
            number += 1
            whole = line
            while len(line) > MOST_LINE_BYTES and not line.endswith(b"\n"):
                line = file.readline(MOST_LINE_BYTES + 1)
            if number == 1:
                whole = whole.removeprefix(_BYTE_ORDER_MARK)
            if whole.strip():
                yield number, whole


def opened(path: Path, most_bytes: int) -> BufferedReader:
    """Return the file, open for reading. Raises TraceError as `numbered_lines`."""
    try:
        # A named pipe has no size, and could not be read a second time.
        regular = stat.S_ISREG(path.stat().st_mode)
        file = path.open("rb") if regular else None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    if file is None:
        raise TraceError(f"{path}: is no regular file")
    try:
        _check(path, file, most_bytes)
    except TraceError:
        file.close()
        raise
    return file


def _check(path: Path, file: BufferedReader, most_bytes: int) -> None:
    size, begin = os.fstat(file.fileno()).st_size, file.peek(2)
    if size > most_bytes:
        most = most_bytes / 2**20
        raise TraceError(f"{path}: has {size / 2**20:,.0f} MiB, at most {most:,.0f}; give a part")
    if begin.startswith(GZIP):
        raise TraceError(f"{path}: is compressed; give what gunzip makes of it")
    if begin.startswith(_OTHER_ENCODINGS):
        raise TraceError(f"{path}: is UTF-16, not UTF-8; give what iconv makes of it")


def each_line(path: Path, parse: Callable[[str, str], T], bad: BadLines) -> Iterator[T]:
    """Yield ``parse(line, where)`` of each line; bad lines go to ``bad``."""
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        try:
            found = parse(decoded(line, where), where)
        except TraceError as error:
            bad.take(error)
            continue
        yield found


def decoded(line: bytes, where: str) -> str:
    """Return a line as text without its end. Raises TraceError when it is too long or not UTF-8."""
    if len(line) > MOST_LINE_BYTES:
        raise TraceError(f"{where}: the line has more than {MOST_LINE_BYTES // 2**20} MiB")
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise TraceError(f"{where}: not UTF-8 (byte 0x{byte:02x} at {error.start + 1})") from None


def json_object(text: str, where: str) -> Mapping[str, Any]:
    """Return the JSON object that a line is. Raises TraceError."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: not JSON, or cut off ({error})") from None
    if not isinstance(body, Mapping):
        raise TraceError(f"{where}: must be a JSON object, not {shown(body)}")
    return body


def json_document(path: Path) -> Mapping[str, Any]:
    """Return the JSON object that a file is. Raises TraceError with the line where it ends being JSON."""
    with opened(path, MOST_DOCUMENT_BYTES) as file:
        content = file.read().removeprefix(_BYTE_ORDER_MARK)
    try:
        body = json.loads(content.decode())
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TraceError(f"{path}:{line}: not UTF-8") from None
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}:{error.lineno}: not JSON, or cut off ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: not JSON ({error})") from None
    if not isinstance(body, Mapping):
        raise TraceError(f"{path}: must be a JSON object, not {shown(body)}")
    return body


def number_field(
    body: Mapping[str, Any], name: str, where: str, *, default: float | None = None
) -> float:
    """Return a finite number ≥ 0. Raises TraceError naming the field; a missing one has the default."""
    value = body.get(name, default)
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (good and 0 <= value <= MOST):
        raise TraceError(f"{where}: {name} must be a number from 0 to {MOST:g}, not {shown(value)}")
    return float(value)


def count_field(body: Mapping[str, Any], name: str, where: str, most: int) -> int:
    """Return a whole number from 0 to ``most``. Raises TraceError naming the field."""
    value = number_field(body, name, where)
    if value % 1 or value > most:
        raise TraceError(
            f"{where}: {name} must be a whole number up to {most}, not {shown(body[name])}"
        )
    return int(value)


def text_field(body: Mapping[str, Any], name: str, where: str, default: str | None = None) -> str:
    """Return a text. Raises TraceError naming the field; a missing one, or null, has the default."""
    value = body.get(name)
    value = default if value is None else value
    if not isinstance(value, str):
        raise TraceError(f"{where}: {name} must be a text, not {shown(value)}")
    return value


def number_text(text: str, name: str, where: str) -> float:
    """Return the finite number ≥ 0 that a field of a CSV is. Raises TraceError naming the field."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST:
        raise TraceError(f"{where}: {name} must be a number from 0 to {MOST:g}, not {shown(text)}")
    return value


def shown(value: object) -> str:
    """Return a wrong value for an error: one line, shortened."""
    # The whole text of a long value would cost as much as the value.
    text = repr(value[: 2 * _SHOWN]) if isinstance(value, str) else type(value).__name__
    if value is None or isinstance(value, (bool, float)):
        text = repr(value)
    elif isinstance(value, int):
        text = repr(value) if abs(value) < 10**_SHOWN else "a huge number"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
