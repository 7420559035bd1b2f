"""Groups of nodes that an engine of the cluster places."""

from __future__ import annotations

import django.core.validators
from django.db import migrations, models

import tangram_web.lib.fields


class Migration(migrations.Migration):
    dependencies = [("pools", "0016_selectors")]

    operations = [
        migrations.CreateModel(
            name="NodeGroupRow",
            fields=[
                (
                    "name",
                    models.CharField(
                        max_length=128,
                        primary_key=True,
                        serialize=False,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[A-Za-z0-9][A-Za-z0-9._:@+-]*\\Z",
                                "letters, digits and . _ : @ + - only",
                            )
                        ],
                    ),
                ),
                ("spec", tangram_web.lib.fields.JsonText(default=dict)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"verbose_name": "node group"},
        ),
    ]
