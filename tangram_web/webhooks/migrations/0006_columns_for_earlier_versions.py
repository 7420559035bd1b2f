"""Columns that parts of an earlier version do not write have values of their own in the database, while an upgrade lasts."""

from django.db import migrations

import tangram_web.lib.fields


class Migration(migrations.Migration):
    dependencies = [
        ("webhooks", "0005_watched_views"),
    ]

    operations = [
        migrations.AlterField(
            model_name="endpoint",
            name="problems",
            field=tangram_web.lib.fields.JsonText(db_default=[], default=list),
        ),
        migrations.AlterField(
            model_name="endpoint",
            name="views",
            field=tangram_web.lib.fields.JsonText(db_default=[], default=list),
        ),
    ]
