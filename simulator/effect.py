"""``python -m simulator.effect``: answers what one verb would have changed in the last minutes, within seconds.

The last minutes are played twice, as they are and with a change that comes into force where the window begins. Questions
come on standard input and answers go to standard output, so that one process, whose start takes longer than most
simulations, answers many. It ends with its parent, which may kill it at any time.

Rules
1. Both runs have the same actions. What a verb ends (`EffectRequest.without_task`, `without_actions`) is left out of
   the second one, and out of the numbers of both.
2. Numbers are over the actions of the window that end in both runs; others are counted as `EffectSide.never`. So
   no mean gets better because slow actions are missing.
3. A run in which nothing more can happen is no error: its remaining actions never end.
"""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import IO, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from domain.decisions import Finish
from domain.errors import InvalidRequest, InvariantViolation
from domain.events import Event
from domain.ids import ActionId
from simulator.compare import Prelude, Scene, prepare
from simulator.effect_request import (
    EffectAnswer,
    EffectRequest,
    EffectResult,
    EffectSide,
)
from simulator.engine import Stalled
from simulator.job import cluster_of, policy_of
from simulator.request import Variant
from simulator.window_rows import WindowWatch, actions_of
from simulator.workloads.recorded import Recorded, parse_journal, recorded
from tangram_client.traces.recording import TraceError

#: When a process ends itself: in a question, long after its parent has given it up, and without one.
MOST_SECONDS: Final = 10
IDLE_SECONDS: Final = 300
MOST_MEMORY_BYTES: Final = 2 * 2**30


class _Run(NamedTuple):
    watch: WindowWatch
    ends_at: float


def play(request: EffectRequest, trace: bytes) -> EffectResult:
    """Play both runs. Raises InvalidRequest and TraceError."""
    entries = parse_journal(trace, "trace")
    window = recorded(entries, counts_from=request.counts_from, guess=True)
    shortened = _without(window, request)
    now = _played(request, request.now, window, request.events_now)
    then = _played(request, request.then, shortened, request.events_then)
    counted = actions_of(shortened, sys.maxsize)
    if not counted:
        raise InvalidRequest("no other action was submitted in this window")
    both = [name for name in counted if name in now.watch.finished and name in then.watch.finished]
    ended = [name for name in window.measured if name in now.watch.finished]
    measured = _acts(ended, window.measured)
    return EffectResult(
        actions=len(counted),
        compared=len(both),
        now=_side(now, counted, both),
        then=_side(then, counted, both),
        measured_mean=float(measured.mean()) if len(ended) else None,
        simulated_mean=float(_acts(ended, now.watch.finished).mean()) if len(ended) else None,
        longest_queue=_longest_queue(window.measured.values(), now.watch.finished.values()),
    )


def _played(
    request: EffectRequest, variant: Variant, window: Recorded, events: Iterable[Event]
) -> _Run:
    """Play the window under ``variant``, whose configuration comes into force where it begins."""
    drained = variant.config.drained_nodes
    config = msgspec.structs.replace(request.now.config, drained_nodes=drained)
    before = msgspec.structs.replace(request.now, config=config)
    prelude = Prelude(
        cluster_of(before, request.machines, request.used),
        policy_of(before), window.begins_at, window.before,
    )  # fmt: skip
    scene = Scene(
        window, cluster_of(variant, request.machines, request.used), prelude=prelude,
        events=tuple(events),
    )  # fmt: skip
    watch = WindowWatch()
    simulation = prepare(scene, policy_of(variant), None, watch)
    try:
        simulation.run()
    except Stalled:
        pass  # rule 3
    return _Run(watch, window.begins_at + request.seconds)


def _without(window: Recorded, request: EffectRequest) -> Recorded:
    """Return the window without the actions of it that the verb ends."""

    def ends(name: ActionId, task: str) -> bool:
        ended = name in request.without_actions or task == request.without_task
        return ended and name not in window.before

    if not (request.without_actions or request.without_task):
        return window
    rollouts = {
        name: [m for m in moves if not ends(m.act.action.id, f"{m.act.action.project}/{m.act.action.task}")]
        for name, moves in window.rollouts.items()
    }  # fmt: skip
    kept = {name: moves for name, moves in rollouts.items() if moves}
    if not kept:
        raise InvalidRequest("no other action was submitted in this window")
    return replace(window, rollouts=kept)


def _acts(names: Collection[ActionId], ends: Mapping[ActionId, Finish]) -> NDArray[np.float64]:
    return np.array([ends[name].timing.act_seconds for name in names], dtype=np.float64)


def _longest_queue(*ends: Iterable[Finish]) -> float:
    return max((each.timing.queue_seconds for some in ends for each in some), default=0.0)


def _side(run: _Run, counted: Mapping[ActionId, int], both: Sequence[ActionId]) -> EffectSide:
    acts = _acts(both, run.watch.finished)
    queues = [run.watch.finished[name].timing.queue_seconds for name in both]
    return EffectSide(
        act_mean=float(acts.mean()) if len(both) else 0.0,
        act_p95=float(np.quantile(acts, 0.95)) if len(both) else 0.0,
        queue_mean=float(np.mean(queues)) if both else 0.0,
        waiting=run.watch.waiting_at(run.ends_at, counted),
        never=sum(name not in run.watch.finished for name in counted),
    )


def answer(asked: bytes, trace: bytes) -> EffectAnswer:
    """Return the effect that is asked for, or what is wrong with the question."""
    try:
        request = msgspec.json.decode(asked, type=EffectRequest)
        return EffectAnswer(play(request, trace))
    except (InvalidRequest, TraceError, InvariantViolation, msgspec.ValidationError) as error:
        return EffectAnswer(problem=" ".join(str(error).split()))


def serve(asked: IO[bytes], answers: IO[bytes]) -> None:
    """Answer questions until there are none: a line with both sizes, then request and trace; an answer is a line."""
    while line := asked.readline():
        signal.alarm(MOST_SECONDS)
        request, trace = (asked.read(int(size)) for size in line.split())
        answers.writelines([msgspec.json.encode(answer(request, trace)), b"\n"])
        answers.flush()
        signal.alarm(IDLE_SECONDS)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    signal.alarm(IDLE_SECONDS)
    serve(sys.stdin.buffer, sys.stdout.buffer)
