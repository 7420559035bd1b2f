"""An endpoint may watch saved views; those that exist watch none."""

from __future__ import annotations

from django.db import migrations, models

import tangram_web.lib.fields


class Migration(migrations.Migration):
    dependencies = [("webhooks", "0004_problems_of_an_endpoint")]

    operations = [
        migrations.AddField("endpoint", "views", tangram_web.lib.fields.JsonText(default=list)),
        migrations.CreateModel(
            name="WatchedView",
            fields=[
                ("view", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("found_since", models.DateTimeField()),
            ],
        ),
    ]
