"""Reading of traces of any known format: the format is found by the content, or named.

Files of one call have one format. A folder stands for the trace files in it and below, in the order of their
names, numbers by their value (verl's `2.jsonl` comes before `10.jsonl`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from simulator.foreign.lines import decoded, json_document, numbered_lines
from simulator.foreign.mini_swe_agent import read_mini_swe_agent
from simulator.foreign.modelled import Modelled
from simulator.foreign.own import read_journal_as_recordings, read_recordings_of_ours
from simulator.foreign.requests import (
    AZURE_COLUMNS,
    MOONCAKE_MEMBERS,
    read_azure,
    read_bailian,
    read_mooncake,
    read_own_requests,
)
from simulator.foreign.swe_agent import read_swe_agent
from simulator.foreign.trace import BadLines, Trace, TraceKind
from simulator.foreign.verl import read_verl
from simulator.llm_trace import COLUMNS, LlmRequest
from tangram_client.traces.recording import Recording, TraceError

Read = Callable[[Sequence[Path], BadLines, Modelled], Trace]

#: How the files of a folder end that are traces: runs of agents leave other JSON beside them.
ENDINGS: Final = (".csv", ".jsonl", ".ndjson", ".traj", ".traj.json")
#: Lines that are looked at before a file counts as unknown: the first ones may be bad.
_LOOKED_AT: Final = 20
_MOST_FILES: Final = 100_000


class UnknownFormat(TraceError):
    """A file has none of the known formats."""


@dataclass(frozen=True)
class Format:
    """One format: how a file of it begins, and its reader."""

    name: str
    #: One thing that it holds, for errors.
    unit: str
    read: Read
    #: Members of its objects, or columns of its header.
    has: tuple[str, ...]
    is_csv: bool = False

    def says(self) -> str:
        """Return its name with what it is recognised by."""
        return f"{self.name} ({', '.join(self.has)})"


#: The first that fits is the format: the more specific one of two comes first.
FORMATS: Final = {
    each.name: each
    for each in (
        Format("tangram", "trajectory", read_recordings_of_ours, ("steps",)),
        Format("requests", "request", read_own_requests, COLUMNS, is_csv=True),
        Format("journal", "action", read_journal_as_recordings, ("seq", "events", "decisions")),
        Format("bailian", "request", read_bailian, ("chat_id", *MOONCAKE_MEMBERS)),
        Format("mooncake", "request", read_mooncake, MOONCAKE_MEMBERS),
        Format("azure", "request", read_azure, AZURE_COLUMNS, is_csv=True),
        Format("swe-agent", "trajectory", read_swe_agent, ("trajectory",)),
        Format(
            "mini-swe-agent", "trajectory", read_mini_swe_agent, ("messages", "trajectory_format")
        ),
        Format("verl", "sample", read_verl, ("input", "output", "score")),
    )
}


def read_sources(
    sources: Sequence[Path],
    *,
    format_name: str | None = None,
    skip_bad: bool = False,
    modelled: Modelled | None = None,
) -> Trace:
    """Read files and folders of one format.

    Raises TraceError naming the file, the line and the field at fault, or that the format is unknown, mixed
    or holds nothing.
    """
    paths = list(_files(sources))
    found = _format(paths, format_name)
    trace = found.read(paths, BadLines(skip=skip_bad), modelled or Modelled())
    name = ", ".join(str(source) for source in sources)
    if not trace.recordings and not trace.requests:
        where = f"{name}:1" if list(sources) == paths and len(paths) == 1 else name
        skipped = f"; {trace.skipped} bad lines, as {trace.complaints[0]}" if trace.skipped else ""
        raise TraceError(f"{where}: holds no {found.unit} of format {found.name}{skipped}")
    return replace(trace, source=name)


def read_for_simulation(path: Path, own: str) -> Trace:
    """Read a trace for a simulation. Raises TraceError.

    A file of no known format is read as format ``own``, whose error names the line and the field.
    """
    try:
        trace = read_sources([path])
    except UnknownFormat:
        trace = read_sources([path], format_name=own)
    if len(trace.requests) == 1:
        raise TraceError(f"{path}: holds one request; a simulation needs the gaps between several")
    return trace


def recordings_of(path: Path) -> tuple[list[Recording], tuple[str, ...]]:
    """Return the recordings of a trace of any format, and what was assumed. Raises TraceError."""
    trace = read_for_simulation(path, "tangram")
    if trace.kind is not TraceKind.RECORDINGS:
        raise TraceError(_other_kind(trace, TraceKind.RECORDINGS))
    return list(trace.recordings), trace.notes()


def requests_of(path: Path) -> tuple[list[LlmRequest], tuple[str, ...]]:
    """Return the requests of a trace of any format, and what was assumed. Raises TraceError."""
    trace = read_for_simulation(path, "requests")
    if trace.kind is not TraceKind.REQUESTS:
        raise TraceError(_other_kind(trace, TraceKind.REQUESTS))
    return list(trace.requests), trace.notes()


def _other_kind(trace: Trace, wanted: TraceKind) -> str:
    return f"{trace.source}: holds {trace.kind.plural}, not {wanted.plural} (format {trace.format})"


def _files(sources: Sequence[Path]) -> Iterator[Path]:
    for source in sources:
        if not source.is_dir():
            yield source
            continue
        below = (
            path for path in source.rglob("*") if path.name.endswith(ENDINGS) and path.is_file()
        )
        found = sorted(islice(below, _MOST_FILES), key=_natural)
        if not found:
            raise TraceError(f"{source}: holds no file that ends in {', '.join(ENDINGS)}")
        yield from found


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a key by which numbers in names are ordered by their value."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _format(paths: Sequence[Path], name: str | None) -> Format:
    if name is not None:
        return FORMATS[name]
    found = detect(paths[0])
    for path in paths[1:]:
        # A second look at whole documents would parse each of them twice.
        other = _by_lines(path) or (found if path.suffix == paths[0].suffix else detect(path))
        if other is not found:
            raise TraceError(
                f"{path}: is {other.name}, but {paths[0]} is {found.name}; give one format at a time"
            )
    return found


def detect(path: Path) -> Format:
    """Return the format of a file by its content. Raises TraceError, UnknownFormat when it is none."""
    found = _by_lines(path) or _of_members(_document(path))
    if found is None and path.suffix == ".traj":
        found = FORMATS["swe-agent"]  # whose reader says what is wrong with it
    if found is None:
        known = "; ".join(each.says() for each in FORMATS.values())
        raise UnknownFormat(f"{path}: unknown format; known are {known}. --format names one")
    return found


def _by_lines(path: Path) -> Format | None:
    for number, line in islice(numbered_lines(path), _LOOKED_AT):
        try:
            text = decoded(line, f"{path}:{number}").strip()
            found = _of_members(json.loads(text)) if text.startswith("{") else _of_header(text)
        except (ValueError, RecursionError):
            continue  # bad, or the beginning of one object in many lines
        if found is not None:
            return found
    return None


def _document(path: Path) -> object:
    try:
        return json_document(path)
    except TraceError:
        return None


def _of_members(body: object) -> Format | None:
    if not isinstance(body, Mapping):
        return None
    members: Mapping[str, Any] = body
    return _first(lambda each: not each.is_csv and all(name in members for name in each.has))


def _of_header(text: str) -> Format | None:
    columns = {name.strip() for name in text.split(",")}
    return _first(lambda each: each.is_csv and columns.issuperset(each.has))


def _first(fits: Callable[[Format], bool]) -> Format | None:
    return next((each for each in FORMATS.values() if fits(each)), None)
