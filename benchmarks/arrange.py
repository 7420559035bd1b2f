"""arrange: one decision of policy `paper`, against a transcription that reruns the DP per eviction.

Targets, numpy alone: 128 candidates × 256 free × units 1..32, 100 running. Convex p99 ≤ 2 ms with
400 waiting behind, ≤ 5 ms with 1,400; general p99 ≤ 8 ms; ≥ 1,000 × the transcription.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.record import quantiles, store
from domain.elasticity import Elasticity
from domain.operators import UnitsOperator
from domain.resources import MILLI
from scheduler.core.cycle.arranger import HORIZON
from scheduler.core.policies.choices import Choices, elastic, grained
from scheduler.core.policies.eviction import evict
from scheduler.core.policies.group import Group
from simulator.figures import Figure, Interval, Series, plot
from tests.oracles import literal

CANDIDATES, FREE, WIDEST, RUNNING = 128, 256, 32, 100
DEPTH = 2
#: Base duration and profile of each action, by its identity; kept, so that none is given away.
_PROFILES: dict[int, tuple[float, Elasticity]] = {}
_KEPT: list[Choices] = []


def _convex(rng: random.Random, widest: int) -> Choices:
    """Return an action of Amdahl's form on contiguous counts."""
    return _choices(rng, widest, Elasticity(amdahl=rng.uniform(0.8, 1.0)))


def _general(rng: random.Random, widest: int) -> Choices:
    """Return an action whose profile has steps: a further unit may save nothing, the next much."""
    efficiency, table = 1.0, []
    for count in _counts(widest):
        table.append((count, efficiency))
        efficiency *= rng.choice((1.0, 1.0, 0.9))
    return _choices(rng, widest, Elasticity(table=tuple(table)))


def _choices(rng: random.Random, widest: int, profile: Elasticity) -> Choices:
    base = rng.lognormvariate(1.5, 1.0)
    choices = elastic(_counts(widest), base, profile)
    _PROFILES[id(choices)] = base, profile
    _KEPT.append(choices)
    return choices


def _counts(widest: int) -> tuple[int, ...]:
    return tuple(count * MILLI for count in range(1, widest + 1))


def _group(
    rng: random.Random,
    action: Callable[[random.Random, int], Choices],
    behind: int,
    candidates: int = CANDIDATES,
    free: int = FREE,
) -> Group:
    return Group(
        "cpu:n1",
        UnitsOperator(free * MILLI),
        [action(rng, WIDEST) for _ in range(candidates)],
        [action(rng, WIDEST) for _ in range(behind)],
        [grained(rng.expovariate(0.1) + 0.01) for _ in range(RUNNING)],
    )


def _measure(groups: Sequence[Group]) -> dict[str, Any]:
    took, tried = [], []
    for group in groups:
        began = time.perf_counter()
        arrangement = evict(group, DEPTH)
        took.append(time.perf_counter() - began)
        tried.append(len(arrangement.trials) - 1)
    return {**quantiles(took), "evictions_tried": round(sum(tried) / len(tried), 2)}


def _literal(choices: Choices) -> literal.Action:
    """Return an action as the transcription has it: durations by formula (paper eq. 1), each time."""
    base, profile = _PROFILES[id(choices)]

    def duration(units: int) -> float:
        return grained(profile.duration_seconds(base, units * MILLI))

    counts = [units // MILLI for units in choices.units]
    return literal.Action(counts, choices.seconds, duration)


def _twin_seconds(group: Group) -> tuple[float, float]:
    """Return what the transcription takes for one group, and its objective."""
    free = group.operator.total or 0
    plain = [[_literal(each) for each in some] for some in (group.candidates, group.behind)]
    began = time.perf_counter()
    decision = literal.decide(plain[0], plain[1], group.running, free // MILLI, DEPTH)
    return time.perf_counter() - began, decision.objective


def _against_the_twin(rng: random.Random, rounds: int = 3) -> dict[str, Any]:
    """Compare sums of times over some groups; every answer of ours is also compared with theirs."""
    result = {}
    for name, action in (("convex", _convex), ("general", _general)):
        for behind in (0, 400):
            ours = theirs = 0.0
            for group in [_group(rng, action, behind) for _ in range(rounds)]:
                seconds, objective = _twin_seconds(group)
                began = time.perf_counter()
                arrangement = evict(group, DEPTH)
                ours += time.perf_counter() - began
                theirs += seconds
                if abs((arrangement.objective_seconds or 0.0) - objective) > 1e-6:
                    raise SystemExit(f"objectives differ: {arrangement}, {objective}")
            result[f"{name}_{behind}"] = {
                "times": round(theirs / ours),
                "transcription_seconds": round(theirs / rounds, 2),
            }
    return result


def _growth(rng: random.Random, rounds: int) -> list[dict[str, Any]]:
    """Vary candidates, free units and queue length, one at a time."""
    sizes = [
        *((n, FREE, 400) for n in (8, 32, 64, 128, 256)),
        *((CANDIDATES, m, 400) for m in (128, 256, 512, 1024)),
        *((CANDIDATES, FREE, q) for q in (0, 100, 400, 1400, 5000)),
    ]
    rows = []
    for candidates, free, behind in sizes:
        row: dict[str, Any] = {"candidates": candidates, "free": free, "behind": behind}
        for name, action in (("convex", _convex), ("general", _general)):
            some = [_group(rng, action, behind, candidates, free) for _ in range(rounds)]
            row[f"{name}_p50_ms"] = _measure(some)["p50_ms"]
        rows.append(row)
    return rows


def _horizon(rng: random.Random, rounds: int) -> list[dict[str, Any]]:
    """Say how often the horizon of estimates changes what is decided, by queue length.

    Beyond `HORIZON` actions behind are left out. Compared are the units of the selected candidates, and
    their number.
    """
    rows = []
    for behind in (HORIZON + 500, 2 * HORIZON, 5 * HORIZON):
        for name, action in (("convex", _convex), ("general", _general)):
            same, goers = 0, 0.0
            for _ in range(rounds):
                whole = _group(rng, action, behind)
                cut = replace(whole, behind=whole.behind[:HORIZON])
                full, short = evict(whole, DEPTH).units, evict(cut, DEPTH).units
                same += full == short
                goers += abs(len(full) - len(short)) / len(full)
            rows.append({"behind": behind, "actions": name, "decided_alike": same / rounds,
                         "mean_change_of_who_goes": goers / rounds})  # fmt: skip
    return rows


def _plots(rows: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield name and plot of the growth along each axis."""
    base = {"candidates": CANDIDATES, "free": FREE, "behind": 400}
    for axis in base:
        others = [name for name in base if name != axis]
        some = [row for row in rows if all(row[name] == base[name] for name in others)]
        some.sort(key=lambda row: row[axis])
        series = [
            Series(name, tuple((row[axis], _exactly(row[f"{name}_p50_ms"])) for row in some))
            for name in ("convex", "general")
        ]
        title = f"One decision of policy paper, by {axis}"
        yield (
            axis,
            plot(
                Figure(id=axis, title=title, x=axis, y="p50, ms (measured)", series=tuple(series))
            ),
        )


def _exactly(value: float) -> Interval:
    return Interval(value, value, value)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--dry", action="store_true", help="store nothing")
    options = parser.parse_args()
    rng = random.Random(7)
    _measure([_group(rng, _general, 10) for _ in range(5)])  # warm
    result: dict[str, Any] = {}
    for name, action in (("convex", _convex), ("general", _general)):
        for behind in (400, 1400):
            groups = [_group(rng, action, behind) for _ in range(options.rounds)]
            result[f"{name}_{behind}"] = _measure(groups)
            print(name, behind, result[f"{name}_{behind}"])
    result["times_the_transcription"] = _against_the_twin(rng)
    print(result["times_the_transcription"])
    result["growth"] = _growth(rng, max(5, options.rounds // 10))
    for row in result["growth"]:
        print(row)
    result["horizon"] = _horizon(rng, max(5, options.rounds // 10))
    for row in result["horizon"]:
        print(row)
    if not options.dry:
        stored = store("arrange", {"result": result})
        print("stored in", stored)
        for axis, drawn in _plots(result["growth"]):
            stored.with_name(f"arrange-{axis}.svg").write_text(drawn + "\n")


if __name__ == "__main__":
    main()
