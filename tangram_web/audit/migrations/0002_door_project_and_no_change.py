"""Entries get an interface and a project; PostgreSQL refuses all changes, SQLite refuses updates.

SQLite has no trigger against deletion: tests empty its tables with DELETE, and a process that can
write the file could drop the trigger as well.
"""

from django.db import migrations, models
from django.utils import timezone

_POSTGRESQL = (
    """CREATE FUNCTION audit_is_written_once() RETURNS trigger AS $$
    BEGIN RAISE EXCEPTION 'audit entries are written once'; END $$ LANGUAGE plpgsql""",
    """CREATE TRIGGER audit_is_written_once BEFORE UPDATE OR DELETE ON audit_auditentry
    FOR EACH ROW EXECUTE FUNCTION audit_is_written_once()""",
)
_SQLITE = (
    """CREATE TRIGGER audit_is_written_once BEFORE UPDATE ON audit_auditentry
    BEGIN SELECT RAISE(ABORT, 'audit entries are written once'); END""",
)


def _guard(apps, schema_editor):
    for statement in _POSTGRESQL if schema_editor.connection.vendor == "postgresql" else _SQLITE:
        schema_editor.execute(statement)


def _unguard(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP TRIGGER audit_is_written_once ON audit_auditentry")
        schema_editor.execute("DROP FUNCTION audit_is_written_once")
    else:
        schema_editor.execute("DROP TRIGGER audit_is_written_once")


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_entries_of_their_own")]

    operations = [
        migrations.AddField(
            model_name="auditentry",
            name="via",
            field=models.CharField(
                choices=[("web", "Web"), ("api", "Api"), ("cli", "Cli"), ("system", "System")],
                default="api",
                max_length=8,
            ),
        ),
        migrations.AddField(
            model_name="auditentry",
            name="project",
            field=models.CharField(blank=True, default="", max_length=128),
        ),
        migrations.AlterField(
            model_name="auditentry", name="actor", field=models.CharField(max_length=150)
        ),
        migrations.AlterField(
            model_name="auditentry", name="target", field=models.CharField(max_length=300)
        ),
        migrations.AlterField(
            model_name="auditentry",
            name="at",
            field=models.DateTimeField(db_index=True, default=timezone.now),
        ),
        migrations.AddIndex(
            model_name="auditentry", index=models.Index(fields=["target"], name="audit_target")
        ),
        migrations.RunPython(_guard, _unguard),
    ]
