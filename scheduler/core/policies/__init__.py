"""Who of the admitted goes now, and with how many units: pure functions of one group.

Theory of operation. The scan (`scan`) admits waiting actions at their smallest counts, in order.
Those whose key resource is the same form a `Group`; what a policy is shown of it is everything the
decision may depend on: their choices (count → duration), who waits behind them, how much is left of
the resource, when running actions end. The answer is an `Arrangement`: the first so many go, with
these units; the others were *evicted*, keep their place in the queue, and claim.

Rules
1. A policy is a pure function of the group: no state, no clock, no I/O. Equal groups give equal
   answers, so a journal can be decided again and a problem be planned without a server.
2. Grants of one arrangement fit together in what the group was shown, each is one of the action's
   feasible counts, and none is smaller than what the scan admitted the action with.
   (Malleable ones may go on with less: they are resized anyway.)
3. Who goes is a prefix of the candidates, and the first one always goes. So nobody is overtaken
   within a group, and nobody starves by eviction.
4. Units that inelastic actions, other groups and claims need are not in the group to begin with.
5. A fast path stands only beside a plain twin that tests compare it with (tests/oracles).

Modules: `choices` (one action's counts and durations), `group` (question and answer), `arrange`
(Algorithm 3), `estimate` (Algorithm 2), `evict` (Algorithm 1), one module per policy, and
`problem`/`plan` for whole problems outside of a running system. Paper sections in the docstrings
are those of ARL-Tangram.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from domain.elasticity import Elasticity
from domain.policies import parse_policy
from domain.resources import UnitSet
from scheduler.core.policies.balanced import Balanced
from scheduler.core.policies.fixed import Fixed, Minimum
from scheduler.core.policies.group import Arrangement, Group
from scheduler.core.policies.malleable import Malleable
from scheduler.core.policies.paper import DEPTH, Paper


class Policy(Protocol):
    """How a pool hands out its units."""

    @property
    def name(self) -> str:
        """As pools are configured with it."""

    @property
    def shares(self) -> bool:
        """It caps grants by `Group.fair_share`, which somebody has to work out."""

    def admits_at(self, units: UnitSet, elasticity: Elasticity | None = None) -> int:
        """Return with which count of the key resource the scan admits an action.

        ``elasticity`` is its profile, where that may make a difference.
        """

    @property
    def arrange(self) -> Callable[[Group], Arrangement] | None:
        """Decides who of a group goes, and with how many units; None: whoever is admitted goes."""


def policy_named(text: str, *, depth: int | None = None) -> Policy:
    """Return the policy a pool is configured with; raise InvalidRequest for an unknown one.

    ``depth`` (Algorithm 2) replaces the default of those policies that have one.
    """
    name, parallelism = parse_policy(text)
    if name == "paper":
        return Paper(DEPTH if depth is None else depth)
    if name == "malleable":
        return Malleable() if depth is None else Malleable(depth)
    if name == "balanced":
        return Balanced() if depth is None else Balanced(depth)
    return Fixed(parallelism) if name == "fixed" else Minimum()
