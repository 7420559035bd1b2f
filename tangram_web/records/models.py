"""Rows of actions, trajectories, tasks, rollouts and nodes.

Only `records/projection.py` writes them, mostly in bulk and past the ORM. Text columns have no
length: the edge checked their values, and a limit here could only stop the projection. ``started_at`` is empty when an action started and ended between two reports.
"""

# ruff: noqa: DJ001 - here an absent text means "not given" or "not yet", which "" does not say
from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar

import msgspec
from django.db import models

from domain.action import ActionState, Kind, Outcome
from domain.protection import Protection
from domain.rollouts import RolloutOutcome, RolloutState
from tangram_web.lib.fields import JsonText


class NodeAvailability(models.TextChoices):
    """Whether a node accepts actions."""

    READY = "ready"
    DRAINED = "drained"
    LOST = "lost"


class TrajectoryRecordState(models.TextChoices):
    """Whether the trainer has finished a trajectory."""

    OPEN = "open"
    FINISHED = "finished"


def _choices(
    values: type[ActionState | Outcome | Kind | RolloutState | RolloutOutcome],
) -> list[tuple[str, str]]:
    return [(value.value, value.value.replace("_", " ")) for value in values]


class Spent(models.Model):
    """Spending of finished actions (`tangram_web.records.spending`); 0 in rows of older versions."""

    asked_core_seconds = models.FloatField(default=0.0, db_default=0.0)
    granted_core_seconds = models.FloatField(default=0.0, db_default=0.0)
    measured_core_seconds = models.FloatField(default=0.0, db_default=0.0)
    used_core_seconds = models.FloatField(default=0.0, db_default=0.0)
    asked_gpu_seconds = models.FloatField(default=0.0, db_default=0.0)
    granted_gpu_seconds = models.FloatField(default=0.0, db_default=0.0)
    peak_cores = models.FloatField(default=0.0, db_default=0.0)
    peak_gpus = models.FloatField(default=0.0, db_default=0.0)

    class Meta:
        abstract = True


class ActionRecord(models.Model):
    """An action and its outcome."""

    id = models.CharField(primary_key=True)
    project = models.CharField()
    task = models.CharField()
    trajectory = models.CharField(null=True)
    pool = models.CharField(default="")
    kind = models.CharField(choices=_choices(Kind))
    family = models.CharField(null=True)
    step = models.BigIntegerField(null=True)
    group = models.CharField(null=True)
    priority = models.BigIntegerField(default=0)
    state = models.CharField(choices=_choices(ActionState), default="queued")
    outcome = models.CharField(null=True, choices=_choices(Outcome))
    reward = models.FloatField(null=True)
    #: Resource → feasible counts, as in the request.
    cost = JsonText(default=dict)
    #: Resource → granted count.
    units = JsonText(default=dict)
    node = models.CharField(null=True)
    placement = JsonText(null=True)
    attempt = models.IntegerField(default=1)
    exit_code = models.BigIntegerField(null=True)
    result = JsonText(null=True)
    detail = models.TextField(null=True)
    metadata = JsonText(default=dict)
    submitted_at = models.DateTimeField()
    granted_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    queue_seconds = models.FloatField(null=True)
    overhead_seconds = models.FloatField(null=True)
    execution_seconds = models.FloatField(null=True)
    act_seconds = models.FloatField(null=True)
    #: Place in the log of completions: journal seq · 65536 + index of the Finish in its entry.
    finished_seq = models.BigIntegerField(null=True)
    #: The request; it can be submitted again unchanged.
    spec = JsonText(default=dict)
    #: Units of the key resource over time, of an action that was resized: [[seconds since its
    #: grant, units], …]; null for all others.
    widths = JsonText(null=True)
    #: Measured use of the command (`domain.allocation.UsedResources`); null where none is measured.
    used = JsonText(null=True)
    #: Facade that it was submitted through; null: the native API.
    door = models.CharField(null=True)
    #: Name of the token or account that submitted it; null in rows of earlier versions.
    submitted_by = models.CharField(null=True)

    class Meta:
        verbose_name = "action"
        # Partial indexes: each covers only live or only finished rows, whichever its queries need,
        # so that an action costs few index insertions.
        indexes: ClassVar = [
            models.Index(fields=["project", "id"], name="action_project"),
            models.Index(fields=["task", "id"], name="action_task"),
            models.Index(
                fields=["trajectory", "id"],
                name="action_trajectory",
                condition=models.Q(trajectory__isnull=False),
            ),
            models.Index(
                fields=["state", "id"],
                name="action_live_state",
                condition=models.Q(finished_seq__isnull=True),
            ),
            models.Index(
                fields=["outcome", "id"],
                name="action_outcome",
                condition=models.Q(outcome__isnull=False),
            ),
            models.Index(
                fields=["door", "id"],
                name="action_door",
                condition=models.Q(door__isnull=False),
            ),
            # Orders of the explorer.
            models.Index(
                fields=["act_seconds", "id"],
                name="action_act",
                condition=models.Q(act_seconds__isnull=False),
            ),
            models.Index(
                fields=["queue_seconds", "id"],
                name="action_queue",
                condition=models.Q(queue_seconds__isnull=False),
            ),
            # Failing commands are rare: of all others, this index costs nothing.
            models.Index(
                fields=["exit_code", "id"],
                name="action_failing",
                condition=models.Q(exit_code__gt=0) | models.Q(exit_code__lt=0),
            ),
            # Completions of one project, read in order without a sort.
            models.Index(
                fields=["project", "finished_seq"],
                name="action_completions",
                condition=models.Q(finished_seq__isnull=False),
            ),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["finished_seq"],
                name="action_finished_seq",
                condition=models.Q(finished_seq__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def failed(self) -> bool:
        """Whether its command ran to its end with an exit code that is not 0."""
        return self.outcome == Outcome.COMPLETED and bool(self.exit_code)

    @property
    def begun_at(self) -> datetime | None:
        """When its command began: as reported, else computed from its phases; None if it never ran."""
        if self.started_at is not None or self.granted_at is None or not self.execution_seconds:
            return self.started_at
        return self.granted_at + timedelta(seconds=self.overhead_seconds or 0.0)

    @property
    def cpus(self) -> list[int]:
        """Cores that were granted."""
        placement: dict[str, Any] = self.placement or {}
        cpus: list[int] = placement.get("cpus", [])
        return cpus


class TrajectoryRecord(Spent):
    """One episode."""

    #: ``project/name``.
    key = models.CharField(primary_key=True)
    project = models.CharField()
    name = models.CharField()
    task = models.CharField()
    pool = models.CharField(default="")
    node = models.CharField(null=True)
    state = models.CharField(
        choices=TrajectoryRecordState.choices, default=TrajectoryRecordState.OPEN
    )
    environment = JsonText(null=True)
    metadata = JsonText(default=dict)
    opened_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    environment_removed_at = models.DateTimeField(null=True)
    #: Actions accepted and actions finished.
    actions = models.BigIntegerField(default=0)
    finished = models.BigIntegerField(default=0)
    #: Sum of the ACT of its finished actions.
    external_seconds = models.FloatField(default=0.0)
    #: Wall clock of its opening and of its last action's end, as numbers: both databases compute
    #: with them alike.
    begun_wall = models.FloatField(default=0.0, db_default=0.0)
    ended_wall = models.FloatField(default=0.0, db_default=0.0)

    class Meta:
        verbose_name = "trajectory"
        verbose_name_plural = "trajectories"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "name"], name="trajectory_name")
        ]
        indexes: ClassVar = [
            models.Index(fields=["task", "key"], name="trajectory_task"),
            models.Index(fields=["opened_at"], name="trajectory_opened"),
        ]

    def __str__(self) -> str:
        return self.key


class TaskRecord(Spent):
    """An RL workload."""

    #: ``project/name``.
    key = models.CharField(primary_key=True)
    project = models.CharField()
    name = models.CharField()
    pool = models.CharField(default="")
    metadata = JsonText(default=dict)
    opened_at = models.DateTimeField()
    actions = models.BigIntegerField(default=0)
    finished = models.BigIntegerField(default=0)
    external_seconds = models.FloatField(default=0.0)

    class Meta:
        verbose_name = "task"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "name"], name="task_name")
        ]
        indexes: ClassVar = [models.Index(fields=["opened_at"], name="task_opened")]

    def __str__(self) -> str:
        return self.key


class StepRecord(models.Model):
    """Sums over a training step of a task (`tangram_web.records.sums`)."""

    project = models.CharField()
    task = models.CharField()
    step = models.BigIntegerField()
    actions = models.BigIntegerField(default=0)
    finished = models.BigIntegerField(default=0)
    rewarded = models.BigIntegerField(default=0)
    queue_seconds = models.FloatField(default=0.0)
    act_seconds = models.FloatField(default=0.0)
    reward = models.FloatField(default=0.0)
    begun_wall = models.FloatField(default=0.0)
    ended_wall = models.FloatField(default=0.0)

    class Meta:
        verbose_name = "step"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "task", "step"], name="step_of_task")
        ]

    def __str__(self) -> str:
        return f"{self.project}/{self.task} step {self.step}"


class EndRecord(models.Model):
    """Sums over an outcome of a task's actions (`tangram_web.records.sums`)."""

    project = models.CharField()
    task = models.CharField()
    outcome = models.CharField(choices=_choices(Outcome))
    actions = models.BigIntegerField(default=0)
    queue_seconds = models.FloatField(default=0.0)
    overhead_seconds = models.FloatField(default=0.0)
    execution_seconds = models.FloatField(default=0.0)
    act_seconds = models.FloatField(default=0.0)

    class Meta:
        verbose_name = "end"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "task", "outcome"], name="end_of_task")
        ]

    def __str__(self) -> str:
        return f"{self.project}/{self.task} {self.outcome}"


class RolloutRecord(models.Model):
    """A rollout and its outcome; its tokens and artefacts are in its log."""

    id = models.CharField(primary_key=True)
    project = models.CharField()
    task = models.CharField()
    handler = models.CharField(default="")
    instance = models.CharField(default="")
    group = models.CharField(null=True)
    sample = models.BigIntegerField(default=0)
    #: Pool of its backends; empty: its handler calls none.
    llm = models.CharField(default="")
    priority = models.BigIntegerField(default=0)
    state = models.CharField(choices=_choices(RolloutState), default="waiting")
    outcome = models.CharField(null=True, choices=_choices(RolloutOutcome))
    reward = models.FloatField(null=True)
    #: Why it has no reward, did not complete, or waits again.
    reason = models.TextField(default="")
    #: Worker that runs it, or ran it last.
    worker = models.CharField(default="")
    attempt = models.IntegerField(default=0)
    #: As its worker last reported it; null: none.
    stage = models.CharField(null=True)
    #: It waits for the lease of the stage.
    queued = models.BooleanField(default=False)
    turns = models.BigIntegerField(default=0)
    tokens = models.BigIntegerField(default=0)
    #: Action that it awaits.
    awaited = models.CharField(default="")
    metadata = JsonText(default=dict)
    #: Facade that it was submitted through; null: the native API.
    door = models.CharField(null=True)
    submitted_at = models.DateTimeField()
    #: Its first assignment.
    began_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    queue_seconds = models.FloatField(null=True)
    total_seconds = models.FloatField(null=True)
    #: `domain.rollouts.StageTimes` of each stage.
    times = JsonText(default=list)
    prompt_tokens = models.BigIntegerField(default=0)
    response_tokens = models.BigIntegerField(default=0)
    #: Weights versions of its first and its last token.
    first_version = models.BigIntegerField(null=True)
    last_version = models.BigIntegerField(null=True)
    #: Place in the log of completions, as of actions.
    finished_seq = models.BigIntegerField(null=True)
    #: How often it was parked.
    parked_times = models.IntegerField(default=0, db_default=0)
    #: Its latest assignments: ``attempt``, ``worker``, ``at``, and once it left that worker ``until`` and ``reason``.
    attempts = JsonText(default=list, db_default=[])

    class Meta:
        verbose_name = "rollout"
        indexes: ClassVar = [
            models.Index(fields=["project", "id"], name="rollout_project"),
            models.Index(fields=["task", "id"], name="rollout_task"),
            models.Index(
                fields=["group", "id"],
                name="rollout_group",
                condition=models.Q(group__isnull=False),
            ),
            models.Index(
                fields=["state", "id"],
                name="rollout_live_state",
                condition=models.Q(finished_seq__isnull=True),
            ),
            models.Index(
                fields=["project", "finished_seq"],
                name="rollout_completions",
                condition=models.Q(finished_seq__isnull=False),
            ),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["finished_seq"],
                name="rollout_finished_seq",
                condition=models.Q(finished_seq__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return self.id


class NodeRecord(models.Model):
    """A machine that runs or ran actions."""

    name = models.CharField(primary_key=True)
    pool = models.CharField()
    state = models.CharField(choices=NodeAvailability.choices, default=NodeAvailability.READY)
    #: It is drained, and trajectories that have their environment there continue.
    finishing = models.BooleanField(default=False, db_default=False)
    incarnation = models.BigIntegerField(default=0)
    #: Kind → what the node declared (`domain.inventory.ResourceInventory`).
    resources = JsonText(default=dict)
    isolation = models.CharField(default="process")
    #: `domain.protection.Protection`; null from a worker of an earlier version.
    protection = JsonText(null=True)
    #: It declares more than its hardware has.
    oversubscribed = models.BooleanField(default=False)
    hostname = models.CharField(default="")
    version = models.CharField(default="")
    joined_at = models.DateTimeField()
    #: When it was last lost; kept after it returned.
    lost_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = "node"

    def __str__(self) -> str:
        return self.name


def protection_of(node: NodeRecord) -> Protection | None:
    """Return what protects commands on ``node``; None from a worker of an earlier version."""
    return None if node.protection is None else msgspec.convert(node.protection, Protection)


class ProjectionPosition(models.Model):
    """The last journal entry that is in the rows. One row."""

    name = models.CharField(primary_key=True)
    #: Stream id of the last journal entry that is in the rows.
    entry_id = models.CharField()
    seq = models.BigIntegerField()
    #: Nodes that the last configuration drains, for those that join later.
    drained_nodes = JsonText(default=list)
    #: Those of them that let trajectories finish.
    finishing_nodes = JsonText(default=list, db_default=[])

    class Meta:
        verbose_name = "projection position"

    def __str__(self) -> str:
        return f"{self.name} at {self.entry_id}"


class LeaderEpoch(models.Model):
    """The highest epoch of a scheduler loop, so that a wiped Redis does not restart at 1."""

    name = models.CharField(primary_key=True, max_length=32)
    epoch = models.BigIntegerField()
    elected_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name = "leader epoch"

    def __str__(self) -> str:
        return f"{self.name}: {self.epoch}"


class Retention(models.Model):
    """The last completion that retention deleted. One row."""

    name = models.CharField(primary_key=True, max_length=32)
    #: Highest place in the log of completions of any deleted action.
    forgotten_seq = models.BigIntegerField(default=0)

    class Meta:
        verbose_name = "retention mark"

    def __str__(self) -> str:
        return f"{self.name} up to {self.forgotten_seq}"
