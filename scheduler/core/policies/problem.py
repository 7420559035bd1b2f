"""A whole scheduling problem as plain values: what `plan` decides, with no system around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from domain.chunks import Counts
from domain.elasticity import Elasticity
from domain.ids import ActionId, ResourceId
from domain.resources import Cost
from scheduler.core.policies.choices import Choices, elastic, rigid

#: Duration of an action of which nothing is known.
DEFAULT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ResourceSnapshot:
    """One resource as it stands now."""

    #: Milli-units; negative after it shrank below what runs.
    free: int
    #: Seconds until each running action that holds it ends.
    running: Sequence[float] = ()
    #: Free chunks of 1, 2, 4 and 8 GPUs, which are ``free`` together; None: units are alike.
    chunks: Counts | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting action."""

    id: ActionId
    cost: Cost
    #: Key resource; None: see `key_of`.
    key: str | None = None
    #: T_ori, the duration with one unit of the key resource.
    duration_seconds: float | None = None
    elasticity: Elasticity | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Resources, and who waits for them, first come first served."""

    resources: Mapping[ResourceId, ResourceSnapshot]
    waiting: Sequence[Waiting] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy decided about a problem."""

    #: Action → resource → granted milli-units, in the order of arrival.
    selected: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Action → why it keeps waiting, in the order of arrival.
    waiting: dict[str, str] = field(default_factory=dict)
    #: Sum of ends of the groups that the policy looked at, by key resource.
    objective_seconds: dict[str, float] = field(default_factory=dict)


def key_of(cost: Cost, key: str | None, free: Mapping[str, int]) -> str | None:
    """Return the key resource: the declared one, else the only elastic one, else the scarcest.

    Scarcest: of whose free units the smallest count takes the largest share; ties by name. None
    for an action without a cost.
    """
    if key is not None or not cost:
        return key
    several = [name for name in cost if len(cost[name]) > 1]
    if len(several) == 1:
        return several[0]
    return max(sorted(cost), key=lambda name: cost[name][0] / max(1, free.get(name, 0)))


def choices_of(
    units: tuple[int, ...],
    duration_seconds: float | None,
    elasticity: Elasticity | None,
    predicted_seconds: float = DEFAULT_SECONDS,
) -> Choices:
    """Return what an action may get of its key resource.

    Without a profile (elasticity and duration) it has one choice, the smallest count, which takes
    the declared duration, else the predicted one.
    """
    if elasticity is not None and duration_seconds is not None:
        return elastic(units, duration_seconds, elasticity)
    return rigid(units[0], predicted_seconds if duration_seconds is None else duration_seconds)
