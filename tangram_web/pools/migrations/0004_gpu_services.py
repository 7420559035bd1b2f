"""GPU services are declared."""

import django.core.validators
from django.db import migrations, models

from tangram_web.lib.fields import JsonText


class Migration(migrations.Migration):
    dependencies = [("pools", "0003_limits_and_apis")]

    operations = [
        migrations.CreateModel(
            name="GpuServiceRow",
            fields=[
                (
                    "name",
                    models.CharField(
                        max_length=128,
                        primary_key=True,
                        serialize=False,
                        validators=[
                            django.core.validators.RegexValidator(
                                r"^[A-Za-z0-9][A-Za-z0-9._:@+-]*\Z",
                                "letters, digits and . _ : @ + - only",
                            )
                        ],
                    ),
                ),
                ("spec", JsonText(default=dict)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"verbose_name": "GPU service"},
        ),
    ]
