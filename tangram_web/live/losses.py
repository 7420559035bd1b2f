"""What nodes held when they were lost, and what became of it; the one text that pages show of it.

Theory of operation. When a node is lost, `Losses.lose` keeps the ids of the actions that are with it and
counts its environments. Each of these actions ends or waits again later: `settle` counts that by its
outcome. The record of a node stays after its return (with the time of it) until it is lost again or is
forgotten. Memory is bounded by the actions that one node holds, times the number of nodes.

A loss is an *alarm* while the node is lost and work hangs on it: it held actions or has environments,
or its pool has no other node that takes work. The text names times of day in UTC and no ages, so that
it changes only when a fact does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from domain.action import Outcome
from domain.ids import ActionId

#: What becomes of an action that is requeued.
REQUEUED: Final = "requeued"
_WORDS: Final = {
    REQUEUED: "waited again",
    Outcome.COMPLETED.value: "completed",
}


@dataclass
class Loss:
    """A node that was lost: since when, what it held, and what became of it. Times are wall clock."""

    since: float
    #: When its actions end or wait again, unless it returns before.
    decided_at: float
    #: Actions that were with it, and environments of trajectories.
    actions: int
    environments: int
    #: Those of the actions whose fate is open.
    held: set[ActionId] = field(default_factory=set)
    #: Outcome, or `REQUEUED` → number of the actions.
    became: Counter[str] = field(default_factory=Counter)
    returned: float | None = None

    def row(self) -> dict[str, Any]:
        """Return the loss as members of a frame."""
        return {
            "since": self.since,
            "returned": self.returned,
            "actions": self.actions,
            "environments": self.environments,
            "open": len(self.held),
            "became": dict(sorted(self.became.items())),
            "says": said_of(self),
        }


class Losses:
    """The latest loss of each node."""

    def __init__(self) -> None:
        self._nodes: dict[str, Loss] = {}
        self._holder: dict[ActionId, str] = {}

    def lose(
        self, node: str, actions: Iterable[ActionId], environments: int, since: float, grace: float
    ) -> None:
        """Record that ``node`` is lost with ``actions``; ``since`` is wall clock, ``grace`` in seconds."""
        self.forget(node)
        held = set(actions)
        self._nodes[node] = Loss(since, since + grace, len(held), environments, held)
        self._holder.update(dict.fromkeys(held, node))

    def settle(self, action_id: ActionId, fate: str) -> bool:
        """Count what became of an action; return whether a lost node held it."""
        node = self._holder.pop(action_id, None)
        if node is None:
            return False
        loss = self._nodes[node]
        loss.held.discard(action_id)
        loss.became[fate] += 1
        return True

    def returns(self, node: str, at: float) -> None:
        """Record that a node is back; for one that was not lost nothing changes."""
        loss = self._nodes.get(node)
        if loss is not None and loss.returned is None:
            loss.returned = at

    def forget(self, node: str) -> None:
        """Drop the record of a node; an unknown one is not an error."""
        loss = self._nodes.pop(node, None)
        for action_id in () if loss is None else loss.held:
            del self._holder[action_id]

    def of(self, node: str) -> Loss | None:
        """Return the latest loss of a node, if any."""
        return self._nodes.get(node)


def said_of(loss: Loss) -> str:
    """Return what a lost node held and what became of it, as sentences."""
    if not loss.actions:
        return f"It held no actions{_environments(loss)}."
    held = f"It held {_plural(loss.actions, 'action')}{_environments(loss)}: "
    fates = [f"{count} {_fate(name)}" for name, count in sorted(loss.became.items())]
    undecided = len(loss.held)
    if undecided and loss.returned is None:
        fates.append(
            f"{undecided} still with it, which end as unknown, or wait again if they are replay-safe, "
            f"unless it returns before {clock(loss.decided_at)}"
        )
    elif undecided:
        fates.append(f"{undecided} continued after its return")
    return f"{held}{', '.join(fates)}."


def alarm_of(name: str, pool: str, loss: Loss, others: int) -> str:
    """Return the text of the banner for a lost node; empty when no work hangs on it.

    ``others``: nodes of its pool that take work.
    """
    if not (loss.actions or loss.environments or not others):
        return ""
    alone = "" if others else f" Pool {pool} has no other node: its actions wait."
    return f"Node {name} is lost since {clock(loss.since)}. {said_of(loss)}{alone}"


def clock(wall: float) -> str:
    """Return a time of day: ``07:18:11 UTC``."""
    return f"{datetime.fromtimestamp(wall, UTC):%H:%M:%S} UTC"


def _environments(loss: Loss) -> str:
    return f" and {_plural(loss.environments, 'environment')}" if loss.environments else ""


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def _fate(name: str) -> str:
    return _WORDS.get(name) or f"ended as {name.replace('_', ' ')}"
