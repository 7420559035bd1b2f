"""What projects may have of the nodes of a pool."""

from __future__ import annotations

from django.db import migrations

import tangram_web.lib.fields


class Migration(migrations.Migration):
    dependencies = [("pools", "0007_silence_of_nodes")]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="shares",
            field=tangram_web.lib.fields.JsonText(blank=True, default=dict),
        ),
    ]
