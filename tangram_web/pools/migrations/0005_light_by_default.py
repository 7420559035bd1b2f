"""Whether actions of a pool may be light by their family's history."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pools", "0004_gpu_services")]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="light_by_default",
            field=models.BooleanField(default=True),
        ),
    ]
