"""The audit takes its table over from the configuration: entries stay, under another name."""

from django.db import migrations, models

from tangram_web.lib.fields import JsonText


class Migration(migrations.Migration):
    initial = True
    dependencies = [("pools", "0006_audit_leaves")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name="AuditEntry",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True,
                                primary_key=True,
                                serialize=False,
                                verbose_name="ID",
                            ),
                        ),
                        ("actor", models.CharField(max_length=128)),
                        ("token_name", models.CharField(blank=True, default="", max_length=128)),
                        ("verb", models.CharField(max_length=64)),
                        ("target", models.CharField(max_length=200)),
                        ("before", JsonText(null=True)),
                        ("after", JsonText(null=True)),
                        ("request_id", models.CharField(blank=True, default="", max_length=128)),
                        ("at", models.DateTimeField(auto_now_add=True, db_index=True)),
                    ],
                    options={"verbose_name_plural": "audit entries"},
                ),
            ],
        ),
    ]
