"""Drains of nodes whose open trajectories continue."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pools", "0017_node_groups")]

    operations = [
        migrations.AddField(
            model_name="nodedrain",
            name="finishing",
            field=models.BooleanField(default=False),
        ),
    ]
