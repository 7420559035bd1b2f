"""AI coding with the share of rewards that the printed ratios imply. A variant of its own.

ARL-Tangram §6.2 prints that interactions are 9.0 times, rewards 2.8 times and both together 4.3 times
as long under Kubernetes. If all three are ratios of mean seconds of a trajectory, the share of rewards
in Tangram's seconds follows: ``total = share × reward + (1 - share) × interactions``.

Results are put in here, so what comes out near 4.3 is never called reproduced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from domain.errors import InvalidRequest
from simulator.workloads.calibration import CODING, Calibration

WORKLOAD: Final = "ai-coding(mix-from-ratios)"
#: The ratios are printed with one decimal.
ROUNDING: Final = 0.05


@dataclass(frozen=True)
class PrintedRatios:
    """ARL-Tangram §6.2, Figure 7: seconds under Kubernetes over seconds under Tangram."""

    interactions: float = 9.0
    reward: float = 2.8
    total: float = 4.3

    def reward_share(self) -> float:
        """Return the share of rewards. Raises InvalidRequest where the total is not between the parts."""
        low, high = sorted((self.interactions, self.reward))
        if not (low < high and low <= self.total <= high):
            raise InvalidRequest(f"a total of {self.total:g} is no mix of {low:g} and {high:g}")
        return (self.interactions - self.total) / (self.interactions - self.reward)

    def rounded_shares(self) -> tuple[float, float]:
        """Return the smallest and the largest share that are printed as these ratios."""
        shares = [
            PrintedRatios(self.interactions + a, self.reward + b, self.total + c).reward_share()
            for a, b, c in product((-ROUNDING, ROUNDING), repeat=3)
        ]
        return min(shares), max(shares)


def mix_from_ratios(ratios: PrintedRatios | None = None) -> Calibration:
    """Return the calibration of AI coding with another share of rewards, and nothing else changed."""
    ratios = ratios or PrintedRatios()
    low, high = ratios.rounded_shares()
    source = f"§6.2, Figure 7: {ratios.total:g} as a mix of {ratios.interactions:g} and {ratios.reward:g}"
    return Calibration(
        WORKLOAD,
        tuple(
            replace(each, value=ratios.reward_share(), low=low, high=high, source=source)
            if each.name == "reward_share"
            else each
            for each in CODING.parameters
        ),
    )
