"""Columns that parts of an earlier version do not write have values of their own in the database, while an upgrade lasts."""

from django.db import migrations, models

import tangram_web.lib.fields


class Migration(migrations.Migration):
    dependencies = [
        ("records", "0015_finishing_nodes"),
    ]

    operations = [
        migrations.AlterField(
            model_name="noderecord",
            name="finishing",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AlterField(
            model_name="projectionposition",
            name="finishing_nodes",
            field=tangram_web.lib.fields.JsonText(db_default=[], default=list),
        ),
        migrations.AlterField(
            model_name="rolloutrecord",
            name="attempts",
            field=tangram_web.lib.fields.JsonText(db_default=[], default=list),
        ),
    ]
