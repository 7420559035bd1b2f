"""A worker without root, for which isolation ``apptainer`` is made: what it runs, and what its node reports."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from managers.cpu.tree import copying
from managers.cpu.tree.copying import has_other_owners, in_namespace
from managers.cpu.workspaces import Workspaces
from tests.apptainer_stand_in import install
from tests.conformance.process.worker_of import STRANGER, run_as


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that another user may enter."""
    with tempfile.TemporaryDirectory(prefix="rootless-") as name:
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts workers of other users")
async def test_a_worker_without_root_runs_programs_as_root_of_a_namespace(place: Path) -> None:
    program = install(place / "program", for_others=True)
    for path in (place, *place.rglob("*")):
        os.chown(path, STRANGER, STRANGER)
    script = (
        "id -u; grep -c . /proc/net/dev; echo x >/srv/mine; cat /srv/mine; cat /proc/self/uid_map"
    )
    found = await run_as(STRANGER, place, "apptainer", script, apptainer_program=str(program))

    text = found["report"]["result"]["stdout"].split()
    assert text[:1] == ["0"]
    assert text[2] == "x"
    assert text[3:] == ["0", str(STRANGER), "1"], "root inside is the worker's user outside"
    protection = found["protection"]
    assert protection["isolation"] == "apptainer"
    assert protection.get("uids", "worker") == "worker"
    assert protection["seccomp"] is True
    assert f"no range of 65536 ids for {STRANGER}" in protection["missing"]
    assert "root only of an image" in protection["trees"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
def test_files_of_subordinate_ids_are_copied_and_deleted_in_a_namespace_that_maps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    (tree / "var" / "lib").mkdir(parents=True)
    (tree / "var" / "lib" / "file").write_text("x")
    assert not has_other_owners(tree)
    assert in_namespace(["cp"], tree) == ["cp"], "root needs none"
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert has_other_owners(tree), "they are root's"
    expected = ["unshare", "--user", "--map-root-user", "--map-auto", "cp"]
    assert in_namespace(["cp"], tree) == expected
    for path in (tree, *tree.rglob("*")):
        os.chown(path, STRANGER, STRANGER)
    assert in_namespace(["cp"], tree) == ["unshare", "--user", "--map-root-user", "cp"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
def test_a_folder_with_files_of_subordinate_ids_is_deleted_by_their_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspaces = Workspaces(tmp_path)
    workspaces.open()
    folder = tmp_path / "environments" / "one"
    (folder / "layer").mkdir(parents=True)
    run: list[list[str]] = []

    def remember(words: list[str], *_: object) -> list[str]:
        run.append(words)
        return words

    monkeypatch.setattr(copying, "in_namespace", remember)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    workspaces.remove(folder)
    assert [words[:3] for words in run] == [["rm", "--recursive", "--force"]]
    assert not list((tmp_path / "yard").iterdir())
