"""Whether an action that waits for its node moves with its environment to a node that has room."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pools", "0021_columns_for_earlier_versions")]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="rebalance_environments",
            field=models.BooleanField(db_default=True, default=True),
        ),
    ]
