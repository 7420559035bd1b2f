"""Recorded LLM requests: how long models think, for workloads that no recording of tools exists of.

CSV whose header begins with ``t_ms,input_tokens,output_tokens`` (the Mooncake conversation trace, reduced to figures),
by rising time; columns behind these are not read. Read as strictly as `traces`, or made up.

Made up: interarrivals exponential, 0.3 s; input tokens lognormal, median 7,000, sigma 0.9; output
tokens lognormal, median 320, sigma 0.6, at most 2,000. Assumed, close to that trace.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from tangram_client.traces.recording import TraceError, read_file

COLUMNS: Final = ("t_ms", "input_tokens", "output_tokens")


#: No request is longer: what is, is another unit or a broken number.
MOST_TOKENS: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class LlmRequest:
    """One request to a model."""

    at_seconds: float
    input_tokens: int
    output_tokens: int


def read_requests(path: Path) -> list[LlmRequest]:
    """Read a trace. Raises TraceError: one line that names the file, the line and what is wrong."""
    return parse_requests(read_file(path), str(path))


def parse_requests(content: bytes, source: str) -> list[LlmRequest]:
    """Read the content of a trace, which errors call ``source``; raises as `read_requests`."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TraceError(f"{source}:{line}: not UTF-8") from None
    header = tuple(lines[0].split(",")) if lines else ()
    if header[: len(COLUMNS)] != COLUMNS:
        raise TraceError(
            f"{source}:1: the first columns must be {','.join(COLUMNS)}, not {','.join(header)}"
        )
    requests = list(_rows(source, lines[1:], len(header)))
    if not content.endswith(b"\n"):
        # A number that lost its last digits is a number.
        raise TraceError(f"{source}:{len(lines)}: the last line has no end; cut off?")
    if not requests:
        raise TraceError(f"{source}:1: holds no request")
    return requests


def _rows(source: str, lines: list[str], columns: int) -> Iterator[LlmRequest]:
    before = 0.0
    for number, line in enumerate(lines, start=2):
        where = f"{source}:{number}"
        if not line:
            continue
        row = line.split(",")
        if len(row) != columns:
            raise TraceError(f"{where}: {len(row)} fields, not {columns}; cut off?")
        numbers = [_number(text, name, where) for name, text in zip(COLUMNS, row, strict=False)]
        if numbers[0] < before:
            raise TraceError(f"{where}: {numbers[0]:g} ms comes before the line above it")
        before = numbers[0]
        if any(each % 1 or each > MOST_TOKENS for each in numbers[1:]):
            raise TraceError(f"{where}: tokens are counted in whole numbers up to {MOST_TOKENS}")
        yield LlmRequest(numbers[0] / 1000, int(numbers[1]), int(numbers[2]))


def _number(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise TraceError(f"{where}: {name} must be a number ≥ 0, not {text[:40]!r}")
    return value


def make_requests(count: int, seed: int) -> list[LlmRequest]:
    """Make ``count`` requests up, the same ones for the same seed."""
    chooser = Random(f"llm/{seed}")
    at_seconds, requests = 0.0, []
    for _ in range(count):
        at_seconds += chooser.expovariate(1 / 0.3)
        taken = round(7000 * math.exp(0.9 * chooser.gauss(0.0, 1.0)))
        given = round(min(2000.0, 320 * math.exp(0.6 * chooser.gauss(0.0, 1.0))))
        requests.append(LlmRequest(at_seconds, taken, given))
    return requests
