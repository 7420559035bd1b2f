"""Folders that get a disk of their own: nothing is written in one before it has the disk."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from domain.ids import ActionId, TrajectoryKey
from managers.cpu.workspaces import Workspaces

TRAJECTORY = TrajectoryKey("lab/trj-1")


class HeldDisks:
    """Disks that are made when the test says so."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.made: dict[str, int] = {}
        self.removed: list[str] = []

    def make(self, folder: Path, quota_bytes: int) -> bool:
        assert list(folder.iterdir()) == []
        self.begun.set()
        assert self.go.wait(10)
        self.made[folder.name] = quota_bytes
        return True

    def size(self, folder: Path) -> int:
        return self.made.get(folder.name, 0)

    def remove(self, folder: Path) -> None:
        self.removed.append(folder.name)
        self.made.pop(folder.name, None)

    def move(self, folder: Path, place: Path) -> None:
        folder.rename(place)
        self.made[place.name] = self.made.pop(folder.name)


def workspaces_with(disks: HeldDisks, state: Path) -> Workspaces:
    workspaces = Workspaces(state)
    workspaces.open()
    workspaces.disks = disks
    return workspaces


def test_an_upload_waits_for_the_disk_of_its_folder(tmp_path: Path) -> None:
    disks = HeldDisks()
    workspaces = workspaces_with(disks, tmp_path)
    with ThreadPoolExecutor(2) as threads:
        command = threads.submit(workspaces.ensure, TRAJECTORY, 100)
        assert disks.begun.wait(10)
        upload = threads.submit(workspaces.ensure, TRAJECTORY)
        furnished = list(workspaces.of(TRAJECTORY).iterdir())
        disks.go.set()
        folder = command.result(10)
        assert upload.result(10) == folder

    assert furnished == []
    assert workspaces.disk_bytes(folder) == 100
    assert workspaces.files(folder).is_dir()


def test_a_folder_that_exists_or_declares_nothing_gets_no_disk(tmp_path: Path) -> None:
    disks = HeldDisks()
    disks.go.set()
    workspaces = workspaces_with(disks, tmp_path)

    workspaces.ensure(TRAJECTORY)
    workspaces.ensure(TRAJECTORY, 100)
    workspaces.alone(ActionId("act_1"))

    assert disks.made == {}


def test_the_disk_of_a_removed_folder_is_removed(tmp_path: Path) -> None:
    disks = HeldDisks()
    disks.go.set()
    workspaces = workspaces_with(disks, tmp_path)
    folder = workspaces.alone(ActionId("act_1"), 100)

    workspaces.remove(folder)

    assert disks.removed == [folder.name]
    assert not folder.exists()


def for_containers(state: Path) -> tuple[Workspaces, HeldDisks]:
    disks = HeldDisks()
    disks.go.set()
    workspaces = Workspaces(state, flat=True)
    workspaces.open()
    workspaces.disks = disks
    return workspaces, disks


def test_the_workspace_of_a_container_is_a_part_of_its_disk(tmp_path: Path) -> None:
    workspaces, _ = for_containers(tmp_path)

    folder = workspaces.ensure(TRAJECTORY, 100)

    assert folder.parent == tmp_path / "workspaces"
    assert workspaces.files(folder) == folder / "workspace"
    assert workspaces.existing(TRAJECTORY) == folder


def test_a_container_of_an_earlier_version_keeps_its_flat_workspace(tmp_path: Path) -> None:
    workspaces, _ = for_containers(tmp_path)
    folder = workspaces.of(TRAJECTORY)
    folder.mkdir()
    (folder / "file").touch()

    assert workspaces.ensure(TRAJECTORY, 100) == folder
    assert workspaces.files(folder) == folder
    assert [each.name for each in folder.iterdir()] == ["file"]


def test_a_workspace_can_leave_its_disk_with_its_files(tmp_path: Path) -> None:
    workspaces, disks = for_containers(tmp_path)
    folder = workspaces.ensure(TRAJECTORY, 100)
    (folder / "workspace" / "file").write_text("kept")

    workspaces.without_disk(folder)

    assert disks.made == {}
    assert workspaces.files(folder) == folder
    assert (folder / "file").read_text() == "kept"
    assert list((tmp_path / "yard").iterdir()) == []


def test_the_folder_of_a_waiting_container_gets_what_was_uploaded_before(tmp_path: Path) -> None:
    workspaces, disks = for_containers(tmp_path)
    waiting = workspaces.alone(ActionId("warm"), 100)
    (waiting / "workspace").chmod(0o777)
    place = workspaces.ensure(TRAJECTORY, 100)
    (place / "workspace" / "given").write_text("before")

    workspaces.become(waiting, place)

    assert disks.made == {place.name: 100}
    assert (place / "workspace" / "given").read_text() == "before"
    assert (place / "workspace").stat().st_mode & 0o777 == 0o777
    assert not waiting.exists()
