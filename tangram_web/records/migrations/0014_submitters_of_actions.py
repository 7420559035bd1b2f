"""Names of the tokens and accounts that submitted actions."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("records", "0013_orders_of_the_explorer"),
    ]

    operations = [
        migrations.AddField(
            model_name="actionrecord",
            name="submitted_by",
            field=models.CharField(null=True),
        ),
    ]
