"""Apptainer of a machine: its version, the ids that it may map, and the cures of what is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from domain.errors import InvalidRequest, Unavailable
from managers.cpu.apptainer import program
from managers.cpu.apptainer.settings import ApptainerSettings, CacheMode


def a_program(folder: Path, answer: str) -> str:
    path = folder / "apptainer"
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("subuid", "subgid"):
        (tmp_path / name).write_text("other:100000:65536\n4711:165536:65536\n")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    return tmp_path


def test_a_machine_without_apptainer_names_the_cure(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(
        Unavailable, match=r"apptainer is not installed: install Apptainer 1\.1 or later"
    ):
        program.find_apptainer()


def test_a_program_that_is_named_and_missing_is_named(tmp_path):
    with pytest.raises(Unavailable, match="/nowhere/apptainer is no program"):
        program.find_apptainer("/nowhere/apptainer")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("echo apptainer version 1.0.3", "has version 1.0.3, and 1.1.0 is needed"),
        ("echo hello", "answers 'hello', which is no version"),
        ("echo broken >&2; exit 3", "--version failed: broken"),
    ],
)
def test_a_program_that_does_not_do_is_refused(tmp_path, answer, said):
    with pytest.raises(Unavailable, match=said):
        program.find_apptainer(a_program(tmp_path, answer))


def test_a_range_of_subordinate_ids_gives_all_users_of_an_image(etc):
    assert program.lacking_users(etc, 4711) == ""


@pytest.mark.parametrize("line", ["", "4712:100000:65535\n", "4712:100000:\n", "someone:1:65536\n"])
def test_an_account_without_a_range_is_given_the_line_to_add(etc, line):
    (etc / "subuid").write_text(line)
    said = program.lacking_users(etc, 4712)
    assert "subuid has no range of 65536 ids for 4712" in said
    assert "add the line 4712:100000:65536" in said


def test_a_machine_without_the_programs_that_map_ids_says_which(etc, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert program.lacking_users(etc, 4711).startswith("newuidmap is missing")


@pytest.mark.parametrize(
    ("name", "value", "cure"),
    [
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "profile of AppArmor"),
    ],
)
def test_a_kernel_that_forbids_user_namespaces_is_named_with_its_cure(tmp_path, name, value, cure):
    assert program.forbidden_namespaces(tmp_path) == ""
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(f"{value}\n")
    assert cure in program.forbidden_namespaces(tmp_path)


def test_settings_have_defaults_and_their_names():
    given = {"apptainer_cache_mode": "lock", "apptainer_starts": "4", "isolation": "apptainer"}
    found = ApptainerSettings.parse(given)
    assert (found.cache_mode, found.starts, found.build_seconds) == (CacheMode.LOCK, 4, 3600.0)
    assert found.cache_bytes == 0


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("cache_mode", "always", "apptainer_cache_mode is one of scratch, versioned, lock"),
        ("starts", "0", "apptainer_starts is '0': give a number from 1 up"),
        ("build_seconds", "soon", "apptainer_build_seconds is 'soon'"),
        ("cache", "here", "apptainer_cache is 'here': give an absolute path"),
        ("cahce", "/x", "apptainer_cahce is no setting: there are apptainer_program"),
    ],
)
def test_a_wrong_setting_is_named(name, text, said):
    with pytest.raises(InvalidRequest, match=said):
        ApptainerSettings.parse({f"apptainer_{name}": text})
