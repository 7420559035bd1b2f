"""The inputs of an evaluation: traces of any known format, or made up ones."""

from __future__ import annotations

from pathlib import Path

from benchmarks.evaluation.cases import Inputs
from domain.errors import InvalidRequest
from simulator.foreign.reading import read_for_simulation
from simulator.foreign.trace import Trace, TraceKind
from simulator.llm_trace import make_requests
from simulator.options import RECORDINGS, REQUESTS
from simulator.traces import make_recordings


def read_inputs(trace: Path | None, requests: Path | None) -> tuple[Inputs, tuple[str, ...]]:
    """Return the inputs, and what was assumed of them as sentences.

    ``trace`` may hold either kind; what is not given is made up. Raises TraceError, and InvalidRequest when
    both hold the same kind.
    """
    found: dict[TraceKind, Trace] = {}
    for path, own in ((trace, "tangram"), (requests, "requests")):
        if path is None:
            continue
        read = read_for_simulation(path, own)
        if read.kind in found:
            raise InvalidRequest(
                f"{path}: holds {read.kind.plural}, as {found[read.kind].source} does; give one of each kind"
            )
        found[read.kind] = read
    recorded, timed = found.get(TraceKind.RECORDINGS), found.get(TraceKind.REQUESTS)
    inputs = Inputs(
        list(recorded.recordings) if recorded else make_recordings(RECORDINGS, 0),
        list(timed.requests) if timed else make_requests(REQUESTS, 0),
        f"trajectories {_described(recorded)}, LLM requests {_described(timed)}",
    )
    return inputs, tuple(note for each in found.values() for note in each.notes())


def _described(trace: Trace | None) -> str:
    """Return where an input is from, with all that a reader of its figures should know."""
    if trace is None:
        return "made up"
    notes = "; ".join(trace.notes())
    return Path(trace.source).name + (f" (format {trace.format}: {notes})" if notes else "")
