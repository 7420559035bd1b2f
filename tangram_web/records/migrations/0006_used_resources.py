"""What commands used of what they were granted."""

from django.db import migrations

import tangram_web.lib.fields


class Migration(migrations.Migration):
    dependencies = [
        ("records", "0005_costs"),
    ]

    operations = [
        migrations.AddField(
            model_name="actionrecord",
            name="used",
            field=tangram_web.lib.fields.JsonText(null=True),
        ),
    ]
