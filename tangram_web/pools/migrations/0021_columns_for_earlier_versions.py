"""Columns that parts of an earlier version do not write have values of their own in the database, while an upgrade lasts."""

from django.db import migrations, models

import tangram_web.lib.fields


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0020_move_environments"),
    ]

    operations = [
        migrations.AlterField(
            model_name="nodedrain",
            name="finishing",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AlterField(
            model_name="pool",
            name="egress",
            field=tangram_web.lib.fields.JsonText(blank=True, db_default={}, default=dict),
        ),
        migrations.AlterField(
            model_name="pool",
            name="host_network",
            field=models.BooleanField(db_default=True, default=False),
        ),
        migrations.AlterField(
            model_name="pool",
            name="sandbox",
            field=models.CharField(
                blank=True,
                choices=[("required", "required"), ("off", "off")],
                db_default="",
                default="required",
                max_length=16,
            ),
        ),
        migrations.AlterField(
            model_name="pool",
            name="warm",
            field=tangram_web.lib.fields.JsonText(blank=True, db_default={}, default=dict),
        ),
        migrations.AlterField(
            model_name="project",
            name="limits",
            field=tangram_web.lib.fields.JsonText(blank=True, db_default={}, default=dict),
        ),
        migrations.AlterField(
            model_name="token",
            name="last_used_from",
            field=models.CharField(blank=True, db_default="", default="", max_length=64),
        ),
        migrations.AlterField(
            model_name="token",
            name="networks",
            field=tangram_web.lib.fields.JsonText(db_default=[], default=list),
        ),
    ]
