"""Two models are renamed; their tables keep their names, so the database does not change."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("webhooks", "0002_sealed_secrets_and_times_of_turns")]

    operations = [
        migrations.AlterModelTable("attempt", "webhooks_attempt"),
        migrations.RenameModel("Attempt", "DeliveryAttempt"),
        migrations.AlterModelTable("standing", "webhooks_standing"),
        migrations.RenameModel("Standing", "LastTurn"),
    ]
