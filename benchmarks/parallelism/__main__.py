"""parallelism: degrees of tensor parallelism by context length, measured here and modelled, and what the selector makes of them.

    profile   Figure 3 of EARL really at our scale: a small transformer on two ranks of this machine's processor, as TP1 × 2 and TP2 × 1, each rank
              under a limit of memory. Cells that a run was killed in are measured again (``--resume``).
    replay    contexts that grow, replayed on the measured table with the measured costs of changes: selector, fixed degrees, oracle
    real      the same really: whole runs by the selector and at each fixed degree, in turns, with their interval
    modelled  Qwen2.5-72B on H100s as modelled (`modelled.py`): Figure 3, and the replay on it
    noise     1,000 steps with 10 % noise about many contexts: how often the degree changes
    limit     Figure 1 in small: a run with a hard context limit, and one with the selector (`context_limit.py`)

Goals: selector ≤ 1.05 × the oracle; no step lacks memory, and no slower than the best fixed degree that survives; on the modelled table faster than
every fixed one; noise changes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from tempfile import gettempdir
from time import monotonic
from typing import Any, Final

import msgspec

from benchmarks.parallelism import goals, modelled
from benchmarks.parallelism.context_limit import TrainingStep, trained
from benchmarks.parallelism.growing import Replayed, World, flapping, growing
from benchmarks.parallelism.real import RealRun, real_run
from benchmarks.parallelism.servers import DirectProbe, FileCells
from benchmarks.record import machine, store_parts
from domain.selectors import Parallelism, ParallelismProfile, ProfileIdentity, SelectorSpec
from examples.tensor_parallel.declare import CONTEXTS, MEMORY_BYTES, RESPONSES, SIZES
from managers.gpu.profiling import CellReport, ProfilePlan, Profiler, order

PARTS: Final = ("profile", "replay", "real", "modelled", "noise", "limit")
OURS: Final = (Parallelism(1, dp=2), Parallelism(2))
#: Of the replays; EARL's runs are of the same order.
STEPS: Final = 200
SEEDS: Final = (1, 2, 3, 4, 5)


def plan_of(options: argparse.Namespace) -> ProfilePlan:
    """Return the cells that are measured here."""
    return ProfilePlan(OURS, options.contexts, options.responses, options.rounds,
                       options.cell_seconds, options.tokens)  # fmt: skip


def spec_of(profile: ParallelismProfile) -> SelectorSpec:
    """Return the selector of a profile."""
    degrees = tuple(sorted({each.parallelism for each in profile.cells}, key=lambda each: each.tp))
    limit = max(each.context for each in profile.cells)
    return SelectorSpec(degrees, context_limit=limit)


async def profiled(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the cells, and return Figure 3 at our scale."""
    plan = plan_of(options)
    if not options.resume:
        options.cells.unlink(missing_ok=True)
    cells, probe = FileCells(options.cells), DirectProbe(2, options.memory_bytes, SIZES)
    identity = ProfileIdentity(
        f"2 ranks of {machine()['cpu']}", f"small transformer {SIZES}", "examples.tensor_parallel"
    )
    began, total, done = monotonic(), len(list(order(plan))), 0

    def report(found: CellReport) -> None:
        nonlocal done
        done += 1
        cell = found.cell
        said = (
            found.why
            if cell is None or cell.oom
            else f"{cell.tokens_per_gpu_second:.1f} tokens/GPU/s"
        )
        kind = "left open: " if cell is None else ("OOM: " if cell.oom else "")
        print(
            f"  {done}/{total} {monotonic() - began:5.0f} s  {found.key}: {kind}{said}", flush=True
        )

    try:
        await Profiler(
            plan,
            identity,
            probe,
            cells,
            asyncio.gather,
            monotonic,
            "measured: benchmarks.parallelism",
        ).run(report)
    finally:
        await probe.close()
    kept = await cells.known()
    assert kept is not None, "nothing was measured"
    return {
        "table": table_of(kept, OURS),
        "memory_bytes_of_a_rank": options.memory_bytes,
        "model": SIZES,
        "rounds": plan.rounds,
        "profile": msgspec.to_builtins(kept),
    }


def table_of(profile: ParallelismProfile, degrees: Sequence[Parallelism]) -> list[dict[str, Any]]:
    """Return Figure 3: for each context and number of responses both rates, and by how much the second is faster."""
    cells = {(each.parallelism, each.context, each.responses): each for each in profile.cells}
    rows = []
    print(f"{'context':>8} {'responses':>9} {degrees[0]!s:>10} {degrees[1]!s:>10} {'speedup':>9}")
    for context, responses in sorted({key[1:] for key in cells}):
        both = [cells.get((degree, context, responses)) for degree in degrees]
        rates = [None if each is None else each.tokens_per_gpu_second for each in both]
        said = ["OOM" if each is not None and each.oom else "–" if each is None else f"{rate:.1f}"
                for each, rate in zip(both, rates, strict=True)]  # fmt: skip
        speedup = rates[1] / rates[0] - 1 if rates[0] and rates[1] else None
        print(f"{context:>8} {responses:>9} {said[0]:>10} {said[1]:>10}"
              f" {'' if speedup is None else f'{speedup:+.1%}':>9}")  # fmt: skip
        rows.append(
            {"context": context, "responses": responses,
             **dict(zip(map(str, degrees), said, strict=True)),
             "speedup": None if speedup is None else round(speedup, 4)}
        )  # fmt: skip
    return rows


def replayed(profile: ParallelismProfile, responses: int) -> dict[str, Any]:
    """Replay growing contexts over some seeds, and return means."""
    world = World(spec_of(profile), profile)
    contexts = sorted({each.context for each in profile.cells})
    runs: dict[str, list[Replayed]] = {}
    for seed in SEEDS:
        steps = growing(contexts[0], contexts[-1], STEPS, responses, seed)
        runs.setdefault("selector", []).append(world.selected(steps))
        runs.setdefault("oracle", []).append(world.oracle(steps))
        for degree in world.spec.degrees:
            runs.setdefault(str(degree), []).append(world.fixed(degree, steps))
    oracle = mean(each.seconds for each in runs["oracle"])
    found: dict[str, Any] = {"responses": responses, "steps": STEPS, "seeds": len(SEEDS)}
    for name, each in runs.items():
        ended = [run.lacked_memory_at for run in each if run.lacked_memory_at is not None]
        found[name] = {
            "seconds": round(mean(run.seconds for run in each), 1),
            "over_oracle": None if ended else round(mean(run.seconds for run in each) / oracle, 4),
            "switches": mean(run.switches for run in each),
            "lacked_memory_at_step": min(ended) if ended else None,
        }
        end = (
            f"no memory at step {min(ended)}"
            if ended
            else f"{found[name]['over_oracle']:.3f} × oracle"
        )
        print(f"  {responses:>4} responses {name:>9}: {found[name]['seconds']:10.1f} s, {end},"
              f" {found[name]['switches']:.1f} switches")  # fmt: skip
    return found


async def real_runs(options: argparse.Namespace, profile: ParallelismProfile) -> dict[str, Any]:
    """Run the steps really, all ways in turns, and compare."""
    world, responses = World(spec_of(profile), profile), options.responses[-1]
    low, high = options.contexts[0], options.contexts[-1]
    count = options.real_steps
    contexts = [round(low * (high / low) ** (n / (count - 1))) for n in range(count)]
    probe = DirectProbe(2, options.memory_bytes, SIZES)
    ways: dict[str, Parallelism | None] = {"selector": None, **{str(each): each for each in OURS}}
    runs: dict[str, list[RealRun]] = {name: [] for name in ways}
    try:
        for turn in range(options.real_rounds):
            names = list(ways)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                found = await real_run(
                    probe, world.spec, world.table, contexts, responses,
                    options.real_tokens, ways[name],
                )  # fmt: skip
                runs[name].append(found)
                end = f"no memory at step {len(found.steps) - 1}" if found.lacked_memory else ""
                print(f"  {turn + 1} {name:>9}: {found.seconds:7.1f} s {end}", flush=True)
    finally:
        await probe.close()
    return {"contexts": contexts, "responses": responses, "tokens": options.real_tokens,
            "runs": {name: [run._asdict() for run in each] for name, each in runs.items()},
            **compared(runs)}  # fmt: skip


def compared(runs: dict[str, list[RealRun]]) -> dict[str, Any]:
    """Return the selector's seconds over those of the best fixed degree that survived, by turn, with their interval."""
    alive = {
        name: mean(run.seconds for run in each)
        for name, each in runs.items()
        if name != "selector" and not any(run.lacked_memory for run in each)
    }
    lacked = sum(bool(run.lacked_memory) for run in runs["selector"])
    if not alive:
        return {"selector_lacked_memory": lacked, "best_fixed": None}
    best = min(alive, key=lambda name: alive[name])
    ratios = [a.seconds / b.seconds for a, b in zip(runs["selector"], runs[best], strict=True)]
    print(f"  selector over {best}: {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    return {
        "selector_lacked_memory": lacked,
        "best_fixed": best,
        "selector_over_best_fixed": round(median(ratios), 4),
        "interval": [round(min(ratios), 4), round(max(ratios), 4)],
    }


def noise(profile: ParallelismProfile, responses: int) -> dict[str, Any]:
    """Count changes of the degree under noise."""
    world = World(spec_of(profile), profile)
    contexts = sorted({each.context for each in profile.cells})
    found = flapping(world, responses, contexts[0], contexts[-1] / 1.5, 7)
    most = max(found.values())
    print(f"  {responses:>4} responses: at most {most} switches in 1,000 steps about one context")
    return {
        "responses": responses,
        "most_switches": most,
        "by_context": {str(round(context)): count for context, count in found.items()},
    }


def limited(profile: ParallelismProfile, responses: int) -> dict[str, Any]:
    """Train with a hard limit and with the selector."""
    world = World(spec_of(profile), profile)
    found: dict[str, Any] = {"responses": responses}
    for name, selects in (("hard limit", False), ("selector", True)):
        runs = [
            trained(world, selects=selects, seed=seed, responses=responses) for seed in SEEDS[:3]
        ]
        steps = [
            TrainingStep(*map(_mean, zip(*each, strict=True))) for each in zip(*runs, strict=True)
        ]
        found[name] = [each._asdict() for each in steps]
        last = steps[-1]
        print(f"  {name:>10}: turn {steps[0].turn_context:.0f} to {last.turn_context:.0f} tokens, episode"
              f" {steps[0].episode_context:.0f} to {last.episode_context:.0f} of {last.limit:.0f},"
              f" truncated {last.truncated:.0%}, return {steps[0].reward:.2f} to {last.reward:.2f}")  # fmt: skip
    return found


def _mean(values: Sequence[Any]) -> Any:
    if isinstance(values[0], str):
        return max(set(values), key=list(values).count)
    return round(mean(values), 4)


def measured(options: argparse.Namespace) -> ParallelismProfile:
    """Return the profile that was measured last."""
    found = asyncio.run(FileCells(options.cells).known())
    if found is None:
        raise SystemExit(f"{options.cells} has no profile: run --only profile first")
    return found


def main() -> None:
    """Run the parts that are asked for."""
    options = _options()
    most = options.responses[-1]
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "profile": lambda: asyncio.run(profiled(options)),
        "replay": lambda: {
            str(each): replayed(measured(options), each) for each in options.responses
        },
        "real": lambda: asyncio.run(real_runs(options, measured(options))),
        "modelled": lambda: {
            "identity": msgspec.to_builtins(modelled.IDENTITY),
            "beside_the_paper": modelled.BESIDE_THE_PAPER,
            "table": table_of(modelled.modelled_profile(), modelled.DEGREES),
            **{
                str(each): replayed(modelled.modelled_profile(), each)
                for each in modelled.RESPONSES
            },
        },
        "noise": lambda: {
            "measured": noise(measured(options), most),
            "modelled": noise(modelled.modelled_profile(), modelled.RESPONSES[0]),
        },
        "limit": lambda: limited(measured(options), most),
    }
    missed: list[str] = []
    for name in options.only or PARTS:
        print(name, flush=True)
        began = monotonic()
        found = parts[name]()
        found["seconds_of_the_part"] = round(monotonic() - began, 1)
        if options.store:
            store_parts("parallelism", {name: found})
        missed += goals.missed(name, found)
    if missed:
        raise SystemExit(f"missed: {'; '.join(missed)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS)
    numbers: dict[str, Any] = {"type": lambda text: [int(each) for each in text.split(",")]}
    parser.add_argument("--contexts", default=list(CONTEXTS), **numbers)
    parser.add_argument("--responses", default=list(RESPONSES), **numbers)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cell-seconds", type=float, default=30.0)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--memory-bytes", type=int, default=MEMORY_BYTES)
    parser.add_argument("--real-steps", type=int, default=12)
    parser.add_argument("--real-rounds", type=int, default=5)
    parser.add_argument("--real-tokens", type=int, default=64)
    parser.add_argument("--resume", action="store_true", help="keep cells of a run that was ended")
    parser.add_argument(
        "--cells", type=Path, default=Path(gettempdir()) / "tangram-parallelism.jsonl"
    )
    parser.add_argument("--no-store", dest="store", action="store_false")
    return parser.parse_args()


if __name__ == "__main__":
    main()
