"""Readers of timed requests: Mooncake, Bailian, Azure, and our own CSV.

| format | source of the schema | times |
|---|---|---|
| mooncake | Mooncake (FAST'25), released traces | ``timestamp`` in milliseconds from the beginning |
| bailian | Qwen-Bailian usage traces | ``timestamp`` in seconds from the beginning, beside ``chat_id`` |
| azure | Azure public dataset, LLM inference traces 2023 and 2024 | ``TIMESTAMP``: ISO 8601, UTC where it names no zone |
| requests | `simulator.llm_trace` | ``t_ms`` in milliseconds |

Requests of several files are merged by their times. Tokens are whole numbers from 0 to `MOST_TOKENS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from simulator.foreign.lines import (
    count_field,
    decoded,
    each_line,
    json_object,
    number_field,
    number_text,
    numbered_lines,
    shown,
)
from simulator.foreign.modelled import Modelled
from simulator.foreign.trace import BadLines, Trace, in_order
from simulator.llm_trace import COLUMNS, MOST_TOKENS, LlmRequest, read_requests
from tangram_client.traces.recording import TraceError

#: They stay in memory, some 150 bytes each; no simulation plays as many.
MOST_REQUESTS: Final = 5_000_000
MOONCAKE_MEMBERS: Final = ("timestamp", "input_length", "output_length")
AZURE_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_NO_PREFIXES: Final = "hash_ids are not read: simulations share no prefixes of prompts"


def read_mooncake(paths: Sequence[Path], bad: BadLines, _: Modelled) -> Trace:
    """Read Mooncake's traces. Raises TraceError."""
    return _read(
        "mooncake", paths, bad, lambda path: each_line(path, _request(0.001), bad), (_NO_PREFIXES,)
    )


def read_bailian(paths: Sequence[Path], bad: BadLines, _: Modelled) -> Trace:
    """Read Bailian's traces. Raises TraceError."""
    assumed = _NO_PREFIXES, "turns of one chat_id are independent requests"
    return _read("bailian", paths, bad, lambda path: each_line(path, _request(1.0), bad), assumed)


def read_azure(paths: Sequence[Path], bad: BadLines, _: Modelled) -> Trace:
    """Read Azure's traces; other columns are not read. Raises TraceError."""
    layout = CsvLayout(AZURE_COLUMNS, _instant)
    return _read("azure", paths, bad, lambda path: layout.rows(path, bad), ())


def read_own_requests(paths: Sequence[Path], bad: BadLines, _: Modelled) -> Trace:
    """Read CSVs in the layout of `simulator.llm_trace`, as strictly as it does. Raises TraceError."""
    layout = CsvLayout(COLUMNS, lambda text, where: number_text(text, COLUMNS[0], where) / 1000)
    found = [
        request
        for path in paths
        for request in (layout.rows(path, bad) if bad.skip else read_requests(path))
    ]
    # Times begin where the file says: a simulation of it has the same bytes as ever.
    found.sort(key=lambda request: request.at_seconds)
    return Trace(
        source="", format="requests", requests=tuple(found),
        skipped=bad.count, complaints=tuple(bad.examples),
    )  # fmt: skip


def _read(
    name: str,
    paths: Sequence[Path],
    bad: BadLines,
    requests_of: Callable[[Path], Iterator[LlmRequest]],
    assumed: tuple[str, ...],
) -> Trace:
    found: list[LlmRequest] = []
    for path in paths:
        for request in requests_of(path):
            if len(found) == MOST_REQUESTS:
                raise TraceError(f"{path}: there are over {MOST_REQUESTS:,} requests; give a part")
            found.append(request)
    requests, order = in_order(found)
    merged = (f"requests of {len(paths)} files are merged by time",) if len(paths) > 1 else ()
    return Trace(
        source="", format=name, requests=requests, assumed=(*assumed, *order, *merged),
        skipped=bad.count, complaints=tuple(bad.examples),
    )  # fmt: skip


def _request(unit_seconds: float) -> Callable[[str, str], LlmRequest]:
    def parse(text: str, where: str) -> LlmRequest:
        body: Mapping[str, Any] = json_object(text, where)
        at, given, made = MOONCAKE_MEMBERS
        return LlmRequest(
            number_field(body, at, where) * unit_seconds,
            count_field(body, given, where, MOST_TOKENS),
            count_field(body, made, where, MOST_TOKENS),
        )

    return parse


def _instant(text: str, where: str) -> float:
    try:
        at = datetime.fromisoformat(text.strip())
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        seconds = -1.0
    if seconds < 0:
        raise TraceError(
            f"{where}: TIMESTAMP must be a time like 2023-11-16 18:15:46.68, not {shown(text)}"
        )
    return seconds


@dataclass(frozen=True)
class CsvLayout:
    """A CSV with a header, without quotes: time, tokens of the prompt, tokens of the answer."""

    #: Names of the three columns, in that order; they may stand anywhere.
    columns: tuple[str, str, str]
    #: From the text of a time, and where it stands, to seconds.
    seconds: Callable[[str, str], float]

    def rows(self, path: Path, bad: BadLines) -> Iterator[LlmRequest]:
        """Yield the requests of a file. Raises TraceError; a bad header is always an error."""
        places: tuple[int, int, int] | None = None
        width = 0
        for number, line in numbered_lines(path):
            where = f"{path}:{number}"
            try:
                fields = decoded(line, where).split(",")
                if places is None:
                    places, width = self._places(fields, where), len(fields)
                    continue
                request = self._request(fields, places, width, where)
            except TraceError as error:
                if places is None:
                    raise
                bad.take(error)
                continue
            yield request

    def _places(self, header: Sequence[str], where: str) -> tuple[int, int, int]:
        names = [name.strip() for name in header]
        for name in self.columns:
            if name not in names:
                raise TraceError(f"{where}: no column {name} in {shown(','.join(names))}")
        first, second, third = (names.index(name) for name in self.columns)
        return first, second, third

    def _request(
        self, fields: Sequence[str], places: tuple[int, int, int], width: int, where: str
    ) -> LlmRequest:
        if len(fields) != width:
            raise TraceError(f"{where}: {len(fields)} fields, not {width}; cut off?")
        at_seconds = self.seconds(fields[places[0]], where)
        tokens = [
            self._tokens(fields[place], name, where)
            for place, name in zip(places[1:], self.columns[1:], strict=True)
        ]
        return LlmRequest(at_seconds, *tokens)

    @staticmethod
    def _tokens(text: str, name: str, where: str) -> int:
        value = number_text(text, name, where)
        if value % 1 or value > MOST_TOKENS:
            raise TraceError(
                f"{where}: {name} must be a whole number up to {MOST_TOKENS}, not {shown(text)}"
            )
        return int(value)
