"""Number of times that a rollout was parked."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("records", "0010_rollouts"),
    ]

    operations = [
        migrations.AddField(
            model_name="rolloutrecord",
            name="parked_times",
            field=models.IntegerField(db_default=0, default=0),
        ),
    ]
