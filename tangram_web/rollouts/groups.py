"""Groups of samples: which have a gradient, which were wasted, and which samples were carried to a later iteration.

| kind | a group |
|---|---|
| informative | whose rewards differ: it trains |
| wasted | whose samples have all ended, with equal rewards or none: it trains nothing |
| unfinished | of which samples have not ended, and whose rewards so far are equal |

Rules
1. A sample without a reward never trains (`rollout.core.groups`).
2. A carried sample was parked and resumed: it ended in another iteration than the one that submitted it, or will.
3. A group is on the page of its latest sample. A page looks at `SCANNED` rollouts at most, and shows up to `SAMPLES`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.http import QueryDict

from domain.rollouts import RolloutOutcome, RolloutResult, RolloutState
from rollout.core.groups import GroupSummary, summary_of
from tangram_web.live.access import Sight
from tangram_web.records.models import RolloutRecord
from tangram_web.rollouts.drawings import Part, RewardBar, reward_bars, spread

PAGE: Final = 50
SCANNED: Final = 5000
SAMPLES: Final = 5000
#: Bars drawn of one group.
BARS: Final = 64
#: Columns of the chart over time.
COLUMNS: Final = 40
KINDS: Final = ("informative", "wasted", "unfinished")
FILTERS: Final = ("task", "group", "handler", "project")
#: Members of a rollout's metadata that name the iteration of a trainer.
ITERATION: Final = ("iteration", "step", "training_step", "global_step")
_SHOWN: Final = (
    "id", "project", "task", "group", "instance", "sample", "state", "outcome", "reward",
    "submitted_at", "finished_at", "handler", "metadata", "parked_times",
)  # fmt: skip

GroupKey = tuple[str, str, str]


@dataclass
class RolloutGroup:
    """The samples of one instance."""

    project: str
    task: str
    group: str
    samples: list[RolloutRecord]
    summary: GroupSummary
    bars: list[RewardBar] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        if self.summary.informative:
            return "informative"
        return "wasted" if self.summary.complete else "unfinished"

    @property
    def instance(self) -> str:
        """Name of the instance."""
        return self.samples[0].instance

    @property
    def submitted_at(self) -> datetime:
        """When its first sample was submitted."""
        return self.samples[0].submitted_at

    @property
    def ended(self) -> int:
        """Samples that have ended."""
        return self.summary.ended

    @property
    def failed(self) -> int:
        """Samples that ended without a reward."""
        return self.summary.ended - len(self.summary.rewards)

    @property
    def parked(self) -> int:
        """Samples that are parked now."""
        return sum(each.state == RolloutState.PARKED for each in self.samples)

    @property
    def carried(self) -> int:
        """Samples that were parked and resumed."""
        return sum(
            each.parked_times > 0 and each.state != RolloutState.PARKED for each in self.samples
        )

    @property
    def iteration(self) -> str:
        """Iteration of the trainer, as the metadata of its first sample names it (`tangram_client.dapo` does); empty without one."""
        metadata = self.samples[0].metadata or {}
        of_client = metadata.get("dapo")
        said = {**metadata, **(of_client if isinstance(of_client, dict) else {})}
        found = next((said[name] for name in ITERATION if name in said), "")
        return str(found)[:32] if isinstance(found, str | int | float) else ""

    @property
    def rewards(self) -> str:
        """The rewards as text, for readers of the drawing."""
        said = [f"{reward:g}" for reward in self.summary.rewards[:BARS]]
        parts = [f"rewards {', '.join(said)}" if said else "no rewards"]
        if self.failed:
            parts.append(f"{self.failed} without a reward")
        if open_ := self.summary.samples - self.summary.ended:
            parts.append(f"{open_} not finished")
        return "; ".join(parts)


@dataclass
class TaskOfGroups:
    """Sums over the groups of one task."""

    task: str
    project: str
    groups: int = 0
    kinds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    carried: int = 0
    rewards: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float | None:
        """Mean reward of its samples."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else None

    @property
    def share(self) -> float | None:
        """Share of informative groups among those that are decided."""
        decided = self.kinds["informative"] + self.kinds["wasted"]
        return self.kinds["informative"] / decided if decided else None


@dataclass(frozen=True)
class GroupColumn:
    """Groups that were submitted within a part of the time that a page shows."""

    start: float
    width: float
    title: str
    parts: list[Part]


@dataclass(frozen=True)
class GroupPage:
    """Some groups, newest first."""

    groups: list[RolloutGroup]
    filters: dict[str, str]
    older: str = ""
    newest: str = ""
    mistake: str = ""

    @property
    def tasks(self) -> list[TaskOfGroups]:
        """Sums over each task of this page."""
        found: dict[tuple[str, str], TaskOfGroups] = {}
        for group in self.groups:
            key = group.project, group.task
            task = found.setdefault(key, TaskOfGroups(group.task, group.project))
            task.groups += 1
            task.kinds[group.kind] += 1
            task.carried += group.carried
            task.rewards += group.summary.rewards
        return [found[key] for key in sorted(found)]

    @property
    def columns(self) -> list[GroupColumn]:
        """Groups over time, by kind."""
        return _columns(self.groups)


def group_page(sight: Sight, query: QueryDict) -> GroupPage:
    """Return the page of groups that a query selects."""
    filters = {name: value for name in FILTERS if (value := query.get(name, "").strip())}
    before = query.get("before", "")
    for name, value in {**filters, "before": before}.items():
        if "\0" in value:
            return GroupPage([], filters, mistake=f"{value!r} is not a valid {name}")
    rows = sight.of(RolloutRecord.objects.filter(group__isnull=False, **filters))
    keys, last, more = _latest(rows, before)
    groups = _groups(rows, keys, before)
    older = urlencode(filters | {"before": last}) if more else ""
    newest = urlencode(filters) or "newest" if before else ""
    return GroupPage(groups, filters, older, newest)


def _latest(rows: QuerySet[RolloutRecord], before: str) -> tuple[list[GroupKey], str, bool]:
    """Return the groups of the latest rollouts, the last rollout that was looked at, and whether more follow."""
    if before:
        rows = rows.filter(id__lt=before)
    keys: dict[GroupKey, None] = {}
    found = rows.order_by("-id").values_list("id", "project", "task", "group")[:SCANNED]
    looked, number = "", 0
    for rollout, project, task, group in found:
        key = project, task, group or ""
        if key not in keys and len(keys) == PAGE:
            return list(keys), looked, True
        keys[key] = None
        looked, number = rollout, number + 1
    return list(keys), looked, number == SCANNED


def _groups(rows: QuerySet[RolloutRecord], keys: list[GroupKey], before: str) -> list[RolloutGroup]:
    """Return these groups in their order, without those that an earlier page has."""
    samples: dict[GroupKey, list[RolloutRecord]] = {key: [] for key in keys}
    names = {group for _, _, group in keys}
    if names:
        for record in rows.filter(group__in=names).order_by("id").only(*_SHOWN)[:SAMPLES]:
            key = record.project, record.task, record.group or ""
            if key in samples:
                samples[key].append(record)
    return [
        group_of(*key, found)
        for key, found in samples.items()
        if found and not (before and found[-1].id >= before)
    ]


def group_of(project: str, task: str, group: str, samples: list[RolloutRecord]) -> RolloutGroup:
    """Return a group of its samples, at least one."""
    ordered = sorted(samples, key=lambda each: (each.sample, each.id))
    ended = [
        RolloutResult(RolloutOutcome(each.outcome), each.reward)
        for each in ordered
        if each.outcome is not None
    ]
    summary = summary_of(len(ordered), ended)
    return RolloutGroup(project, task, group, ordered, summary, reward_bars(ordered[:BARS]))


def _columns(groups: Iterable[RolloutGroup]) -> list[GroupColumn]:
    found = sorted(groups, key=lambda group: group.submitted_at)
    if not found:
        return []
    begin, end = found[0].submitted_at.timestamp(), found[-1].submitted_at.timestamp()
    count = min(COLUMNS, len(found)) if end - begin >= 1 else 1
    each = max(1e-3, (end - begin) / count)
    counts: list[dict[str, int]] = [dict.fromkeys(KINDS, 0) for _ in range(count)]
    for group in found:
        place = int((group.submitted_at.timestamp() - begin) / each)
        counts[min(count - 1, place)][group.kind] += 1
    most = max(sum(column.values()) for column in counts)
    width = 100 / count
    return [
        GroupColumn(
            round(number * width + width * 0.08, 3),
            round(width * 0.84, 3),
            ", ".join(f"{n} {kind}" for kind, n in column.items() if n),
            spread(column.items(), most),
        )
        for number, column in enumerate(counts)
    ]


def group_of_rollout(sight: Sight, record: RolloutRecord) -> RolloutGroup | None:
    """Return the group that a rollout is in; one query, None without a group."""
    if record.group is None:
        return None
    rows: Any = sight.of(
        RolloutRecord.objects.filter(group=record.group, project=record.project, task=record.task)
    )
    samples = list(rows.order_by("id").only(*_SHOWN)[:BARS])
    return group_of(record.project, record.task, record.group, samples) if samples else None
