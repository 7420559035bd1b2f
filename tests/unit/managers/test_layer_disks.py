"""Directories of an engine become links to the disk of an environment, and what a container sees is compared with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from domain.action import EnvironmentSpec
from domain.confinement import NETWORK_HOST, NETWORK_NONE
from managers.cpu.containers import layer_disks
from managers.cpu.containers.environment import Environment
from managers.cpu.containers.layer_disks import ETC_FILES, LayerDisks
from managers.cpu.tree.loop_disks import LoopDisks


def an_engine_folder(place: Path) -> dict[str, Any]:
    """Return what an engine says of a created container, and make its directories."""
    for name in ("diff", "work"):
        (place / name).mkdir(parents=True)
    (place / "diff").chmod(0o755)
    (place / "work").chmod(0o700)
    (place / "diff" / "workspace").mkdir()
    (place / "diff" / "made").write_text("at its creation")
    (place / "work" / "work").mkdir()
    data = {"UpperDir": str(place / "diff"), "WorkDir": str(place / "work")}
    return {"GraphDriver": {"Name": "overlay2", "Data": data}}


def a_disk(place: Path) -> Path:
    (place / "workspace").mkdir(parents=True)
    layer_disks.furnish(place, NETWORK_NONE, 1)
    return place


def test_the_layer_of_a_created_container_moves_to_its_disk(tmp_path: Path) -> None:
    created, disk = an_engine_folder(tmp_path / "id"), a_disk(tmp_path / "disk")

    layer_disks.link_layer(created, disk)

    diff, work = tmp_path / "id" / "diff", tmp_path / "id" / "work"
    assert (diff.readlink(), work.readlink()) == (disk / "layer", disk / "work")
    assert (diff / "made").read_text() == "at its creation"
    assert (disk / "layer").stat().st_mode & 0o777 == 0o755
    assert (disk / "work").stat().st_mode & 0o777 == 0o700
    assert list((disk / "work").iterdir()) == []
    assert sorted(each.name for each in (tmp_path / "id").iterdir()) == ["diff", "work"]


def test_a_second_container_of_an_environment_begins_with_an_empty_layer(tmp_path: Path) -> None:
    disk = a_disk(tmp_path / "disk")
    layer_disks.link_layer(an_engine_folder(tmp_path / "one"), disk)
    (disk / "layer" / "of-the-first").touch()

    layer_disks.link_layer(an_engine_folder(tmp_path / "two"), disk)

    assert sorted(each.name for each in (disk / "layer").iterdir()) == ["made", "workspace"]


def test_an_engine_that_names_no_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="names no directories"):
        layer_disks.link_layer({"GraphDriver": None}, a_disk(tmp_path / "disk"))


def test_the_host_is_named_at_etc_only_where_its_network_is_used(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    layer_disks.furnish(tmp_path / "host", NETWORK_HOST, 0)
    own = a_disk(tmp_path / "own")
    assert (tmp_path / "host" / "etc" / "hosts").read_text() == Path("/etc/hosts").read_text()
    assert (own / "etc" / "hosts").read_text().startswith("127.0.0.1\tlocalhost\n")
    assert (own / "etc" / "hostname").read_text() == "tangram\n"


def a_process(proc: Path, disk: Path, shown: list[str]) -> None:
    """Write what the kernel says of a process whose root and mounts are on ``disk``."""
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "root").symlink_to(disk)
    device = os.stat(disk).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = [f"36 35 {number} {inside} /x rw - ext4 /dev/loop1 rw" for inside in shown]
    (proc / "7" / "mountinfo").write_text("\n".join([*lines, "1 1 0:99 / / rw - overlay o rw"]))


SHOWN = ["/workspace", *(f"/etc/{name}" for name in ETC_FILES), "/volumes/0"]


def test_a_container_on_its_disk_passes_the_check(tmp_path: Path) -> None:
    disk = a_disk(tmp_path / "disk")
    a_process(tmp_path / "proc", disk, SHOWN)
    layer_disks.check(7, disk, 1, tmp_path / "proc")


@pytest.mark.parametrize("missing", SHOWN)
def test_a_container_that_mounts_something_else_fails_the_check(
    tmp_path: Path, missing: str
) -> None:
    disk = a_disk(tmp_path / "disk")
    a_process(tmp_path / "proc", disk, [each for each in SHOWN if each != missing])
    with pytest.raises(OSError, match=f"lacks {missing}"):
        layer_disks.check(7, disk, 1, tmp_path / "proc")


def test_a_container_with_another_layer_fails_the_check(tmp_path: Path) -> None:
    disk = a_disk(tmp_path / "disk")
    a_process(tmp_path / "proc", Path("/proc"), SHOWN)
    with pytest.raises(OSError, match="another layer"):
        layer_disks.check(7, disk, 1, tmp_path / "proc")


@pytest.mark.parametrize(
    ("driver", "is_local", "wanted", "why"),
    [
        ("overlay2", True, True, ""),
        ("overlay2", True, False, "the node's setting environment_disks is watched"),
        ("overlay2", False, True, "the engine is not on this machine"),
        ("vfs", True, True, "the engine keeps layers with vfs, not overlay2"),
    ],
)
def test_why_containers_have_no_disk(driver: str, is_local: bool, wanted: bool, why: str) -> None:
    assert layer_disks.hindrance({"Driver": driver}, is_local=is_local, wanted=wanted) == why


def test_volumes_of_an_image_are_those_besides_the_workspace() -> None:
    volumes: dict[str, dict[str, str]] = {"/data": {}, "/workspace/": {}, "/a/b": {}}
    assert layer_disks.volumes_of({"Config": {"Volumes": volumes}}) == ("/a/b", "/data")
    assert layer_disks.volumes_of({"Config": {"Volumes": None}}) == ()


def test_what_is_watched_of_a_container_is_on_this_machine(tmp_path: Path) -> None:
    diff, data, hosts = tmp_path / "diff", tmp_path / "data", tmp_path / "hosts"
    diff.mkdir()
    data.mkdir()
    hosts.touch()
    facts = {
        "GraphDriver": {"Data": {"UpperDir": str(diff)}},
        "Mounts": [
            {"Type": "volume", "Source": str(data)},
            {"Type": "volume", "Source": str(tmp_path / "of-a-plugin")},
            {"Type": "bind", "Source": str(tmp_path)},
        ],
        "HostsPath": str(hosts),
        "HostnamePath": "",
    }
    assert layer_disks.written_of(facts) == (diff, data, hosts)
    assert layer_disks.written_of({"GraphDriver": None, "Mounts": None}) == ()


def test_a_node_says_how_its_layers_are_bounded(tmp_path: Path) -> None:
    disks = LoopDisks(tmp_path, 100)
    disks.hindrance = ""
    layers = LayerDisks(disks, "overlay2")
    assert layers.text == "limited by a file system for each environment"
    layers.give_up("the engine does not see the disk")
    assert layers.text == "watched (the engine does not see the disk)"
    layers.engine_limits = True
    assert layers.text.startswith("watched, the layer limited by the engine (")


@pytest.mark.parametrize(
    ("message", "refused"),
    [
        ("--storage-opt is supported only for overlay over xfs with 'pquota' mount option", True),
        ("invalid mount config for type volume", False),
    ],
)
def test_an_engine_without_limits_is_recognised(message: str, refused: bool) -> None:
    assert layer_disks.is_refused_limit(message) is refused


def test_a_record_keeps_the_disk_and_one_of_an_earlier_version_has_none(tmp_path: Path) -> None:
    disk = tmp_path / "workspaces" / "one"
    environment = Environment(
        "tangram-1", "lab/t", EnvironmentSpec(disk_bytes=7), tmp_path / "tangram-1", disk / "workspace",
        1.0, "c1", disk,
    )  # fmt: skip
    environment.save()
    again = Environment.load(environment.directory)
    assert again is not None
    assert (again.disk, again.folder, again.spec.disk_bytes) == (disk, disk, 7)

    path = environment.directory / "record.json"
    facts = json.loads(path.read_text())
    del facts["disk"], facts["disk_bytes"]
    path.write_text(json.dumps(facts))
    earlier = Environment.load(environment.directory)
    assert earlier is not None
    assert (earlier.disk, earlier.folder) == (None, disk / "workspace")
