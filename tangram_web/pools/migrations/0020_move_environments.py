"""Whether idle environments leave a node that lets its trajectories finish."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pools", "0019_join_tokens")]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="move_environments",
            field=models.BooleanField(db_default=True, default=True),
        ),
    ]
