"""`tangram list | cp`."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tangram_client import Client, exec_action
from tangram_client.testing import FakeServer
from tests.unit.client.cli_runner import tangram

ACTION = exec_action("swe", "true", trajectory="trj-1")


@pytest.mark.parametrize(
    ("noun", "names"),
    [("tasks", ["swe"]), ("trajectories", ["trj-1"]), ("pools", ["default"]), ("nodes", ["n1"])],
)
def test_list_prints_the_objects_of_a_noun(
    server: FakeServer, client: Client, noun: str, names: list[str]
) -> None:
    client.run(ACTION)

    assert tangram(server, "list", noun, "-o", "name").stdout.split() == names
    heading, row = tangram(server, "list", noun).stdout.splitlines()
    assert heading.split()[0] in {"ID", "NAME"}
    assert row.split()[0] == names[0]
    assert len(json.loads(tangram(server, "list", noun, "-o", "json").stdout)) == 1


def test_list_of_services_reads_them_from_the_configuration(server: FakeServer) -> None:
    documents = [
        {"kind": "Pool", "metadata": {"name": "default"}, "spec": {}},
        {"kind": "GpuService", "metadata": {"name": "reward"}, "spec": {"engine": "torch"}},
    ]
    server._faults.append(lambda request: httpx.Response(200, json={"documents": documents}))

    heading, row = tangram(server, "list", "services").stdout.splitlines()

    assert server.sent[-1].path == "/api/v1/config"
    assert heading.split() == ["NAME", "ENGINE", "QUARANTINED"]
    assert row.split() == ["reward", "torch", "–"]


def test_list_of_gpus_shows_a_card_and_a_gpu_without_one(server: FakeServer) -> None:
    card = {"id": "n1/0", "pool": "train", "chunk": "0-1", "state": "measured", "busy_ratio": 0.35}
    none = {"id": "n2/0", "pool": "train", "chunk": "", "state": "simulated", "busy_ratio": None}
    body = {"results": [card, none], "next": None, "previous": None}
    server._faults.append(lambda request: httpx.Response(200, json=body))

    heading, real, simulated = tangram(server, "list", "gpus").stdout.splitlines()

    assert server.sent[-1].path == "/api/v1/gpus"
    assert heading.split()[:5] == ["ID", "POOL", "CHUNK", "STATE", "BUSY_RATIO"]
    assert real.split()[:5] == ["n1/0", "train", "0-1", "measured", "0.35"]
    assert simulated.split()[:5] == ["n2/0", "train", "–", "simulated", "–"]


def test_list_asks_for_an_order_of_the_explorer(server: FakeServer, client: Client) -> None:
    client.run(ACTION)

    assert tangram(server, "list", "actions", "-q", "task:swe", "--sort", "-act").exit_code == 0

    assert server.sent[-1].path == "/api/v1/actions"
    assert dict(server.sent[-1].params)["sort"] == "-act"
    mixed = tangram(server, "list", "trajectories", "--task", "swe", "--sort", "name")
    assert mixed.exit_code == 2


@pytest.mark.parametrize("options", [["--state", "open"], ["--task", "swe"], ["--sort", "name"]])
def test_list_refuses_options_that_a_noun_lacks(server: FakeServer, options: list[str]) -> None:
    result = tangram(server, "list", "pools", *options)

    assert result.exit_code == 2
    assert server.sent == []


def test_cp_moves_a_file_in_and_out(server: FakeServer, client: Client, tmp_path: Path) -> None:
    client.run(ACTION)
    (tmp_path / "fix.patch").write_bytes(b"\x00patch")

    into = tangram(server, "cp", str(tmp_path / "fix.patch"), "trj-1:src/")
    out = tangram(server, "cp", "trj-1:src/fix.patch", str(tmp_path / "copy"))
    into_folder = tangram(server, "cp", "trj-1:src/fix.patch", str(tmp_path))
    printed = tangram(server, "cp", "trj-1:src/fix.patch", "-")

    assert (into.exit_code, out.exit_code, into_folder.exit_code) == (0, 0, 0)
    assert server.world.trajectories["trj-1"].files == {"src/fix.patch": b"\x00patch"}
    assert (tmp_path / "copy").read_bytes() == b"\x00patch"
    assert printed.stdout_bytes == b"\x00patch"


def test_cp_reads_standard_input(server: FakeServer, client: Client) -> None:
    client.run(ACTION)

    assert tangram(server, "cp", "-", "trj-1:in.txt", stdin="text").exit_code == 0
    assert server.world.trajectories["trj-1"].files == {"in.txt": b"text"}


def test_cp_copies_directories_and_ls_shows_them(
    server: FakeServer, client: Client, tmp_path: Path
) -> None:
    client.run(ACTION)
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "deep" / "file").write_text("x")

    into = tangram(server, "cp", str(tmp_path / "src"), "trj-1:project")
    listed = tangram(server, "ls", "trj-1:project")
    names = tangram(server, "ls", "trj-1", "-o", "name")
    out = tangram(server, "cp", "trj-1:project", str(tmp_path / "back"))

    assert (into.exit_code, out.exit_code) == (0, 0), (into.stderr, out.stderr)
    assert server.world.trajectories["trj-1"].files == {"project/deep/file": b"x"}
    assert listed.stdout.splitlines()[1].split()[-1] == "deep/"
    assert names.stdout == "project\n"
    assert (tmp_path / "back" / "deep" / "file").read_text() == "x"


def test_ls_shows_no_name_that_a_terminal_obeys(server: FakeServer, client: Client) -> None:
    client.run(ACTION)
    server.world.trajectories["trj-1"].files["a\x1b]0;evil\x07"] = b""

    for form in ("table", "name"):
        result = tangram(server, "ls", "trj-1", "-o", form)
        assert "\x1b" not in result.stdout
        assert "a\\x1b]0;evil\\x07" in result.stdout


@pytest.mark.parametrize("ports", ["x", "0", "70000", "80:x", "80:70000", ":80"])
def test_forward_refuses_what_is_no_port(server: FakeServer, ports: str) -> None:
    assert tangram(server, "forward", "trj-1", ports).exit_code == 2


@pytest.mark.parametrize(
    ("paths", "code"),
    [
        (["a", "b"], 2),
        (["trj-1:a", "trj-2:b"], 2),
        (["nosuch", "trj-1:a"], 2),
        (["trj-1:nosuch", "-"], 3),
    ],
)
def test_cp_names_what_is_wrong(
    server: FakeServer, client: Client, paths: list[str], code: int
) -> None:
    client.run(ACTION)

    result = tangram(server, "cp", *paths)

    assert result.exit_code == code
    assert result.stderr
