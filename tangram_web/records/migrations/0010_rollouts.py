"""Rows of rollouts."""

from django.db import migrations, models

import tangram_web.lib.fields


class Migration(migrations.Migration):
    dependencies = [
        ("records", "0009_doors"),
    ]

    operations = [
        migrations.CreateModel(
            name="RolloutRecord",
            fields=[
                ("id", models.CharField(primary_key=True, serialize=False)),
                ("project", models.CharField()),
                ("task", models.CharField()),
                ("handler", models.CharField(default="")),
                ("instance", models.CharField(default="")),
                ("group", models.CharField(null=True)),
                ("sample", models.BigIntegerField(default=0)),
                ("llm", models.CharField(default="")),
                ("priority", models.BigIntegerField(default=0)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "waiting"),
                            ("assigned", "assigned"),
                            ("parked", "parked"),
                            ("finished", "finished"),
                        ],
                        default="waiting",
                    ),
                ),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("completed", "completed"),
                            ("failed", "failed"),
                            ("timeout", "timeout"),
                            ("cancelled", "cancelled"),
                            ("infra_failed", "infra failed"),
                        ],
                        null=True,
                    ),
                ),
                ("reward", models.FloatField(null=True)),
                ("reason", models.TextField(default="")),
                ("worker", models.CharField(default="")),
                ("attempt", models.IntegerField(default=0)),
                ("stage", models.CharField(null=True)),
                ("queued", models.BooleanField(default=False)),
                ("turns", models.BigIntegerField(default=0)),
                ("tokens", models.BigIntegerField(default=0)),
                ("awaited", models.CharField(default="")),
                ("metadata", tangram_web.lib.fields.JsonText(default=dict)),
                ("door", models.CharField(null=True)),
                ("submitted_at", models.DateTimeField()),
                ("began_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("queue_seconds", models.FloatField(null=True)),
                ("total_seconds", models.FloatField(null=True)),
                ("times", tangram_web.lib.fields.JsonText(default=list)),
                ("prompt_tokens", models.BigIntegerField(default=0)),
                ("response_tokens", models.BigIntegerField(default=0)),
                ("first_version", models.BigIntegerField(null=True)),
                ("last_version", models.BigIntegerField(null=True)),
                ("finished_seq", models.BigIntegerField(null=True)),
            ],
            options={
                "verbose_name": "rollout",
                "indexes": [
                    models.Index(fields=["project", "id"], name="rollout_project"),
                    models.Index(fields=["task", "id"], name="rollout_task"),
                    models.Index(
                        condition=models.Q(("group__isnull", False)),
                        fields=["group", "id"],
                        name="rollout_group",
                    ),
                    models.Index(
                        condition=models.Q(("finished_seq__isnull", True)),
                        fields=["state", "id"],
                        name="rollout_live_state",
                    ),
                    models.Index(
                        condition=models.Q(("finished_seq__isnull", False)),
                        fields=["project", "finished_seq"],
                        name="rollout_completions",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("finished_seq__isnull", False)),
                        fields=("finished_seq",),
                        name="rollout_finished_seq",
                    )
                ],
            },
        ),
    ]
