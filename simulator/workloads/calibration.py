"""Parameters of the calibrated workloads: what ARL-Tangram prints, and what it leaves open.

Each parameter has a value, the range that the print allows, and its source. The print is that of inputs
(set-up, batches, steps) and of means on the side of ARL-Tangram alone (Table 1, Figure 3c). No ratio
to a baseline is an input here: this module imports neither results nor baselines, and a test checks that.

Where nothing is printed the source says so. The range is then that of what is possible or usual, and
the value its middle, or what the recorded workload has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from domain.errors import InvalidRequest


@dataclass(frozen=True)
class DeclaredParameter:
    """One number of a workload."""

    name: str
    value: float
    #: The print allows values from ``low`` to ``high``.
    low: float
    high: float
    unit: str
    #: Section, table or figure of ARL-Tangram, or why there is none.
    source: str

    def allows(self, value: float) -> bool:
        """Say whether ``value`` is in the range that the print allows."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Calibration:
    """The declared parameters of one workload."""

    workload: str
    parameters: tuple[DeclaredParameter, ...]

    def parameter(self, name: str) -> DeclaredParameter:
        """Return the parameter ``name``. Raises InvalidRequest where there is none."""
        for each in self.parameters:
            if each.name == name:
                return each
        known = ", ".join(each.name for each in self.parameters)
        raise InvalidRequest(f"{self.workload}: there is no parameter {name!r}; there are {known}")

    def __getitem__(self, name: str) -> float:
        return self.parameter(name).value

    def with_values(self, values: Mapping[str, float]) -> Calibration:
        """Return it with other values; ranges and sources stay.

        Values outside of the range are taken, since a sweep shows what the print rules out as well.
        Raises InvalidRequest for an unknown name, and for what is not a number ≥ 0.
        """
        for name, value in values.items():
            self.parameter(name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidRequest(f"{self.workload}: {name} must be a number ≥ 0, not {value!r}")
        return replace(
            self,
            parameters=tuple(
                replace(each, value=values.get(each.name, each.value)) for each in self.parameters
            ),
        )


@dataclass(frozen=True)
class PrintedMeans:
    """One column of Table 1: means over all actions, in seconds."""

    execution: float
    queue: float
    overhead: float


#: ARL-Tangram Table 1, "ACTs Breakdown".
CODING_1280: Final = PrintedMeans(0.975, 0.015, 0.024)
CODING_1536: Final = PrintedMeans(1.206, 0.428, 0.036)
MOPD_2048: Final = PrintedMeans(0.621, 0.081, 0.201)
MOPD_3072: Final = PrintedMeans(0.705, 15.05, 0.240)
#: ARL-Tangram §6.1: five nodes with eight GPUs.
GPUS: Final = 40


def arrival_seconds(calls: int, means: PrintedMeans, gpus_of_call: float, gpus: int) -> float:
    """Return over how long calls arrive, from the mean wait that an overload leaves behind.

    A fluid that arrives evenly over S seconds and needs W seconds of all GPUs waits (W - S) / 2 on
    average where S < W, so S = W - 2 × wait. W counts executions and restores.
    """
    work = calls * (means.execution + means.overhead) * gpus_of_call / gpus
    return work - 2 * means.queue


_STEPS: Final = DeclaredParameter("steps", 10, 10, 10, "RL steps", "§6.2: the average of ten steps")
_GROWTH: Final = DeclaredParameter(
    "growth", 0.05, 0.0, 0.2, "of the step before",
    "not printed: rollouts get longer as training proceeds (Figure 6 spans the steps)",
)  # fmt: skip
_HOPS: Final = DeclaredParameter(
    "hop_seconds", CODING_1280.overhead, CODING_1280.overhead, CODING_1536.overhead, "s an action",
    "Table 1, Sys. Overhead of Coding, where nothing is restored",
)  # fmt: skip

CODING: Final = Calibration(
    "ai-coding(calibrated)",
    (
        DeclaredParameter("batch", 1280, 128, 1536, "trajectories", "§6.1 Other setup; §6.3, Figure 8(a)"),
        _STEPS,
        DeclaredParameter(
            "execution_seconds", CODING_1280.execution, CODING_1280.execution,
            CODING_1536.execution, "s an action, rewards among them", "Table 1, Exec Dur. of Coding",
        ),
        _HOPS,
        DeclaredParameter(
            "acting_share", 0.47, 0.1, 0.47, "of a trajectory",
            "Figure 3(c): 0.47 on average, on the system before; less where actions are shorter",
        ),
        DeclaredParameter(
            "reward_share", 0.5, 0.05, 0.95, "of a trajectory's executions",
            "not printed: the middle of what is possible (§4.2: scalable actions last much longer)",
        ),
        DeclaredParameter(
            "reward_units", 4, 1, 32, "cores on which the mean reward was executed",
            "§6.4: 1 to 32; 4 is its smaller fixed count, and the bound of a pod (§6.1)",
        ),
        DeclaredParameter("reward_sigma", 1.0, 0.8, 1.2, "of the logarithm", "not printed: long-tailed (§6.4)"),
        DeclaredParameter("parallel_share", 0.97, 0.9, 1.0, "of a reward", "not printed: E(m) is profiled (§6.1)"),
        _GROWTH,
    ),
)  # fmt: skip

MOPD: Final = Calibration(
    "mopd(calibrated)",
    (
        DeclaredParameter("batch", 2048, 1024, 3072, "trajectories", "§6.1 Other setup; Figure 8(b), Table 1"),
        _STEPS,
        DeclaredParameter("teachers", 9, 9, 12, "services", "§6.1 Baselines; Figure 8(b): 10; Figure 3(b): 12"),
        DeclaredParameter("gpus", GPUS, GPUS, GPUS, "GPUs", "§6.1 Testbed: five nodes with eight"),
        DeclaredParameter(
            "execution_seconds", MOPD_2048.execution, MOPD_2048.execution, MOPD_3072.execution,
            "s a call", "Table 1, Exec Dur. of MOPD",
        ),
        _HOPS,
        DeclaredParameter(
            "overhead_seconds", MOPD_2048.overhead, MOPD_2048.overhead, MOPD_3072.overhead,
            "s a call, restores among them", "Table 1, Sys. Overhead of MOPD; §6.4: mostly restores",
        ),
        DeclaredParameter(
            "restored_share", 0.5, 0.25, 1.0, "of the calls",
            "not printed: how many calls of Table 1 met no service in memory",
        ),
        DeclaredParameter(
            "call_gpus", 4, 2, 8, "GPUs on which the mean call was executed",
            "§5.3: chunks of 1 to 8; 4 is what each model of the baseline has (§6.1)",
        ),
        DeclaredParameter(
            "arrival_seconds",
            arrival_seconds(3072, MOPD_3072, 4, GPUS),
            arrival_seconds(3072, MOPD_3072, 2, GPUS),
            arrival_seconds(3072, MOPD_3072, 8, GPUS),
            "s from the first call of a step to the last",
            "Table 1: a queue of 15.05 s at batch 3,072, as a fluid; range: calls on 2 to 8 GPUs",
        ),
        DeclaredParameter(
            "peak_ratio", 1, 1, 1000, "rate within a burst over the mean rate",
            "not printed: 1 leaves the bursts of the trace; Figure 3(d): invocations vary by up to 1,000 times",
        ),
        _GROWTH,
    ),
)  # fmt: skip

SEARCH: Final = Calibration(
    "deep-search(calibrated)",
    (
        DeclaredParameter("batch", 2048, 2048, 2048, "trajectories", "§6.1 Other setup"),
        _STEPS,
        _HOPS,
        DeclaredParameter(
            "search_limit", 128, 32, 512, "searches at once",
            "not printed: the logarithmic middle; limits of APIs are by concurrency or quota (§5.1)",
        ),
        DeclaredParameter("pdf_limit", 256, 64, 1024, "readings at once", "not printed: twice the searches"),
        DeclaredParameter(
            "judge_limit", 64, 5, 320, "judgements at once",
            "§6.1: five replicas; how many each answers at once is not printed (1 to 64)",
        ),
        DeclaredParameter("turns", 15, 5, 40, "calls of the median trajectory", "not printed"),
        DeclaredParameter("token_seconds", 0.02, 0.005, 0.05, "s an output token", "not printed: 20 to 200 tokens/s"),
        _GROWTH,
    ),
)  # fmt: skip
