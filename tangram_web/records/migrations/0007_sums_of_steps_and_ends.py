"""Sums of steps and of ends, made once from the actions that are there."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

OUTCOMES = (
    "completed", "timeout", "expired", "cancelled", "oom_killed", "infra_failed", "unknown",
)  # fmt: skip


def add_up(apps: Any, schema_editor: Any) -> None:
    """Fill both tables from the rows of actions."""
    actions = apps.get_model("records", "ActionRecord").objects
    steps, ends = apps.get_model("records", "StepRecord"), apps.get_model("records", "EndRecord")
    total = models.Sum
    found = actions.filter(step__isnull=False).order_by().values("project", "task", "step")
    summed = found.annotate(
        count=models.Count("id"), done=models.Count("finished_seq"), paid=models.Count("reward"),
        queue=total("queue_seconds"), act=total("act_seconds"), sum=total("reward"),
        begun=models.Min("submitted_at"), ended=models.Max("finished_at"),
    )  # fmt: skip
    steps.objects.bulk_create(
        [
            steps(
                project=row["project"], task=row["task"], step=row["step"], actions=row["count"],
                finished=row["done"], rewarded=row["paid"], queue_seconds=row["queue"] or 0.0,
                act_seconds=row["act"] or 0.0, reward=row["sum"] or 0.0,
                begun_wall=row["begun"].timestamp(),
                ended_wall=row["ended"].timestamp() if row["ended"] else 0.0,
            )
            for row in summed.iterator()
        ],
        batch_size=500,
    )  # fmt: skip
    finished = actions.filter(outcome__isnull=False).order_by().values("project", "task", "outcome")
    by_end = finished.annotate(
        count=models.Count("id"), queue=total("queue_seconds"), overhead=total("overhead_seconds"),
        execution=total("execution_seconds"), act=total("act_seconds"),
    )  # fmt: skip
    ends.objects.bulk_create(
        [
            ends(
                project=row["project"], task=row["task"], outcome=row["outcome"],
                actions=row["count"], queue_seconds=row["queue"] or 0.0,
                overhead_seconds=row["overhead"] or 0.0,
                execution_seconds=row["execution"] or 0.0, act_seconds=row["act"] or 0.0,
            )
            for row in by_end.iterator()
        ],
        batch_size=500,
    )  # fmt: skip


def count() -> Any:
    return models.BigIntegerField(default=0)


def total() -> Any:
    return models.FloatField(default=0.0)


class Migration(migrations.Migration):
    dependencies = [
        ("records", "0006_used_resources"),
    ]

    operations = [
        migrations.CreateModel(
            name="StepRecord",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        primary_key=True, serialize=False, verbose_name="ID", auto_created=True
                    ),
                ),
                ("project", models.CharField()),
                ("task", models.CharField()),
                ("step", models.BigIntegerField()),
                *((name, count()) for name in ("actions", "finished", "rewarded")),
                *((name, total()) for name in ("queue_seconds", "act_seconds", "reward")),
                *((name, total()) for name in ("begun_wall", "ended_wall")),
            ],
            options={"verbose_name": "step"},
        ),
        migrations.CreateModel(
            name="EndRecord",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        primary_key=True, serialize=False, verbose_name="ID", auto_created=True
                    ),
                ),
                ("project", models.CharField()),
                ("task", models.CharField()),
                (
                    "outcome",
                    models.CharField(choices=[(name, name.replace("_", " ")) for name in OUTCOMES]),
                ),
                ("actions", count()),
                *(
                    (f"{name}_seconds", total())
                    for name in ("queue", "overhead", "execution", "act")
                ),
            ],
            options={"verbose_name": "end"},
        ),
        migrations.AddConstraint(
            model_name="steprecord",
            constraint=models.UniqueConstraint(
                fields=("project", "task", "step"), name="step_of_task"
            ),
        ),
        migrations.AddConstraint(
            model_name="endrecord",
            constraint=models.UniqueConstraint(
                fields=("project", "task", "outcome"), name="end_of_task"
            ),
        ),
        migrations.RunPython(add_up, migrations.RunPython.noop),
    ]
