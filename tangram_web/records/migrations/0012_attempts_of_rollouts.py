"""Workers that had a rollout, with the reasons why it left them."""

from django.db import migrations

import tangram_web.lib.fields


class Migration(migrations.Migration):
    dependencies = [
        ("records", "0011_parked_rollouts"),
    ]

    operations = [
        migrations.AddField(
            model_name="rolloutrecord",
            name="attempts",
            field=tangram_web.lib.fields.JsonText(db_default="[]", default=list),
        ),
    ]
