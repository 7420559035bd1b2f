"""The audit gets an app of its own; its table goes with it."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("pools", "0005_light_by_default")]

    operations = [
        migrations.AlterModelTable(name="auditentry", table="audit_auditentry"),
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.DeleteModel(name="AuditEntry")]
        ),
    ]
