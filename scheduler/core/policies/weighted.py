"""Policy ``weighted``: minimises the mean ACT weighted by project.

The weight of a project is its nominal share of the pool (`shares.cpu`, else the first kind with shares), as a part
of the largest one; a project without a share, or with a smaller one, has `LEAST_WEIGHT`. Without shares all weights are equal
and it decides as ``malleable``.

Order. Of two waiting actions the heavier one is worth more for each second of waiting (the cμ rule), so actions are
served before their turn in proportion to their weight. Units. The weights of heSRPT (`malleable`) are multiplied by those of
the projects. Shares bound both, as under every policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from domain.limits import Share
from scheduler.core.policies.group import ResizeCandidate
from scheduler.core.policies.malleable import Malleable
from scheduler.core.policies.registry import register

#: Least weight of a project.
LEAST_WEIGHT: Final = 0.1


@register("weighted")
@dataclass(frozen=True)
class Weighted(Malleable):
    """`Malleable` with a weight for each project; without weights all are equal."""

    name: str = "weighted"
    #: (project, weight), the largest weight is 1.
    weights: tuple[tuple[str, float], ...] = ()

    def in_pool(self, shares: Mapping[str, Mapping[str, Share]]) -> Weighted:
        """Return the policy with the nominal shares as weights."""
        kind = "cpu" if shares.get("cpu") else min((k for k, v in shares.items() if v), default="")
        nominal = {name: share.nominal for name, share in shares.get(kind, {}).items()}
        largest = max(nominal.values(), default=0)
        if largest <= 0:
            return self
        weights = ((name, max(LEAST_WEIGHT, n / largest)) for name, n in sorted(nominal.items()))
        return replace(self, weights=tuple(weights))

    def resize(
        self,
        candidates: Sequence[ResizeCandidate],
        total: int,
        allowances: Mapping[str, int] | None = None,
    ) -> list[int]:
        """Return the milli-units of each action by heSRPT with the weights of their projects."""
        weighed = [each._replace(weight=self.weight(each.project)) for each in candidates]
        return super().resize(weighed, total, allowances)

    def weight(self, project: str) -> float:
        """Return how much a second of an action of ``project`` counts; 1 when there are no weights."""
        return dict(self.weights).get(project, LEAST_WEIGHT) if self.weights else 1.0

    def head_start(self, project: str) -> float:
        """Return how much heavier ``project`` is than the lightest that there can be."""
        return self.weight(project) - LEAST_WEIGHT if self.weights else 0.0
