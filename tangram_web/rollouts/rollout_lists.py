"""Lanes of rollouts: those that are not finished, by what they wait for or do, and the finished ones.

Rules
1. A lane is what a rollout waits for or does: a worker, INIT, RUN, EVAL, nothing (parked), or finished. A rollout between two
   stages, or whose worker reported none yet, is in the lane of INIT.
2. Counts of live rollouts are exact: an index has those alone. Finished ones are counted among the latest `COUNTED`
   rollouts that were submitted, since an exact count would read all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any, Final

from django.db.models import Count

from contract.responses import QueueDetails
from contract.rollout_status import RolloutsStatus
from domain.backends import LLM
from domain.rollouts import STAGES, RolloutState
from tangram_web.dashboard.scheduler_selectors import asked, queues_seen_by
from tangram_web.lib import scheduler_client
from tangram_web.live.access import Sight
from tangram_web.records.models import RolloutRecord

#: Rollouts shown in a lane.
SHOWN: Final = 5
#: Finished rollouts among which outcomes are counted.
COUNTED: Final = 10_000
LANES: Final = ("waiting", "init", "run", "eval", "parked", "finished")
#: Filters by the names that they have in the address.
FILTERS: Final = (
    "lane", "outcome", "task", "group", "instance", "handler", "worker", "llm", "project",
)  # fmt: skip
_TITLES: Final = {"waiting": "Waiting", "parked": "Parked", "finished": "Finished"}
_LARGE: Final = ("metadata", "times")
_NO_WORKER: Final = "no rollout worker has joined"
_BEGIN: Final = ": start one with ./tangram up"


@dataclass
class Lane:
    """Rollouts that wait for or do the same."""

    name: str
    count: int = 0
    #: Of a stage: those that wait for its lease.
    queued: int = 0
    #: Outcome → count, of the finished ones.
    outcomes: dict[str, int] = field(default_factory=dict)
    #: Some of them, the oldest first; of the finished ones the latest.
    rows: list[RolloutRecord] = field(default_factory=list)
    #: Why the next ones wait.
    reasons: list[str] = field(default_factory=list)
    #: ``count`` is a lower bound.
    more: bool = False

    @property
    def title(self) -> str:
        """Name on the page."""
        return _TITLES.get(self.name, self.name.upper())

    @property
    def working(self) -> int:
        """Those that hold the lease of the stage."""
        return self.count - self.queued


def lanes(sight: Sight, filters: dict[str, str]) -> list[Lane]:
    """Return all lanes with what the filters select, apart from ``lane`` and ``outcome``."""
    found = {name: Lane(name) for name in LANES}
    chosen = {k: v for k, v in filters.items() if k not in ("lane", "outcome")}
    _add_live(found, sight, chosen)
    _count_finished(found["finished"], sight, chosen)
    return list(found.values())


def _add_live(found: dict[str, Lane], sight: Sight, chosen: dict[str, str]) -> None:
    """Count the live rollouts and read the oldest of each lane.

    Filters are applied here: with one of them, a database reads the index of all rollouts of a project or task, and not that of the
    live ones, of which there are few.
    """
    ids: dict[str, list[str]] = {name: [] for name in found}
    columns = ("id", "state", "stage", "queued", "project", *chosen)
    live = RolloutRecord.objects.filter(finished_seq__isnull=True).order_by().values(*columns)
    for row in live.iterator(chunk_size=5000):
        if sight.sees(row["project"]) and all(row[k] == v for k, v in chosen.items()):
            lane = found[_lane_of(row["state"], row["stage"])]
            lane.count += 1
            lane.queued += row["queued"]
            ids[lane.name].append(row["id"])
    first = {rollout: name for name in ids for rollout in nsmallest(SHOWN, ids[name])}
    if first:
        for record in RolloutRecord.objects.filter(id__in=first).defer(*_LARGE).order_by("id"):
            found[first[record.id]].rows.append(record)


def _lane_of(state: str, stage: str | None) -> str:
    if state != RolloutState.ASSIGNED:
        return state
    return stage if stage in ("run", "eval") else "init"


def _count_finished(lane: Lane, sight: Sight, chosen: dict[str, str]) -> None:
    """Count the outcomes of the latest rollouts, which an index has in their order."""
    indexed = {k: chosen[k] for k in ("task", "group", "project") if k in chosen}
    others = {k: v for k, v in chosen.items() if k not in indexed}
    latest = sight.of(RolloutRecord.objects.filter(**indexed)).order_by("-id").values("id")
    rows = RolloutRecord.objects.filter(
        id__in=latest[:COUNTED], state=RolloutState.FINISHED, **others
    )
    for row in rows.values("outcome").order_by("outcome").annotate(count=Count("id")):
        lane.outcomes[str(row["outcome"])] = row["count"]
    lane.count = sum(lane.outcomes.values())
    lane.more = latest[COUNTED - 1 :].exists()


def explain(sight: Sight, found: list[Lane]) -> tuple[RolloutsStatus | None, str]:
    """Add to the lanes why their rollouts wait; return workers, or why the scheduler did not answer."""
    status, problem = asked(lambda: scheduler_client.rollouts(workers=True, limit=0))
    if status is None:
        return None, problem
    by_name = {lane.name: lane for lane in found}
    if by_name["waiting"].count:
        by_name["waiting"].reasons += _why_no_worker(by_name["waiting"])
    if any(by_name[stage.value].queued for stage in STAGES):
        queues, _ = asked(lambda: queues_seen_by(sight))
        for stage in STAGES:
            lines = [] if queues is None else stage_queues(queues.items, stage.value)
            by_name[stage.value].reasons += [
                f"{line.waiting} wait: {line.why.reason}" for line in lines
            ]
    return status, ""


def _why_no_worker(waiting: Lane) -> list[str]:
    """Return why the first rollouts of a lane wait for a worker, each reason once."""
    rows = [row.id for row in waiting.rows]
    live, _ = asked(lambda: scheduler_client.live_rollouts(rows))
    reasons = dict.fromkeys(each.waiting for each in (live or {}).values() if each.waiting)
    return [f"{each}{_BEGIN if each == _NO_WORKER else ''}" for each in reasons]


def stage_queues(lines: list[QueueDetails], stage: str) -> list[QueueDetails]:
    """Return the queues of leases of a stage: those that need its resource, and of RUN those that need a seat."""
    name = f"stage:{stage}"
    return [
        line
        for line in lines
        if name in line.needs
        or (stage == "run" and any(resource.startswith(LLM) for resource in line.needs))
    ]


def rollout_record(sight: Sight, rollout_id: str) -> RolloutRecord | None:
    """Return a rollout's row; None if it is missing or may not be seen."""
    if "\0" in rollout_id:
        return None
    return sight.of(RolloutRecord.objects.filter(pk=rollout_id)).first()


def present_status(record: RolloutRecord) -> tuple[Any, str]:
    """Return a live rollout as the scheduler has it now (`RolloutStatus`), or why it did not answer."""
    status, problem = asked(
        lambda: scheduler_client.rollouts(project=record.project, rollout_id=record.id)
    )
    if status is None or not status.rollouts:
        return None, problem
    return status.rollouts[0], ""
