"""Commands of the server say what is missing in one line, and can be given again."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import OperationalError

from domain.errors import Unavailable
from tangram_web.backup import redis_part

TOKEN = ("token", "--name", "ci", "--scope", "read")


@pytest.mark.parametrize(
    ("command", "touched"),
    [
        (TOKEN, "tangram_web.management.commands.token.token_create"),
        (("prune", "--dry-run"), "tangram_web.management.commands.prune.count_old"),
    ],
    ids=["token", "prune"],
)
def test_a_missing_database_is_reported_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], touched: str
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise OperationalError("no such table: pools_token")

    monkeypatch.setattr(touched, missing)

    with pytest.raises(CommandError, match=r"no such table.*TANGRAM_HOME.*manage\.py setup"):
        call_command(*command)


def test_an_invalid_token_request_names_the_option(defaults: None) -> None:
    with pytest.raises(CommandError, match=r"^--project: there is no project 'unknown'"):
        call_command(*TOKEN, "--project", "unknown")


@pytest.mark.django_db(transaction=True)
def test_a_backup_that_failed_can_be_made_again_in_the_same_folder(
    redis_bus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = redis_part.save

    def away(*_: object) -> int:
        raise Unavailable("redis does not answer")

    monkeypatch.setattr(redis_part, "save", away)
    with pytest.raises(CommandError, match="redis does not answer"):
        call_command("backup", str(tmp_path / "b"))
    monkeypatch.setattr(redis_part, "save", save)
    said = StringIO()
    call_command("backup", str(tmp_path / "b"), stdout=said)

    assert "keys of Redis, as of" in said.getvalue()
