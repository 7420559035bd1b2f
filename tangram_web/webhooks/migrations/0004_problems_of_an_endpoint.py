"""An endpoint may get some kinds of problems only; those that exist get all kinds."""

from __future__ import annotations

from django.db import migrations

import tangram_web.lib.fields


class Migration(migrations.Migration):
    dependencies = [("webhooks", "0003_models_have_names_of_their_own")]

    operations = [
        migrations.AddField("endpoint", "problems", tangram_web.lib.fields.JsonText(default=list)),
    ]
