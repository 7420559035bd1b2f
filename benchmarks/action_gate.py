"""action_gate: fails when an action takes more CPU time than the stored reference allows (a stage of ``./tangram test``).

Five short rounds load one Tangram with one client and with 64. Each round is set in relation to a fixed piece of Python that
runs before and behind it (`calibration_us`), so that a slower or busier machine changes both; the verdict is over the medians.
With one client, a busy machine does fewer actions beside the same periodic work; so that row is judged only while processors are free.
Nothing is judged when the calibration itself swings: the machine changed its speed meanwhile.
A first verdict that fails is measured once more. Above 20 % it fails, above 10 % it warns, and prints what grew: CPU time by
process, and Redis commands.

    python -m benchmarks.action_gate              # compare; 50 s
    python -m benchmarks.action_gate --store      # store the reference, on an idle machine
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.action_path import CLIENTS, calibration_us, load_stack
from benchmarks.load import run
from benchmarks.record import RESULTS, store
from benchmarks.stack import Stack, tangram

ROUNDS: Final = 5
ROUND_SECONDS: Final = 1.5
#: Jobs and rollout workers start behind the others.
SETTLE_SECONDS: Final = 5.0
#: Growth of the CPU time of an action, in calibrations, above which the gate warns, and fails.
WARNS_ABOVE, FAILS_ABOVE = 0.1, 0.2
#: Wall time over CPU time of the calibration, above which the machine is busy.
BUSY_ABOVE: Final = 1.3
#: Largest over smallest calibration of a measurement, above which the speed of the machine changed within it.
SWING_ABOVE: Final = 1.15
#: Change of the Redis commands of an action that is printed.
COMMANDS_ABOVE: Final = 0.05
REFERENCE: Final = RESULTS / "action_gate.json"

#: Number of clients → ``cpu``: part → CPU time of an action, in calibrations; ``commands``: command → calls of an action;
#: ``machine``: ``busy``: wall time over CPU time of the calibration; ``swing``: largest over smallest calibration.
Costs = dict[str, dict[str, dict[str, float]]]


@dataclass(frozen=True)
class Verdict:
    """The comparison of one measurement with the reference."""

    #: Clients → growth of the CPU time of an action.
    growth: dict[str, float]
    #: What grew, by clients, as lines of text.
    lines: list[str]

    @property
    def failed(self) -> bool:
        """Whether an action takes too much more."""
        return max(self.growth.values(), default=0.0) > FAILS_ABOVE

    @property
    def warns(self) -> bool:
        """Whether an action takes more, and not yet too much."""
        return not self.failed and max(self.growth.values(), default=0.0) > WARNS_ABOVE


def costs_of(rounds: Mapping[str, list[tuple[dict[str, Any], float]]]) -> Costs:
    """Return medians over rounds. ``rounds``: clients → (row of `load_stack`, calibration beside it) for each."""

    def medians(tables: list[dict[str, float]]) -> dict[str, float]:
        names = sorted({name for table in tables for name in table})
        return {n: round(statistics.median(t.get(n, 0.0) for t in tables), 3) for n in names}

    return {
        clients: {
            "cpu": medians(
                [{part: us / unit for part, us in row["cpu_us"].items()} for row, unit in each]
            ),
            "commands": medians([row["redis_commands"] for row, _ in each]),
        }
        for clients, each in rounds.items()
    }


def judge(now: Costs, then: Costs) -> Verdict:
    """Compare costs with those of the reference."""
    growth, lines = {}, []
    for clients, reference in then.items():
        cpu, before = now[clients]["cpu"], reference["cpu"]
        grown = round(sum(cpu.values()) / sum(before.values()) - 1, 3)
        machine = now[clients].get("machine", {})
        if machine.get("swing", 1.0) > SWING_ABOVE:
            lines.append(f"{clients} clients: the machine changed its speed, not judged")
        elif clients == "1" and machine.get("busy", 1.0) > BUSY_ABOVE:
            lines.append("1 clients: the machine is busy, not judged")
        else:
            growth[clients] = grown
        parts = {name: cpu.get(name, 0.0) - before.get(name, 0.0) for name in {*cpu, *before}}
        most = sorted(parts.items(), key=lambda each: -abs(each[1]))[:5]
        lines.append(
            f"{clients} clients: {grown:+.1%} CPU time an action, {sum(before.values()):.0f} ->"
            f" {sum(cpu.values()):.0f} calibrations; "
            + ", ".join(f"{name} {by:+.1f}" for name, by in most)
        )
        calls, called = now[clients]["commands"], reference["commands"]
        changed = {n: calls.get(n, 0.0) - called.get(n, 0.0) for n in sorted({*calls, *called})}
        moved = [f"{n} {by:+.2f}" for n, by in changed.items() if abs(by) > COMMANDS_ABOVE]
        if moved:
            lines.append(f"{clients} clients: Redis commands an action: " + ", ".join(moved))
    return Verdict(growth, lines)


def measure(stack: Stack, rounds: int = ROUNDS, seconds: float = ROUND_SECONDS) -> Costs:
    """Load a stack in rounds, with the calibration before and behind each."""
    found: dict[str, list[tuple[dict[str, Any], float]]] = {str(clients): [] for clients in CLIENTS}
    wall, own, units = [], [], []

    def calibrated() -> float:
        began, spent = time.perf_counter(), time.process_time()
        unit = calibration_us()
        wall.append(time.perf_counter() - began)
        own.append(time.process_time() - spent)
        units.append(unit)
        return unit

    before = calibrated()
    for _ in range(rounds):
        for clients in CLIENTS:
            row = load_stack(stack, clients, seconds)
            behind = calibrated()
            found[str(clients)].append((row, (before + behind) / 2))
            before = behind
    machine = {"busy": round(sum(wall) / sum(own), 2), "swing": round(max(units) / min(units), 2)}
    return {clients: {**each, "machine": machine} for clients, each in costs_of(found).items()}


def decide(measured: Callable[[], Costs], then: Costs) -> Verdict:
    """Return the verdict; one that fails is measured once more, and the better one counts."""
    first = judge(measured(), then)
    if not first.failed:
        return first
    print("\n".join(first.lines))
    print("an action takes too much CPU time; measuring once more")
    second = judge(measured(), then)
    return min(first, second, key=lambda each: max(each.growth.values(), default=0.0))


def main() -> int:
    """Compare with the reference, or store it; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", action="store_true", help="store what is measured as reference")
    options = parser.parse_args()
    then: Costs = {} if options.store else json.loads(REFERENCE.read_text())["costs"]
    with tangram() as stack:
        run(stack.port, stack.token, 16, 2.0)  # warm
        time.sleep(SETTLE_SECONDS)
        if options.store:
            print("stored in", store("action_gate", {"costs": measure(stack)}))
            return 0
        verdict = decide(lambda: measure(stack), then)
    print("\n".join(verdict.lines))
    if verdict.failed:
        print(
            f"an action takes more than {FAILS_ABOVE:.0%} more CPU time than the reference; if that is"
            " meant, store another one: python -m benchmarks.action_gate --store"
        )
    elif verdict.warns:
        print(f"warning: an action takes more than {WARNS_ABOVE:.0%} more CPU time")
    return int(verdict.failed)


if __name__ == "__main__":
    sys.exit(main())
