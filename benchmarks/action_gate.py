"""action_gate: fails when an action takes more CPU time than with the code of a reference revision (a stage of ``./tangram test``).

Two Tangrams run side by side: one of the reference revision, one of this tree. Five short rounds load each with one client and
with 64, in turns; a round is judged by the ratio of its two measurements, and the verdict is over the medians. So the machine
and what else it does are the same on both sides.
A first verdict that fails is measured once more. Above 20 % it fails, above 10 % it warns, and prints what grew: CPU time by
process, and Redis commands.

A clone without the reference revision (a shallow one) compares the Redis commands of an action alone, which are the same on
every machine, with those that are stored.

    python -m benchmarks.action_gate                     # compare; 90 s
    python -m benchmarks.action_gate --store REVISION    # name another reference, and store its Redis commands
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.action_path import CLIENTS, load_stack
from benchmarks.load import run
from benchmarks.record import RESULTS, store
from benchmarks.stack import ROOT, Stack, tangram
from tests.faults.code_trees import NoSuchCode, extract

ROUNDS: Final = 5
ROUND_SECONDS: Final = 1.5
#: Jobs and rollout workers start behind the others.
SETTLE_SECONDS: Final = 5.0
#: Growth of the CPU time of an action above which the gate warns, and fails.
WARNS_ABOVE, FAILS_ABOVE = 0.1, 0.2
#: Change of the Redis commands of an action that is printed.
COMMANDS_ABOVE: Final = 0.05
REFERENCE: Final = RESULTS / "action_gate.json"

#: Two rows of `load_stack` that were measured one after the other: the reference, and this tree.
Pair = tuple[Mapping[str, Any], Mapping[str, Any]]
#: Number of clients → the pairs of all rounds.
Pairs = Mapping[int, Sequence[Pair]]
#: Redis command → calls of an action.
Commands = Mapping[str, float]


@dataclass(frozen=True)
class Verdict:
    """The comparison of this tree with the reference."""

    #: What was compared → its growth.
    growth: dict[str, float]
    #: What grew, as lines of text.
    lines: list[str]

    @property
    def worst(self) -> float:
        """The largest growth."""
        return max(self.growth.values())

    @property
    def failed(self) -> bool:
        """Whether an action takes too much more."""
        return self.worst > FAILS_ABOVE

    @property
    def warns(self) -> bool:
        """Whether an action takes more, and not yet too much."""
        return not self.failed and self.worst > WARNS_ABOVE


def medians(tables: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each name; a table without it counts as 0."""
    each = list(tables)
    names = sorted({name for table in each for name in table})
    return {n: round(statistics.median(t.get(n, 0.0) for t in each), 3) for n in names}


def judge(pairs: Pairs) -> Verdict:
    """Compare the CPU time of an action of both sides, round by round."""
    growth, lines = {}, []
    for clients, rounds in pairs.items():
        name = f"{clients} clients"
        spent = [[sum(row["cpu_us"].values()) for row in pair] for pair in rounds]
        growth[name] = round(statistics.median(now / then for then, now in spent) - 1, 3)
        then, now = (medians(row["cpu_us"] for row in rows) for rows in zip(*rounds, strict=True))
        parts = _changes(then, now)
        most = sorted(parts.items(), key=lambda part: -abs(part[1]))[:5]
        lines.append(
            f"{name}: {growth[name]:+.1%} CPU time an action, {sum(then.values()):.0f} ->"
            f" {sum(now.values()):.0f} µs; " + ", ".join(f"{part} {by:+.0f}" for part, by in most)
        )
        called = (medians(r["redis_commands"] for r in rows) for rows in zip(*rounds, strict=True))
        lines += _commands_that_changed(name, *called)
    return Verdict(growth, lines)


def judge_commands(then: Commands, now: Commands) -> Verdict:
    """Compare the Redis commands of an action with one client."""
    growth = round(sum(now.values()) / sum(then.values()) - 1, 3)
    total = f"1 clients: {growth:+.1%} Redis commands an action"
    return Verdict(
        {"Redis commands": growth}, [total, *_commands_that_changed("1 clients", then, now)]
    )


def _commands_that_changed(name: str, then: Commands, now: Commands) -> list[str]:
    moved = {n: by for n, by in _changes(then, now).items() if abs(by) > COMMANDS_ABOVE}
    if not moved:
        return []
    return [
        f"{name}: Redis commands an action: "
        + ", ".join(f"{n} {by:+.2f}" for n, by in moved.items())
    ]


def _changes(then: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    return {name: now.get(name, 0.0) - then.get(name, 0.0) for name in sorted({*then, *now})}


def decide(measured: Callable[[], Verdict]) -> Verdict:
    """Return the verdict; one that fails is measured once more, and the better one counts."""
    first = measured()
    if not first.failed:
        return first
    print("\n".join(first.lines))
    print("an action takes too much CPU time; measuring once more")
    return min(first, measured(), key=lambda each: each.worst)


@contextmanager
def _warm(root: Path) -> Iterator[Stack]:
    """Start the Tangram of a tree, and let it work."""
    with tangram(root=root, environment={"PYTHONPATH": os.fspath(root)}) as stack:
        run(stack.port, stack.token, 16, 2.0)
        time.sleep(SETTLE_SECONDS)
        yield stack


def _pairs(reference: Stack, present: Stack) -> Pairs:
    """Load both in turns; each begins every second round."""
    found: dict[int, list[Pair]] = {clients: [] for clients in CLIENTS}
    for number in range(ROUNDS):
        for clients, pairs in found.items():
            if number % 2:
                now = load_stack(present, clients, ROUND_SECONDS)
                pairs.append((load_stack(reference, clients, ROUND_SECONDS), now))
            else:
                then = load_stack(reference, clients, ROUND_SECONDS)
                pairs.append((then, load_stack(present, clients, ROUND_SECONDS)))
    return found


def _commands(stack: Stack) -> dict[str, float]:
    rows = [load_stack(stack, 1, ROUND_SECONDS) for _ in range(ROUNDS)]
    return medians(row["redis_commands"] for row in rows)


def _compare(folder: Path) -> Verdict:
    """Compare this tree with the reference revision, or with its Redis commands where the clone has it not."""
    stored = json.loads(REFERENCE.read_text())
    try:
        tree = extract(stored["revision"], folder / "reference")
    except NoSuchCode as error:
        print(f"Redis commands alone are compared: {error}")
        with _warm(ROOT) as stack:
            return decide(lambda: judge_commands(stored["commands"], _commands(stack)))
    with _warm(tree) as reference, _warm(ROOT) as present:
        return decide(lambda: judge(_pairs(reference, present)))


def _store(revision: str, folder: Path) -> None:
    with _warm(extract(revision, folder / "reference")) as stack:
        print(
            "stored in", store("action_gate", {"revision": revision, "commands": _commands(stack)})
        )


def main() -> int:
    """Compare with the reference, or name another one; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", metavar="REVISION", help="name this revision as reference")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tangram-gate-") as folder:
        if options.store:
            _store(options.store, Path(folder))
            return 0
        verdict = _compare(Path(folder))
    print("\n".join(verdict.lines))
    if verdict.failed:
        print(
            f"an action takes more than {FAILS_ABOVE:.0%} more than with the reference; if that is meant, name"
            " another one: python -m benchmarks.action_gate --store REVISION"
        )
    elif verdict.warns:
        print(f"warning: an action takes more than {WARNS_ABOVE:.0%} more than with the reference")
    return int(verdict.failed)


if __name__ == "__main__":
    sys.exit(main())
