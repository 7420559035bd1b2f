"""Prepared environments that the nodes of a pool keep."""

from __future__ import annotations

from django.db import migrations

import tangram_web.lib.fields


class Migration(migrations.Migration):
    dependencies = [("pools", "0013_project_limits")]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="warm",
            field=tangram_web.lib.fields.JsonText(blank=True, default=dict),
        ),
    ]
