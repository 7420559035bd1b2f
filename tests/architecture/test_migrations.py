"""Rows that a part of the version before writes are accepted while an upgrade lasts: the database is migrated first."""

from __future__ import annotations

from typing import Any, Final

from django.db.migrations import AddField, DeleteModel, Migration, RemoveField, RenameField
from django.db.migrations.loader import MigrationLoader
from django.db.models import NOT_PROVIDED

#: App → number of its last migration in 0.1.0, the oldest version that an upgrade begins with.
OF_0_1_0: Final = {"pools": 8, "records": 7, "webhooks": 2, "audit": 2, "accounts": 2, "people": 2, "simulations": 1}  # fmt: skip
#: What rows of versions without the column mean; new rows begin with another value.
MEANT_OTHERWISE: Final = {("pool", "sandbox"): "", ("pool", "host_network"): True}


def later_migrations() -> tuple[list[Migration], Any]:
    """Return our migrations after 0.1.0, and the state after all of them."""
    loader = MigrationLoader(None, ignore_no_migrations=True)
    ours = [
        each
        for (app, name), each in loader.disk_migrations.items()
        if type(each).__module__.startswith("tangram_web.")
        and int(name.partition("_")[0]) > OF_0_1_0.get(app, 0)
    ]
    return ours, loader.project_state()


def test_a_column_that_was_added_has_a_value_for_rows_of_the_version_before() -> None:
    migrations, state = later_migrations()
    added = {
        (each.app_label, operation.model_name_lower, operation.name): state.models[
            each.app_label, operation.model_name_lower
        ].fields[operation.name]
        for each in migrations
        for operation in each.operations
        if isinstance(operation, AddField)
    }
    assert len(added) >= 17
    required = {name: field for name, field in added.items() if not field.null}
    assert [name for name, field in required.items() if field.db_default is NOT_PROVIDED] == []
    # A JSON column takes the value, not its text.
    expected = {name: MEANT_OTHERWISE.get(name[1:], field.get_default()) for name, field in required.items()}  # fmt: skip
    assert {name: field.db_default for name, field in required.items()} == expected


def test_no_column_goes_that_the_version_before_reads() -> None:
    migrations, _ = later_migrations()
    gone = (RemoveField, RenameField, DeleteModel)
    assert [
        (str(each), operation.describe())
        for each in migrations
        for operation in each.operations
        if isinstance(operation, gone)
    ] == []
