"""A window of a journal, live or simulated, as a workload: what if another policy had served it?

| parameter | value | source |
|---|---|---|
| actions, their declarations, their trajectories | as submitted | the journal |
| T_ori | measured execution × E(m) · m of the granted units, E as declared | the journal |
| lease | kept for as long as it was held | the journal |
| think time | from the answer to one action to the next submission of its trajectory | the journal |
| first action of a trajectory; action without one | when it came | the journal |

Left out and counted: actions that did not end in the window (their duration is unknown;
a what-if estimates it), and the overlap of actions that one trajectory had open at once: they are played one
after the other. An action that was resized while it ran counts with the units of its grant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import IO, Final

import msgspec

from domain.action import Action, Outcome
from domain.codec import JournalEntry
from domain.decisions import Decision, Finish, Grant
from domain.errors import InvalidRequest
from domain.events import ActionSubmitted, Event
from domain.ids import ActionId
from domain.journal_reducer import JournalReducer, on
from scheduler.core.machine import Machine
from simulator.overheads import Overheads
from simulator.work import ActionWork, granted_milli
from simulator.workloads.program import Act, Program, SimulatedTrajectory, Think
from tangram_client.traces.recording import TraceError, read_file

#: What ran to an end of its own, or to its time limit.
_KNOWN: Final = frozenset({Outcome.COMPLETED, Outcome.TIMEOUT, Outcome.OOM_KILLED})
_decode_entry: Final = msgspec.json.Decoder(JournalEntry).decode


@dataclass
class _Past:
    """One action, as the journal has it."""

    action: Action
    submitted_at: float
    #: When the scheduler took it in.
    taken_at: float = 0.0
    grant: Grant | None = None
    finish: Finish | None = None
    finished_at: float = 0.0

    def work(self) -> ActionWork | None:
        """Return the work that explains what was measured; None when it is unknown."""
        if self.grant is None or self.finish is None or self.finish.outcome not in _KNOWN:
            return None
        work = self.work_of(0.0)
        milli = granted_milli(self.grant.allocations, work.key)
        seconds = self.finish.timing.execution_seconds
        return msgspec.structs.replace(work, base_seconds=seconds * work.rate(milli))

    def work_of(self, base_seconds: float) -> ActionWork:
        """Return work that takes so long with one unit."""
        key = self.action.key or ("cpu" if "cpu" in self.action.cost else _only(self.action))
        return ActionWork(base_seconds, self.action.elasticity, key)

    @property
    def alike(self) -> tuple[object, ...]:
        """Key of actions with similar durations."""
        action = self.action
        target = action.call.target if action.call is not None else ""
        return action.project, action.task, action.kind, action.family, target


def _only(action: Action) -> str:
    """Return the resource that an action without cores is long or short by."""
    return "gpu" if "gpu" in action.cost else "cpu"


@dataclass(frozen=True)
class _Move:
    """One action to submit, so long after the answer to the one before."""

    think_seconds: float
    act: Act


@dataclass(frozen=True)
class Recorded:
    """The workload: one step with everything that the window holds."""

    rollouts: dict[str, list[_Move]]
    #: Actions that did not run to their end, and those that overlapped one of their trajectory.
    left_out: int = 0
    overlapping: int = 0
    train_seconds: float = 0.0
    project: str = "default"
    task: str = "recorded"
    #: Actions that had not ended: played as long as others like them took.
    guessed: int = 0
    #: Seconds after the beginning at which begins what is asked for, and what only leads up to it.
    begins_at: float = 0.0
    before: frozenset[ActionId] = frozenset()
    #: Measured ends of the actions that count, of those that had ended.
    measured: dict[ActionId, Finish] = field(default_factory=dict)

    @property
    def actions(self) -> int:
        """Number of played actions."""
        return sum(map(len, self.rollouts.values()))

    def steps(self) -> Iterator[Sequence[SimulatedTrajectory]]:
        """Yield the one step."""
        yield [_rollout(name, moves) for name, moves in self.rollouts.items()]

    def resources(self) -> set[str]:
        """Return every resource that some action takes."""
        return {
            resource
            for moves in self.rollouts.values()
            for move in moves
            for resource in move.act.action.cost
        }


def _rollout(name: str, moves: Sequence[_Move]) -> SimulatedTrajectory:
    first = moves[0].act.action
    return SimulatedTrajectory(first.trajectory or name, partial(_play, moves), first.project)


def _play(moves: Sequence[_Move]) -> Program:
    for move in moves:
        yield Think(move.think_seconds)
        yield move.act


class _JournalReader(JournalReducer):
    """Declaration, grant and end of each action that was submitted in the window."""

    def __init__(self) -> None:
        super().__init__()
        self.past: dict[ActionId, _Past] = {}
        self._at = 0.0

    def begin(self, entry: JournalEntry) -> None:
        self._at = entry.at

    @on(ActionSubmitted)
    def _submitted(self, event: ActionSubmitted) -> None:
        submitted_at = event.at - event.lag_seconds
        self.past.setdefault(event.action.id, _Past(event.action, submitted_at, event.at))

    @on(Grant)
    def _granted(self, grant: Grant) -> None:
        if (known := self.past.get(grant.action_id)) is not None:
            known.grant = grant

    @on(Finish)
    def _finished(self, finish: Finish) -> None:
        if (known := self.past.get(finish.action_id)) is not None:
            known.finish, known.finished_at = finish, self._at


def recorded(
    entries: Iterable[JournalEntry],
    overheads: Overheads | None = None,
    *,
    counts_from: float | None = None,
    guess: bool = False,
) -> Recorded:
    """Return the workload that ``entries`` show.

    ``overheads`` are those it will be simulated with: their share of the gaps between actions comes
    on top again. ``counts_from``: journal time; what was taken in before only leads up to the window.
    ``guess``: what had not ended is taken to last as long, on the mean, as what did of the same task, kind,
    family and target; else it is left out.
    Raises InvalidRequest when no action ran to its end in the window.
    """
    hops = overheads or Overheads()
    hop_seconds = hops.pass_seconds + hops.answer_seconds
    reader = _JournalReader()
    for entry in entries:
        reader.reduce(entry)
    past = sorted(reader.past.values(), key=lambda each: each.submitted_at)
    rollouts: dict[str, list[_Move]] = {}
    answered: dict[str, float] = {}
    left_out = overlapping = guessed = 0
    before: set[ActionId] = set()
    measured: dict[ActionId, Finish] = {}
    typical = _typical(past) if guess else {}
    for each in past:
        work = each.work()
        if work is None and each.finish is None and each.alike in typical:
            work = each.work_of(typical[each.alike])
            each.finished_at = each.submitted_at  # the next of its trajectory came after that
            guessed += 1
        if work is None:
            left_out += 1
            continue
        name = each.action.trajectory_key or f"alone/{each.action.id}"
        gap = each.submitted_at - answered.get(name, past[0].submitted_at)
        if name in answered:
            overlapping += gap < 0
            gap -= hop_seconds
        answered[name] = each.finished_at
        # Pools are what the simulated cluster has, not those of the journal.
        act = Act(msgspec.structs.replace(each.action, pool=""), work)
        rollouts.setdefault(name, []).append(_Move(max(0.0, gap), act))
        if counts_from is not None and each.taken_at < counts_from:
            before.add(each.action.id)
        elif each.finish is not None:
            measured[each.action.id] = each.finish
    if len(before) == sum(map(len, rollouts.values())):
        raise InvalidRequest("no action ran to its end in this window")
    first = past[0]
    return Recorded(
        rollouts, left_out, overlapping, project=first.action.project, guessed=guessed,
        begins_at=0.0 if counts_from is None else max(0.0, counts_from - first.submitted_at),
        before=frozenset(before), measured=measured,
    )  # fmt: skip


def _typical(past: Iterable[_Past]) -> dict[tuple[object, ...], float]:
    """Return how long actions that are alike took on the mean, T_ori."""
    known: defaultdict[tuple[object, ...], list[float]] = defaultdict(list)
    for each in past:
        work = each.work()
        if work is not None:
            known[each.alike].append(work.base_seconds)
    return {alike: fmean(seconds) for alike, seconds in known.items()}


class JournalWriter:
    """Watches a simulation and writes each pass as a line that `read_journal` reads."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._passes = 0

    def __call__(self, machine: Machine, events: list[Event], decisions: list[Decision]) -> None:
        """Write one pass."""
        self._passes += 1
        at = machine.state.now
        entry = JournalEntry(self._passes, 1, at, 0.0, "", events, decisions)
        self._file.write(msgspec.json.encode(entry) + b"\n")


def read_journal(path: Path) -> list[JournalEntry]:
    """Read journal entries, one JSON object per line, by rising time.

    Raises TraceError: one line that names the file, the line and what is wrong.
    """
    return parse_journal(read_file(path), str(path))


def parse_journal(content: bytes, name: str) -> list[JournalEntry]:
    """Return the journal entries of ``content``, which errors call ``name``. Raises TraceError."""
    entries: list[JournalEntry] = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        entry = parse_entry(line, f"{name}:{number}")
        if entries and entry.at < entries[-1].at:
            raise TraceError(f"{name}:{number}: {entry.at:g} s comes before the line above it")
        entries.append(entry)
    if not entries:
        raise TraceError(f"{name}:1: holds no journal entry")
    return entries


def parse_entry(line: bytes, where: str) -> JournalEntry:
    """Return the journal entry of one line. Raises TraceError starting with ``where``."""
    try:
        return _decode_entry(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{where}: not a journal entry ({error})") from None
