"""``python -m simulator.job FOLDER``: play one request in a process of its own.

The folder holds ``request.json`` (`simulator.request`) and, unless the input is made up, ``trace``.
Progress goes to standard output, one JSON object a line; what came out into ``result.json``, which
is there once it is whole. Bad input is one line on standard error and exit code 2. Its parent may kill
it at any time: it holds nothing but the folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from domain.errors import InvalidRequest, InvariantViolation
from domain.inventory import ResourceInventory
from domain.resources import MILLI
from simulator.cluster import GIB, POOL, Cluster
from simulator.compare import BASELINES, Prelude, Progress, Scene, run
from simulator.engine import Stalled
from simulator.figures import Figure, Series, interval, plot
from simulator.options import build
from simulator.request import MOST_ACTIONS, SimulationRequest, Variant, read_request
from simulator.result import WINDOWS, Result
from simulator.window_rows import ActionRows, WindowWatch, actions_of, rows_of
from simulator.workloads.deep_search import LIMITS
from simulator.workloads.recorded import Recorded, read_journal, recorded
from tangram_client.traces.recording import TraceError

#: (policy, seed, finished actions of that run, actions of each run)
Tell = Callable[[str, int, int, int], None]
#: Points of the plot over time; `WINDOWS` is a multiple of it.
POINTS: Final = 10
BAD_INPUT: Final = 2


class Played(msgspec.Struct, frozen=True):
    """One policy with one seed; all of it but ``wall_seconds`` is simulated."""

    policy: str
    seed: int
    wall_seconds: float
    result: Result
    #: Of a recorded window, but for baselines.
    rows: ActionRows | None = None


class Plot(msgspec.Struct, frozen=True):
    """A picture of a comparison."""

    title: str
    svg: str


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a request."""

    simulated: bool = True
    actions: int
    #: Of a recorded window: actions that were played to lead up to it,
    before: int = 0
    #: that could not be played, whose length is guessed since they had not ended, and that overlapped.
    left_out: int = 0
    guessed: int = 0
    overlapping: int = 0
    #: Of a recorded window: what was measured, row by row as in its runs.
    measured: ActionRows | None = None
    runs: tuple[Played, ...]
    plots: tuple[Plot, ...]


class _PlayedRun(NamedTuple):
    """One policy, or one variant, with one seed."""

    name: str
    seed: int
    scene: Scene
    policy: str


def play(request: SimulationRequest, trace: Path | None, tell: Tell) -> JobResult:
    """Simulate every policy with every seed. Raises InvalidRequest or TraceError."""
    runs: list[Played] = []
    todo = [run for seed in request.seeds for run in _runs(request, trace, seed)]
    workload = todo[0].scene.workload
    window = workload if isinstance(workload, Recorded) else None
    rows = actions_of(window) if window else {}
    for name, seed, scene, policy in todo:
        total = _counted(scene)
        asked = scene.workload.actions * len(todo)
        if asked > MOST_ACTIONS:
            raise InvalidRequest(
                f"{asked:,} actions over all policies and seeds; at most {MOST_ACTIONS:,}"
            )
        tell(name, seed, 0, total)
        watch = WindowWatch() if rows and policy not in BASELINES else None
        try:
            timed = run(scene, policy, _progress_of(tell, name, seed, total), watch)
        except Stalled as error:
            raise InvalidRequest(f"{name}: some actions would wait for ever ({error})") from None
        tell(name, seed, timed.result.whole.actions, timed.result.whole.actions)
        found = rows_of(rows, watch.finished) if watch else None
        runs.append(Played(name, seed, timed.wall_seconds, timed.result, found))
    return JobResult(
        actions=_counted(todo[0].scene),
        before=len(window.before) if window else 0,
        left_out=window.left_out if window else 0,
        guessed=window.guessed if window else 0,
        overlapping=window.overlapping if window else 0,
        measured=rows_of(rows, window.measured) if window else None,
        runs=tuple(runs),
        plots=tuple(Plot(figure.title, plot(figure)) for figure in figures(runs, _axis(request))),
    )


def _axis(request: SimulationRequest) -> str:
    """Return what the runs of a request differ in."""
    return "configuration" if request.variants else "policy"


def _counted(scene: Scene) -> int:
    before = scene.prelude.actions if scene.prelude is not None else ()
    return scene.workload.actions - len(before)


def _progress_of(tell: Tell, name: str, seed: int, total: int) -> Progress:
    return lambda _, done: tell(name, seed, done, total)


def _runs(request: SimulationRequest, trace: Path | None, seed: int) -> list[_PlayedRun]:
    plain = [name for name in request.policies if name not in request.variants]
    scene = _scene(request, trace, seed) if plain else None
    found = [_PlayedRun(name, seed, scene, name) for name in plain if scene is not None]
    if request.variants:
        if trace is None or request.workload != "recorded":
            raise InvalidRequest("variants are played with a recorded window")
        window = recorded(read_journal(trace), counts_from=request.counts_from, guess=True)
        names = [name for name in request.policies if name in request.variants]
        first = request.variants[names[0]]
        for name in names:
            variant = request.variants[name]
            prelude = _prelude(first, variant, request, window)
            scene = Scene(
                window,
                cluster_of(variant, request.machines, request.used),
                seed=seed,
                prelude=prelude,
            )
            found.append(_PlayedRun(name, seed, scene, policy_of(variant)))
    return found


def _prelude(
    first: Variant, variant: Variant, request: SimulationRequest, window: Recorded
) -> Prelude:
    """Return how ``variant`` begins: as the first one, on the nodes that it has itself.

    A node that it drains was never used: what had its environment there would wait for it for ever.
    """
    drained = variant.config.drained_nodes
    config = msgspec.structs.replace(first.config, drained_nodes=drained)
    begun = msgspec.structs.replace(first, config=config)
    return Prelude(
        cluster_of(begun, request.machines, request.used),
        policy_of(first),
        window.begins_at,
        window.before,
    )


def policy_of(variant: Variant) -> str:
    """Return the policy of a variant's one pool."""
    return variant.config.pools[POOL].policy


def cluster_of(
    variant: Variant,
    machines: dict[str, dict[str, ResourceInventory]],
    used: dict[str, tuple[int, ...]],
) -> Cluster:
    """Return the cluster that a variant declares."""
    config = variant.config
    return Cluster(
        variant.nodes,
        variant.cores,
        variant.memory_gib * GIB,
        apis={name: milli // MILLI for name, milli in config.resources.items()},
        gpus=variant.gpus,
        gpu_memory_bytes=variant.gpu_memory_bytes,
        declared=config,
        restores=variant.restores,
        machines=machines,
        used=used,
    )


def _scene(request: SimulationRequest, trace: Path | None, seed: int) -> Scene:
    known: dict[str, Any] = {
        "trace": trace, "batch": request.batch, "steps": request.steps, "group": 8,
        "nodes": request.nodes, "cores": request.cores, "memory_gib": request.memory_gib,
        "rewards": request.rewards, "reward_scale": 1.0, "units": 32, "declared_ratio": 1.0,
        "malleable": request.malleable, "limits": tuple(request.limits.items()),
        **{f"{name.partition(':')[2]}_limit": units for name, units in LIMITS.items()},
    }  # fmt: skip
    return build(request.workload, failures=0.0, seed=seed, **known)


def figures(runs: Sequence[Played], axis: str = "policy") -> list[Figure]:
    """Return the plots of a comparison of ``axis``; intervals are over its seeds."""
    by_policy: dict[str, list[Result]] = {}
    for each in runs:
        by_policy.setdefault(each.policy, []).append(each.result)
    return [
        _bars("Where the time goes (simulated)", "mean seconds of an action", axis, by_policy, {
            "queue": lambda result: result.whole.queue.mean,
            "overhead": lambda result: result.whole.overhead.mean,
            "execution": lambda result: result.whole.execution.mean,
        }),
        _bars("How long actions take (simulated)", "ACT in seconds", axis, by_policy, {
            "p50": lambda result: result.whole.act.p50,
            "p95": lambda result: result.whole.act.p95,
            "p99": lambda result: result.whole.act.p99,
        }),
        _over_time(by_policy),
    ]  # fmt: skip


def _bars(
    title: str,
    y: str,
    x: str,
    by_policy: dict[str, list[Result]],
    measures: dict[str, Callable[[Result], float]],
) -> Figure:
    series = tuple(
        Series(name, tuple(
            (policy, interval(map(measure, results))) for policy, results in by_policy.items()
        ))
        for name, measure in measures.items()
    )  # fmt: skip
    return Figure(id="bars", title=title, x=x, y=y, series=series, kind="bars")


def _over_time(by_policy: dict[str, list[Result]]) -> Figure:
    series = tuple(
        Series(policy, tuple(
            (100.0 * (index + 1) / POINTS, interval(_stretch(each, index) for each in results))
            for index in range(POINTS)
        ))
        for policy, results in by_policy.items()
    )  # fmt: skip
    return Figure(
        id="time", title="Mean ACT over the run (simulated)", x="percent of the run",
        y="mean ACT in seconds", series=series,
    )  # fmt: skip


def _stretch(result: Result, index: int) -> float:
    """Return the mean ACT of what ended in one of `POINTS` stretches."""
    width = WINDOWS // POINTS
    part = result.windows[index * width : (index + 1) * width]
    actions = sum(window.actions for window in part)
    return sum(window.actions * window.act_mean for window in part) / actions if actions else 0.0


def main(arguments: Sequence[str]) -> int:
    """Play the request in the folder that is named."""
    folder = Path(arguments[0])
    trace = folder / "trace"
    try:
        request = read_request(msgspec.json.decode((folder / "request.json").read_bytes()))
        outcome = play(request, trace if trace.exists() else None, _say)
    except (InvalidRequest, TraceError) as error:
        _complain(str(error).replace(str(trace), "trace"))
        return BAD_INPUT
    except InvariantViolation as error:
        _complain(f"the simulation contradicts itself: {error}")
        return 1
    part = folder / "result.part"
    part.write_bytes(msgspec.json.encode(outcome))
    part.replace(folder / "result.json")
    return 0


def _say(policy: str, seed: int, done: int, total: int) -> None:
    line = msgspec.json.encode({"policy": policy, "seed": seed, "done": done, "total": total})
    _write(sys.stdout, [line.decode()])


def _complain(text: str) -> None:
    _write(sys.stderr, [" ".join(text.split())])


def _write(stream: Any, lines: Iterable[str]) -> None:
    stream.writelines(f"{line}\n" for line in lines)
    stream.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
