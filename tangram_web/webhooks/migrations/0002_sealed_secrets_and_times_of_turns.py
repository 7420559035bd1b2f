"""Secrets are encrypted; exhausted quotas are stored with their last time."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from tangram_web.lib.sealing import reseal, unseal

PURPOSE = "webhook"


def _each(apps: Any, change: Any) -> None:
    for row in apps.get_model("webhooks", "Endpoint").objects.all():
        row.secret = change(row.secret, PURPOSE)
        row.former_secret = change(row.former_secret, PURPOSE)
        row.save(update_fields=["secret", "former_secret"])


def _seal(apps: Any, editor: Any) -> None:
    _each(apps, reseal)


def _open(apps: Any, editor: Any) -> None:
    _each(apps, unseal)


class Migration(migrations.Migration):
    dependencies = [("webhooks", "0001_endpoints_and_outbox")]

    operations = [
        migrations.AlterField("endpoint", "secret", models.TextField()),
        migrations.AlterField(
            "endpoint", "former_secret", models.TextField(blank=True, default="")
        ),
        migrations.RunPython(_seal, _open),
        # Its rows are written again when a quota runs out.
        migrations.DeleteModel("Standing"),
        migrations.CreateModel(
            name="Standing",
            fields=[
                ("name", models.CharField(max_length=200, primary_key=True, serialize=False)),
                ("turned_at", models.DateTimeField()),
            ],
        ),
    ]
