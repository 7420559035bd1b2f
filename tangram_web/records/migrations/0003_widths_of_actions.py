"""Units over time of actions that were resized."""

from django.db import migrations

import tangram_web.lib.fields


class Migration(migrations.Migration):
    dependencies = [
        ("records", "0002_leader_epochs"),
    ]

    operations = [
        migrations.AddField(
            model_name="actionrecord",
            name="widths",
            field=tangram_web.lib.fields.JsonText(null=True),
        ),
    ]
