"""Nodes whose drain lets trajectories finish."""

from django.db import migrations, models

from tangram_web.lib.fields import JsonText


class Migration(migrations.Migration):
    dependencies = [
        ("records", "0014_submitters_of_actions"),
    ]

    operations = [
        migrations.AddField(
            model_name="noderecord",
            name="finishing",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="projectionposition",
            name="finishing_nodes",
            field=JsonText(default=list),
        ),
    ]
