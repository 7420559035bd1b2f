"""Critical path of a trajectory: the phases and resources that its makespan consists of. Pure.

The path is built backward from the end. It contains the action that ended last, with its execution,
overhead and queueing; before its submission the trainer's own work; before that the action with the
latest end until then, which the trainer may have waited for. Actions beside the path are left out:
the makespan does not shrink with them. Links follow each other without gaps from the opening to the
end, so their shares of the makespan add up to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from tangram_web.dashboard.timeline import durations_of, start_of
from tangram_web.records.models import ActionRecord, TrajectoryRecord

OWN = "own"
#: A link narrower than this, in percent, is less than a pixel.
SEEN = 0.05
#: Links that are listed one by one.
LONGEST = 50


@dataclass(frozen=True)
class PathLink:
    """A stretch of the makespan."""

    #: ``own`` (the trainer thinks or generates), ``queue``, ``overhead`` or ``execution``.
    kind: str
    #: Resources of its cost, as ``cpu`` or ``api:search + cpu``; empty for the trainer's own.
    resource: str
    action_id: str
    #: Start in seconds since the opening, and length.
    at: float
    seconds: float
    #: The same as percentages of the makespan.
    start: float = 0.0
    width: float = 0.0


@dataclass
class ResourceShare:
    """Seconds that one resource, or the trainer itself, adds to the makespan."""

    resource: str
    queue: float = 0.0
    overhead: float = 0.0
    execution: float = 0.0
    own: float = 0.0
    actions: set[str] = field(default_factory=set)
    #: Of the makespan, 0 to 1.
    share: float = 0.0

    @property
    def seconds(self) -> float:
        return self.queue + self.overhead + self.execution + self.own


@dataclass(frozen=True)
class CriticalPath:
    """All links, oldest first, and the share of each resource, the largest first."""

    links: list[PathLink]
    shares: list[ResourceShare]
    seconds: float

    def share_of(self, *kinds: str) -> float:
        """Return the share of the makespan that links of ``kinds`` take, 0 to 1."""
        found = sum(getattr(share, kind) for share in self.shares for kind in kinds)
        return float(found) / self.seconds if self.seconds else 0.0

    @property
    def waited(self) -> float:
        """Share in which its actions waited: in queues, and for their start and their report."""
        return self.share_of("queue", "overhead")

    @property
    def ran(self) -> float:
        """Share in which its actions ran."""
        return self.share_of("execution")

    @property
    def own(self) -> float:
        """Share between its actions, in which the trainer thinks or generates."""
        return self.share_of(OWN)

    @property
    def drawn(self) -> list[PathLink]:
        """Links that are wide enough to be seen."""
        return [link for link in self.links if link.width >= SEEN]

    @property
    def longest(self) -> list[PathLink]:
        """The longest links, the longest first."""
        return sorted(self.links, key=lambda link: -link.seconds)[:LONGEST]


def critical_path(
    trajectory: TrajectoryRecord, actions: Sequence[ActionRecord], now: datetime
) -> CriticalPath:
    """Return the critical path of ``trajectory`` through ``actions``, in any order."""
    start = start_of(trajectory, actions)
    spans = [_span(action, start, now) for action in actions]
    last = max([end for _, end, _ in spans], default=0.0)
    if trajectory.finished_at is not None:
        last = max(last, (trajectory.finished_at - start).total_seconds())
    chosen = _backward(spans, last)
    links = list(_linked(chosen, last, now))
    placed = [
        PathLink(one.kind, one.resource, one.action_id, one.at, one.seconds,
             100 * one.at / last, 100 * one.seconds / last)
        for one in links
    ] if last > 0 else []  # fmt: skip
    return CriticalPath(placed, _shares(placed, last), last)


Span = tuple[float, float, ActionRecord]


def _span(action: ActionRecord, start: datetime, now: datetime) -> Span:
    submitted = (action.submitted_at - start).total_seconds()
    end = ((action.finished_at or now) - start).total_seconds()
    return submitted, max(submitted, end), action


def _backward(spans: list[Span], last: float) -> list[Span]:
    """Return the actions on the path, oldest first."""
    chosen: list[Span] = []
    until = last
    for span in sorted(spans, key=lambda one: (one[1], one[0]), reverse=True):
        if span[1] <= until:
            chosen.append(span)
            until = span[0]
    return chosen[::-1]


def _linked(chosen: list[Span], last: float, now: datetime) -> list[PathLink]:
    """Return the phases of the chosen actions, and the gaps between them."""
    links: list[PathLink] = []
    for (_, before, _), (submitted, end, action) in pairwise([(0.0, 0.0, None), *chosen]):
        assert action is not None
        links.append(PathLink(OWN, "", "", before, submitted - before))
        links += _phases(action, submitted, end, now)
    ended = chosen[-1][1] if chosen else 0.0
    links.append(PathLink(OWN, "", "", ended, last - ended))
    return [link for link in links if link.seconds > 0]


def _phases(action: ActionRecord, at: float, end: float, now: datetime) -> list[PathLink]:
    """Return an action's phases, stretched or cut so that they end when it ended."""
    resource = " + ".join(sorted(action.cost or {})) or "no resource"
    parts = [(name, max(0.0, seconds)) for name, seconds in durations_of(action, now)]
    links: list[PathLink] = []
    for index, (name, seconds) in enumerate(parts):
        until = end if index == len(parts) - 1 else min(end, at + seconds)
        links.append(PathLink(name, resource, action.id, at, until - at))
        at = until
    return links


def _shares(links: list[PathLink], last: float) -> list[ResourceShare]:
    shares: dict[str, ResourceShare] = {}
    for link in links:
        share = shares.setdefault(link.resource, ResourceShare(link.resource))
        setattr(share, link.kind, getattr(share, link.kind) + link.seconds)
        if link.action_id:
            share.actions.add(link.action_id)
    for share in shares.values():
        share.share = share.seconds / last
    return sorted(shares.values(), key=lambda one: -one.seconds)
