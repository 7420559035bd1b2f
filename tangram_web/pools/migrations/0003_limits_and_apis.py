"""Resources get quotas, recovery and the API behind them."""

from django.db import migrations

from tangram_web.lib.fields import JsonText


class Migration(migrations.Migration):
    dependencies = [("pools", "0002_default_policy")]

    operations = [
        migrations.AddField(
            model_name="resource", name="spec", field=JsonText(default=dict, blank=True)
        ),
    ]
