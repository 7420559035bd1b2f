from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pools", "0001_configuration")]

    operations = [
        migrations.AlterField(
            model_name="pool",
            name="policy",
            field=models.CharField(default="malleable", max_length=128),
        ),
    ]
