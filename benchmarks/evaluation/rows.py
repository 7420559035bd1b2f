"""The headlines of ARL-Tangram §6 in the order of the paper: its words, its number, where ours is, and the cause.

A cause is a sentence with places for numbers, which are read from the findings; it is not shown where one is missing.
Verdicts are not here: `verdicts` computes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.evaluation.findings import Findings
from benchmarks.evaluation.verdicts import Verdict, measured_verdict, verdict
from simulator.figures import Interval

#: Workloads and policies that have a column each; verdicts are on the last workload under the first policy.
COLUMNS: Final = ("recorded", "calibrated")
POLICIES: Final = ("paper", "malleable")

Number = Callable[[Findings], Interval | None]


@dataclass(frozen=True)
class Cause:
    """Why a number comes out as it does: a text with a place ``{}`` for each number."""

    text: str
    numbers: tuple[Number, ...]

    def filled(self, findings: Findings) -> str:
        """Return the sentence; empty where a number is missing."""
        found = [number(findings) for number in self.numbers]
        if any(each is None for each in found):
            return ""
        return self.text.format(*(f"{each.mean:.3g}" for each in found if each is not None))


@dataclass(frozen=True)
class PrintedRow:
    """One number that the paper prints."""

    id: str
    #: Task of ARL-Tangram §6.1.
    task: str
    #: Section and figure or table.
    where: str
    #: The paper's words.
    claim: str
    printed: str
    wanted: float
    #: A claim of the figures of headlines, with a place for the policy.
    measure: str
    sweeps: tuple[str, ...]
    cause: Cause
    #: Smaller is better.
    lower: bool = False
    is_outcome: bool = True
    #: The verdict is on the measured overhead, not on a simulated number.
    measured: bool = False

    @property
    def title(self) -> str:
        """Return what is measured, and against what."""
        return (
            f"{self.task}: {self.measure.replace(' over {policy}', '').replace(', {policy}', '')}"
        )

    def shown(self, found: Interval | None) -> str:
        """Return a number as the paper prints it: a share in percent."""
        if found is None:
            return "-"
        if "%" not in self.printed:
            return str(found)
        parts = (f"{100 * each:.3g}" for each in (found.mean, found.low, found.high))
        mean, low, high = parts
        return f"{mean} %" if found.low == found.high else f"{mean} % ({low} to {high})"

    def known(self, findings: Findings) -> bool:
        """Say whether anything came out for it."""
        if self.measured:
            return bool(findings.loads)
        return any(each is not None for each in self.values(findings).values())

    def values(self, findings: Findings) -> dict[tuple[str, str], Interval | None]:
        """Return (workload, policy) → what came out."""
        return {
            (column, policy): findings.value(self.measure, column, policy)
            for policy in POLICIES
            for column in COLUMNS
        }

    def verdict(self, findings: Findings) -> Verdict:
        """Return the verdict on the paper's policy."""
        if self.measured:
            shares = {load: each.share for load, each in findings.loads.items()}
            return measured_verdict(shares, self.wanted)
        declared = findings.value(self.measure, COLUMNS[-1], POLICIES[0])
        maps = [findings.maps[name] for name in self.sweeps if name in findings.maps]
        return verdict(declared, self.wanted, maps, lower=self.lower, is_outcome=self.is_outcome)


def came_out(measure: str, column: str = COLUMNS[-1], policy: str = POLICIES[0]) -> Number:
    """Return the reader of a headline."""
    return lambda findings: findings.value(measure, column, policy)


def in_cell(sweep: str, x: float, y: float) -> Number:
    """Return the reader of a cell of a sweep."""

    def read(findings: Findings) -> Interval | None:
        drawn = findings.maps.get(sweep)
        return None if drawn is None else drawn.cells.get((x, y))

    return read


def at_load(load: float) -> Number:
    """Return the reader of a measured overhead, in percent of the execution."""

    def read(findings: Findings) -> Interval | None:
        found = findings.loads.get(load)
        if found is None:
            return None
        share = found.share
        return Interval(100 * share.mean, 100 * share.low, 100 * share.high)

    return read


_K8S = "{} at batch 1,280, kubernetes(110) over {{policy}}"
_ACT, _INTERACTIONS, _REWARDS = (_K8S.format(each) for each in ("ACT", "interactions", "rewards"))
_STEP = "RL step, ten steps, kubernetes(110) over {policy}"
_SMALL = "ACT at batch 128, kubernetes(110) over {policy}"
_OVERLOAD = "ACT at batch 1,536, kubernetes(timeouts) over {policy}"
_EFFECTIVE = "RL step, ten steps, ineffective trajectories done again, unmanaged over {policy}"
_AS_IT_TOOK = "RL step, ten steps, unmanaged over {policy}"
_FIXED_FEW = "ACT at batch 256, fixed(4) over {policy}"
_FIXED_16 = "ACT at batch 1,280, fixed(16) over {policy}"
_FIXED_4 = "ACT on 1x cores, taken as 1,280, fixed(4) over {policy}"
_SGLANG = "ACT at batch 2,048, sglang(4) over {policy}"
_SGLANG_HALF = "ACT at batch 1,024, sglang(4) over {policy}"
_SERVERLESS = "ACT at batch 1,024, serverlessllm over {policy}"
_GPUS = "share of 40 GPUs for the ACT of sglang(4), {policy}"
_OVERHEAD = "overhead over execution, {policy}"
_OVERHEAD_MOPD = "overhead over execution at batch 2,048, {policy}"

ROWS: Final = (
    PrintedRow(
        "coding-step", "AI coding", "§6.2, Figure 6",
        "Step durations of both AI Coding and DeepSearch decrease substantially, with improvements of 1.4× "
        "and 1.5×, respectively.",
        "1.4 ×", 1.4, _STEP, ("coding-step",),
        Cause(
            "The longest trajectory sets a step: ACTs are {} times shorter, the step of a synchronous trainer "
            "is {} times shorter.", (came_out(_ACT), came_out(_STEP)),
        ),
    ),
    PrintedRow(
        "search-step", "DeepSearch", "§6.2, Figure 6",
        "frequent API failures cause trajectories to become ineffective, reducing the pass rate of RL training "
        "and consequently making the step slow",
        "1.5 ×", 1.5, _EFFECTIVE, ("search-limits",),
        Cause(
            "Calls fail where the API allows few at once: the ratio is {} with 32 searches at once and {} with "
            "512; a step that repeats no failed trajectory has {}.",
            (in_cell("search-limits", 32, 0.02), in_cell("search-limits", 512, 0.02), came_out(_AS_IT_TOOK)),
        ),
    ),
    PrintedRow(
        "coding-interactions", "AI coding", "§6.2, Figure 7",
        "the durations of both environment interactions and reward computation decrease significantly, by 9.0× "
        "and 2.8×, respectively",
        "9.0 ×", 9.0, _INTERACTIONS, ("coding-interactions",),
        Cause(
            "An interaction has one core in both systems, so that only the wait for a pod and the start of a "
            "command can get shorter: {} times for calibrated agents and {} for recorded ones.",
            (came_out(_INTERACTIONS), came_out(_INTERACTIONS, "recorded")),
        ),
    ),
    PrintedRow(
        "coding-rewards", "AI coding", "§6.2, Figure 7",
        "the latter benefits from elastic allocation of DoP for scalable actions, reducing the execution time",
        "2.8 ×", 2.8, _REWARDS, ("coding-reward-act",),
        Cause(
            "Policy paper starts long rewards on few cores and never widens them, with a ratio of {}; malleable "
            "widens them while they run, with {}.",
            (came_out(_REWARDS), came_out(_REWARDS, policy="malleable")),
        ),
    ),
    PrintedRow(
        "coding-act", "AI coding", "§6.2, Figure 7; §6.3, Figure 8(a)",
        "For AI Coding, the durations … decrease significantly, by 9.0× and 2.8×, respectively and 4.3× in total.",
        "4.3 ×", 4.3, _ACT, ("coding-pods", "coding-rewards", "coding-cores"),
        Cause(
            "Pods wait for a place while others think: with 110 pods a node the ratio is {} where trajectories "
            "act for 47 % of their time, and {} where they act for 20 %.",
            (in_cell("coding-pods", 110, 0.47), in_cell("coding-pods", 110, 0.2)),
        ),
    ),
    PrintedRow(
        "coding-small", "AI coding", "§6.3, Figure 8(a)",
        "As the RL batch size increases, ARL-Tangram reduces the average ACT by 3.1× to 27.7× compared with the "
        "baseline.",
        "3.1 × at batch 128", 3.1, _SMALL, ("coding-small",),
        Cause(
            "All 128 pods have a place at once, so that the creation of a pod and the start of each command "
            "remain: {} times for calibrated agents and {} for recorded ones.",
            (came_out(_SMALL), came_out(_SMALL, "recorded")),
        ),
    ),
    PrintedRow(
        "coding-overload", "AI coding", "§6.3, Figure 8(a)",
        "when the RL batch size is 1536, the Kubernetes baseline becomes heavily overloaded, triggering frequent "
        "queuing timeouts in its control plane",
        "27.7 × at batch 1,536", 27.7, _OVERLOAD, ("coding-overload",),
        Cause(
            "A pod that waits longer than 60 s is asked for again, which repeats waits but makes none endless: the "
            "ratio is {} at 110 pods a node; it is {} with 40 pods and trajectories that act for 10 % of their time.",
            (came_out(_OVERLOAD), in_cell("coding-overload", 40, 0.1)),
        ),
    ),
    PrintedRow(
        "mopd-large", "MOPD", "§6.3, Figure 8(b)",
        "At batch size 2048, ARL-Tangram reduces the average ACT by 18.1× compared to SGLang",
        "18.1 ×", 18.1, _SGLANG, ("mopd-arrivals", "mopd-bursts"),
        Cause(
            "Fixed places are overloaded before shared ones are: the ratio is {} where the calls of a step arrive "
            "within 260 s, {} within 600 s, and {} within 120 s, where both are overloaded.",
            tuple(in_cell("mopd-arrivals", x, 0.621) for x in (260, 600, 120)),
        ),
    ),
    PrintedRow(
        "mopd-half", "MOPD", "§6.3, Figure 8(b)",
        "at batch size 1024, ARL-Tangram outperforms SGLang and ServerlessLLM by 3.4× and 101.8×, respectively",
        "3.4 ×", 3.4, _SGLANG_HALF, ("mopd-fewer",),
        Cause(
            "Fixed places of the most used models are overloaded in bursts: the ratio is {} on calibrated "
            "arrivals and {} on recorded ones, which come over 600 s.",
            (came_out(_SGLANG_HALF), came_out(_SGLANG_HALF, "recorded")),
        ),
    ),
    PrintedRow(
        "mopd-serverless", "MOPD", "§6.3, Figure 8(b)",
        "at batch size 1024, ARL-Tangram outperforms SGLang and ServerlessLLM by 3.4× and 101.8×, respectively",
        "101.8 ×", 101.8, _SERVERLESS, ("mopd-restores",),
        Cause(
            "The router of ServerlessLLM dispatches one call of a model a second, and an instance has four GPUs: the ratio is {} where "
            "the calls of a step arrive within 260 s and {} within 600 s.",
            (in_cell("mopd-restores", 260, 0.5), in_cell("mopd-restores", 600, 0.5)),
        ),
    ),
    PrintedRow(
        "mopd-gpus", "MOPD", "§6.3, Figure 8(b)",
        "ARL-Tangram is able to serve 10 reward services using only 29% of the GPUs required by the "
        "over-provisioned baseline and achieving the same ACT",
        "29 %: 12 of 40 GPUs", 12 / 40, _GPUS, ("mopd-gpus",),
        Cause(
            "A share is counted in steps of four GPUs: on calibrated arrivals it is {} under paper and {} under "
            "malleable, which restores less often.",
            (came_out(_GPUS), came_out(_GPUS, policy="malleable")),
        ),
        lower=True,
    ),
    PrintedRow(
        "fixed-4-few", "AI coding", "§6.4, Figure 9",
        "it reduces average ACT by 2.0× compared to DoP=4 at batch size 256",
        "2.0 ×", 2.0, _FIXED_FEW, ("fixed-4-few",),
        Cause(
            "At batch 256 most cores are free and a reward may have more than four: the ratio is {} where rewards "
            "are 5 % of the executions and {} where they are 95 %.",
            (in_cell("fixed-4-few", 0.05, 4), in_cell("fixed-4-few", 0.95, 4)),
        ),
    ),
    PrintedRow(
        "fixed-16", "AI coding", "§6.4, Figure 9", "and 3.0× compared to DoP=16 at batch size 1280",
        "3.0 ×", 3.0, _FIXED_16, ("fixed-16",),
        Cause(
            "A reward on 16 cores ends sooner and blocks others as much as a wide grant of paper does: the ratio is {} "
            "under paper, and {} under malleable, which takes cores back.",
            (came_out(_FIXED_16), came_out(_FIXED_16, policy="malleable")),
        ),
    ),
    PrintedRow(
        "fixed-4", "AI coding", "§6.4, Figure 9",
        "under limited resources (1× CPU cores), it achieves an 1.8× reduction compared to DoP=4",
        "1.8 ×", 1.8, _FIXED_4, ("fixed-4",),
        Cause(
            "Policy paper starts long rewards on few cores when many wait, and has {}; malleable widens them "
            "later, and has {}.",
            (came_out(_FIXED_4), came_out(_FIXED_4, policy="malleable")),
        ),
    ),
    PrintedRow(
        "overhead", "AI coding", "§6.4, Table 1",
        "the system overhead still accounts for a small part, less than 3% compared with the execution duration, "
        "while only 2% for batch size 1280",
        "2 %", 0.02, _OVERHEAD, (),
        Cause(
            "The start of a command in a living container takes milliseconds: {} % of the execution at a load of a quarter "
            "of the cores, and {} % at 95 %.",
            (at_load(0.25), at_load(0.95)),
        ),
        lower=True, is_outcome=False, measured=True,
    ),
    PrintedRow(
        "overhead-mopd", "MOPD", "§6.4, Table 1",
        "For MOPD on GPUs, overhead—primarily due to restoration—represents roughly 25% of execution time",
        "about 25 %", 0.25, _OVERHEAD_MOPD, (),
        Cause(
            "The time of a restore is put in; how many calls need one is not: the share is {} under paper and {} "
            "under malleable, which avoids restores.",
            (came_out(_OVERHEAD_MOPD), came_out(_OVERHEAD_MOPD, policy="malleable")),
        ),
        lower=True, is_outcome=False,
    ),
)  # fmt: skip


def known_rows(findings: Findings) -> list[PrintedRow]:
    """Return the rows for which something came out, in the order of the paper."""
    return [row for row in ROWS if row.known(findings)]
