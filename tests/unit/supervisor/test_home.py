"""One data folder, one Tangram."""

from __future__ import annotations

import os

import pytest

from tangram_web.supervisor.data_folder import DataFolder, mark_schema_current, schema_is_current
from tangram_web.supervisor.errors import StartFailed


def test_home_is_readable_by_its_owner_alone(tmp_path):
    home = DataFolder.open(tmp_path / "deep" / "home")

    assert home.path.stat().st_mode & 0o077 == 0


def test_home_that_cannot_be_made_names_the_folder(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StartFailed, match=r"cannot make .*file.*--home"):
        DataFolder.open(tmp_path / "file" / "home")


def test_second_start_from_the_same_home_names_the_first(home):
    with (
        home.locked(),
        pytest.raises(StartFailed, match=f"process {os.getpid()}"),
        home.locked(),
    ):
        pass


def test_home_is_free_again_after_its_tangram_ended(home):
    with home.locked():
        pass
    with home.locked():
        pass


@pytest.fixture
def checkout(tmp_path):
    """Return a checkout with one migration."""
    root = tmp_path / "checkout"
    (root / "requirements").mkdir(parents=True)
    (root / "requirements" / "core.lock").write_text("django==5.2.19\n")
    (root / "tangram_web" / "pools" / "migrations").mkdir(parents=True)
    (root / "tangram_web" / "pools" / "migrations" / "0001_pools.py").write_text("")
    return root


def test_schema_is_current_once_marked(home, checkout):
    home.database.touch()
    assert not schema_is_current(home, checkout, {})

    mark_schema_current(home, checkout)

    assert schema_is_current(home, checkout, {})


@pytest.mark.parametrize(
    ("change", "environment"),
    [
        ("tangram_web/pools/migrations/0002_quotas.py", {}),
        ("requirements/core.lock", {}),
        (None, {"DATABASE_URL": "postgresql://db/tangram"}),
    ],
    ids=["a new migration", "a new version", "a database elsewhere"],
)
def test_schema_is_not_taken_for_current_after(home, checkout, change, environment):
    home.database.touch()
    mark_schema_current(home, checkout)
    if change:
        (checkout / change).write_text("# changed")

    assert not schema_is_current(home, checkout, environment)


def test_schema_of_a_database_that_was_deleted_is_not_current(home, checkout):
    mark_schema_current(home, checkout)

    assert not schema_is_current(home, checkout, {})
