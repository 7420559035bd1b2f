"""Settings come from the environment; a bad value names its variable."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from tangram_web.lib import env
from tests.architecture.tree import ROOT

HERE = Path("unused.sqlite3")


@pytest.mark.parametrize(
    ("text", "expected"), [("1", True), ("YES", True), ("off", False), ("", False)]
)
def test_yes_and_no_are_understood(monkeypatch, text, expected):
    monkeypatch.setenv("FLAG", text)

    assert env.env_bool("FLAG", default=not expected) is expected


def test_default_holds_when_nothing_is_set(monkeypatch):
    monkeypatch.delenv("NAME", raising=False)

    assert env.env_bool("NAME", default=True) is True
    assert env.env_text("NAME", "x") == "x"
    assert env.env_float("NAME", 3.5) == 3.5
    assert env.env_list("NAME", ["a"]) == ["a"]


def test_variables_of_one_prefix_become_settings(monkeypatch):
    monkeypatch.setenv("PART_IMAGE", "swe:1")
    monkeypatch.setenv("PARTY", "no")

    assert env.env_prefixed("PART_", "part_") == {"part_image": "swe:1"}


def test_folders_are_split_at_colons_and_made_absolute(monkeypatch):
    monkeypatch.setenv("NAME", "/a:~/b::c")

    found = env.env_folders("NAME", [])

    assert found == ["/a", str(Path("~/b").expanduser()), str(Path("c").absolute())]
    monkeypatch.setenv("NAME", "")
    assert env.env_folders("NAME", [Path("/d")]) == ["/d"]


def test_list_is_split_at_commas(monkeypatch):
    monkeypatch.setenv("NAME", " a, b ,,c")

    assert env.env_list("NAME", []) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda: env.env_bool("NAME", default=False), "perhaps"),
        (lambda: env.env_float("NAME", 1.0), "many"),
        (lambda: env.env_float("NAME", 1.0, minimum=1.0), "0"),
        (lambda: env.env_redis_url("NAME", "unix:///x"), "http://localhost"),
        (lambda: env.env_database("NAME", HERE), "mysql://localhost/x"),
        (lambda: env.env_database("NAME", HERE), "postgresql://localhost"),
        (lambda: env.env_database("NAME", HERE), "postgresql://localhost:many/x"),
        (lambda: env.env_database("NAME", HERE), "sqlite:///"),
        (lambda: env.env_directory("NAME", HERE), "/dev/null/below"),
        (lambda: env.env_secret("NAME", HERE), "short"),
    ],
    ids=[
        "neither yes nor no", "no number", "too small", "no redis", "unknown database",
        "no database name", "no port", "no path", "no directory", "short secret",
    ],
)  # fmt: skip
def test_bad_value_names_its_variable(monkeypatch, read, value):
    monkeypatch.setenv("NAME", value)

    with pytest.raises(ImproperlyConfigured, match="NAME"):
        read()


@pytest.mark.parametrize(
    ("url", "name"),
    [("sqlite:////srv/t.sqlite3", "/srv/t.sqlite3"), ("sqlite:///here%20.db", "here .db")],
)
def test_sqlite_url_gives_a_path(monkeypatch, url, name):
    monkeypatch.setenv("DATABASE_URL", url)

    database = env.env_database("DATABASE_URL", HERE)

    assert database["NAME"] == name
    assert database["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
    assert "journal_mode=WAL" in database["OPTIONS"]["init_command"]


def test_postgresql_url_gives_all_its_parts(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://ann:p%40ss@db:6543/tan%20gram?sslmode=require")

    database = env.env_database("DATABASE_URL", HERE)

    assert database["ENGINE"] == "django.db.backends.postgresql"
    assert (database["USER"], database["PASSWORD"]) == ("ann", "p@ss")
    assert (database["HOST"], database["PORT"]) == ("db", "6543")
    assert (database["NAME"], database["OPTIONS"]) == (
        "tan gram",
        {"connect_timeout": "5", "sslmode": "require"},
    )


def test_directory_is_made_private(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME_DIR", str(tmp_path / "a" / "b"))

    made = env.env_directory("HOME_DIR", HERE)

    assert made.stat().st_mode & 0o777 == 0o700


def test_secret_is_made_once_and_private(monkeypatch, tmp_path):
    monkeypatch.delenv("SECRET", raising=False)
    path = tmp_path / "secret"

    first = env.env_secret("SECRET", path)

    assert len(first) >= 32
    assert env.env_secret("SECRET", path) == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_of_two_processes_that_make_a_secret_both_use_the_first(monkeypatch, tmp_path):
    monkeypatch.delenv("SECRET", raising=False)
    path = tmp_path / "secret"
    path.write_text("the other process was faster, by a moment")

    assert env.make_secret(path) == "the other process was faster, by a moment"


@pytest.mark.parametrize(("reported", "secure"), [("1", True), ("0", False)])
def test_cookies_are_for_tls_alone_where_browsers_come_by_it(monkeypatch, reported, secure):
    monkeypatch.setenv("TANGRAM_HTTPS", reported)

    read = runpy.run_path(str(ROOT / "tangram_web" / "settings.py"))

    assert (read["SESSION_COOKIE_SECURE"], read["CSRF_COOKIE_SECURE"]) == (secure, secure)
    assert bool(read["SECURE_HSTS_SECONDS"]) is secure
    assert (read["SESSION_COOKIE_HTTPONLY"], read["SESSION_COOKIE_SAMESITE"]) == (True, "Lax")
    assert read["X_FRAME_OPTIONS"] == "DENY"


def test_a_key_file_is_private_and_a_damaged_one_is_named(tmp_path):
    path = tmp_path / "secret_key"
    path.write_text("k" * 40)
    path.chmod(0o644)

    assert env.env_secret("TANGRAM_TEST_KEY", path) == "k" * 40
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("cut")
    with pytest.raises(ImproperlyConfigured, match="restore it from a copy"):
        env.env_secret("TANGRAM_TEST_KEY", path)
