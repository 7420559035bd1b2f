"""Environments by Apptainer: their command lines, what lasts in them, their addresses, rewards and forks."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from domain.action import EnvironmentSpec, ExecSpec, Outcome
from domain.errors import InvalidRequest, NotFound, Unavailable
from domain.ids import TrajectoryKey
from domain.ports import RunReport
from domain.rewards import RewardRule
from managers.cpu.apptainer.sandbox import OPTIONS
from managers.cpu.process import ProcessDriver
from tests.apptainer_stand_in import calls, parse
from tests.conformance.apptainer.conftest import containers
from tests.conformance.driver import TRAJECTORY, Performance, an_order
from tests.conformance.forking import CHILD, a_fork
from tests.conformance.isolations import stand_in
from tests.conformance.process.test_environment_adoption import killed_worker, sleeping

SERVER = (
    "import http.server, sys; s = http.server.ThreadingHTTPServer((sys.argv[1], 8123),"
    " http.server.SimpleHTTPRequestHandler); open('ready', 'w').close(); s.serve_forever()"
)


async def run(driver: ProcessDriver, script: str, name: str = "act_1", **more: object) -> RunReport:
    environment = more.pop("environment", None)
    order = an_order("sh", "-c", script, name=name, **more)  # type: ignore[arg-type]
    return await driver.run(replace(order, environment=environment), lambda: None)


async def said(driver: ProcessDriver, script: str, name: str = "act_1", **more: object) -> str:
    report = await run(driver, script, name, **more)
    assert report.result is not None, report
    assert report.result.exit_code == 0, report
    return report.result.stdout


def the_calls(directory: Path) -> list[list[str]]:
    return [each["argv"][1:] for each in calls(directory / "program", "exec")]


async def test_an_environment_is_one_exec_that_lasts(driver: ProcessDriver, tmp_path: Path) -> None:
    before = len(the_calls(tmp_path))
    first = await said(driver, "echo kept >/opt-file; sleep 600 & echo $!", "act_1")
    there = await said(driver, f"cat /opt-file; kill -0 {first.strip()} && echo alive", "act_2")

    assert there == "kept\nalive\n"
    assert len(the_calls(tmp_path)) == before + 1


async def test_the_options_of_an_environment_are_those_of_the_documentation(
    driver: ProcessDriver, tmp_path: Path
) -> None:
    await said(driver, "true")
    options, (image, *command) = parse(the_calls(tmp_path)[-1])

    assert driver.environments is not None
    folder = driver.environments.of(TRAJECTORY).directory
    state = tmp_path / "state"
    words = [word for option in options for word in option if word]
    assert words[: len(OPTIONS)] == list(OPTIONS)
    assert words[len(OPTIONS) : len(OPTIONS) + 7] == [
        "--net", "--network", "none", "--security", f"seccomp:{state}/apptainer/seccomp.json",
        "--overlay", f"{folder}/overlay",
    ]  # fmt: skip
    binds = [value for name, value in options if name == "--bind"]
    assert binds[-2:] == [
        f"{folder}/control:/.tangram:ro",
        f"{folder}/control/shared:/.tangram/shared",
    ]
    assert all(bind.endswith(":ro") for bind in binds[:-2])
    assert "/usr:/usr:ro" in binds
    assert re.fullmatch(rf"{state}/bases/[0-9a-f]+/tree", image)
    assert command[:2] == ["/bin/sh", "-c"]
    assert command[-1] == "-s"


async def test_apptainer_gets_no_variables_of_the_worker(
    driver: ProcessDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "hunter2")
    await said(driver, "true")
    await said(driver, "true", "act_2", trajectory=None)

    for call in calls(tmp_path / "program", "exec"):
        assert "hunter2" not in str(call["env"])


async def test_a_declared_variable_is_on_no_command_line_and_its_file_is_deleted(
    driver: ProcessDriver, tmp_path: Path
) -> None:
    spec = ExecSpec(("sh", "-c", 'printf %s "$TOKEN"'), env={"TOKEN": "a 'b'\n$c"})
    reward = RewardRule("exit_code")
    order = an_order(spec=spec)
    order = replace(order, action=replace(order.action, reward=reward))
    report = await driver.run(order, lambda: None)

    assert report.result is not None
    assert report.result.stdout == "a 'b'\n$c"
    assert "$c" not in str([call["argv"] for call in calls(tmp_path / "program")])
    assert not list((tmp_path / "state").rglob("given.*"))


async def test_nothing_of_the_workers_environment_reaches_a_command(
    driver: ProcessDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "hunter2")
    assert "hunter2" not in await said(driver, "cat /proc/*/environ | tr '\\0' '\\n'; env")


async def test_each_environment_has_a_loopback_address_of_its_own(driver: ProcessDriver) -> None:
    found = [
        (await said(driver, "echo $TANGRAM_LOOPBACK", name, trajectory=trajectory)).strip()
        for name, trajectory in (("act_1", "trj-1"), ("act_2", "trj-2"), ("act_3", "trj-1"))
    ]
    assert found[0] == found[2] != found[1]
    assert all(re.fullmatch(r"127\.\d+\.\d+\.\d+", each) for each in found)


async def test_a_network_of_none_has_a_loopback_alone_where_ports_are_reached(
    driver: ProcessDriver,
) -> None:
    names = await said(driver, "cut -d: -f1 -s /proc/net/dev | tail -n +1")
    assert names.split() == ["lo"]
    server = f'python3 -c "{SERVER}" "$TANGRAM_LOOPBACK" & until test -e ready; do sleep 0.01; done'
    await said(driver, f"{server} >/dev/null 2>&1", "act_2")
    handle = await driver.connect_port(TRAJECTORY, 8123)
    os.close(handle)


async def test_servers_of_two_environments_on_the_nodes_network_have_the_same_port(
    driver: ProcessDriver,
) -> None:
    host = EnvironmentSpec(network="host")
    server = f'python3 -c "{SERVER}" "$TANGRAM_LOOPBACK" & until test -e ready; do sleep 0.01; done'
    for number in (1, 2):
        await said(
            driver, f"echo {number} >mine; {server} >/dev/null 2>&1", f"act_{number}",
            trajectory=f"trj-{number}", environment=host,
        )  # fmt: skip
    for number in (1, 2):
        handle = await driver.connect_port(TrajectoryKey(f"lab/trj-{number}"), 8123)
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=handle))
        writer.write(b"GET /mine HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.close()
        assert answer.endswith(f"{number}\n".encode())


async def test_a_stopped_command_is_asked_first_and_its_environment_stays(tmp_path: Path) -> None:
    driver = containers(tmp_path, grace_seconds="60")  # a busy machine is slow to answer
    await driver.open()
    await said(driver, "sleep 600 & echo $! >background", "act_0")
    script = (
        "trap 'echo asked >asked; exit 0' TERM; echo ready >ready; while :; do sleep 0.01; done"
    )
    performance = Performance(driver, an_order("sh", "-c", script))
    async with asyncio.timeout(60):
        while b"ready" not in await _read(driver, "ready"):
            await asyncio.sleep(0.01)
    driver.stop(an_order().id, Outcome.CANCELLED, "enough")
    report = await performance.task

    assert report.outcome is Outcome.CANCELLED
    assert await said(driver, "cat asked; kill -0 $(cat background) && echo alive", "act_2") == (
        "asked\nalive\n"
    )
    await driver.close()


async def _read(driver: ProcessDriver, path: str) -> bytes:
    try:
        return await driver.get_file(TRAJECTORY, path, 100)
    except NotFound:
        return b""


async def test_an_environment_whose_first_process_ends_leaves_no_process(
    driver: ProcessDriver,
) -> None:
    await said(driver, "sleep 600 &")
    assert driver.environments is not None
    living = driver.environments.of(TRAJECTORY)
    mine = [living.first_pid, living.pid, *living.pids()]
    await driver.remove_environment(TRAJECTORY)

    assert len(mine) >= 3
    assert not [pid for pid in mine if Path(f"/proc/{pid}").exists()]


async def test_a_reward_runs_alone_on_the_files_of_its_environment(driver: ProcessDriver) -> None:
    await said(driver, "echo tool >/srv/tool; echo work >work; sleep 600 &", "act_0")
    order = an_order(
        "sh", "-c", "cat /srv/tool work; ls /proc | grep -c '^[0-9]'; echo judged >/srv/judged"
    )
    order = replace(order, action=replace(order.action, reward=RewardRule("exit_code")))
    report = await driver.run(order, lambda: None)

    assert report.result is not None
    *files, processes = report.result.stdout.split()
    assert files == ["tool", "work"]
    assert int(processes) < 8
    assert await said(driver, "cat /srv/judged", "act_2") == "judged\n"


@pytest.mark.parametrize("is_running", [True, False], ids=["while it runs", "at rest"])
async def test_a_fork_has_all_files_of_its_source_and_changes_none(
    driver: ProcessDriver, is_running: bool
) -> None:
    await said(driver, "echo tool >/srv/tool; rm /etc/hosts; echo work >work")
    if not is_running:
        assert driver.environments is not None
        await driver.environments.remove(driver.environments.of(TRAJECTORY).name, "it rests")
    await driver.fork_environment(a_fork(TRAJECTORY, CHILD))
    child = await said(
        driver, "cat /srv/tool work; test -e /etc/hosts || echo gone; echo mine >/srv/tool", "act_2",
        trajectory="trj-2",
    )  # fmt: skip

    assert child == "tool\nwork\ngone\n"
    assert await said(driver, "cat /srv/tool", "act_3") == "tool\n"


async def test_the_next_worker_adopts_environments_with_their_addresses(tmp_path: Path) -> None:
    driver = containers(tmp_path, environment_keep="true")
    await driver.open()
    before = await said(driver, "sleep 600 & echo $! $TANGRAM_LOOPBACK")
    await driver.close()
    successor = containers(tmp_path)
    await successor.open()
    pid, address = before.split()
    there = await said(successor, f"kill -0 {pid} && echo $TANGRAM_LOOPBACK", "act_2")
    await successor.close()
    assert there.strip() == address


async def test_an_environment_survives_a_killed_worker_and_the_action_that_ran_does_not(
    tmp_path: Path,
) -> None:
    left, acting = f"810.{os.getpid()}", f"811.{os.getpid()}"
    await killed_worker(tmp_path, left, acting, "apptainer")
    [before] = sleeping(left)
    driver = containers(tmp_path)
    await driver.open()
    assert sleeping(left) == [before]
    assert sleeping(acting) == []
    assert await said(driver, "cat /tmp/file", "act_2") == "kept\n"
    await driver.close()
    assert sleeping(left) == []


async def test_environments_without_a_sandbox_of_their_own_kind_are_not_started(
    tmp_path: Path,
) -> None:
    with pytest.raises(Unavailable, match="/nowhere/apptainer is no program"):
        await containers(tmp_path, apptainer_program="/nowhere/apptainer").open()


async def test_a_program_that_cannot_start_containers_is_named_with_what_it_said(
    tmp_path: Path,
) -> None:
    program = tmp_path / "broken" / "apptainer"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo apptainer version 1.3.1 && exit 0\n"
        "echo 'FATAL: container creation failed: no user namespaces' >&2; exit 255\n"
    )
    program.chmod(0o755)
    with pytest.raises(Unavailable, match=r"does not run here: .*no user namespaces"):
        await containers(tmp_path, apptainer_program=str(program)).open()


async def test_a_path_that_apptainer_would_cut_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a:b"
    folder.mkdir()
    driver = containers(folder, apptainer_program=str(stand_in(tmp_path)))
    with pytest.raises(InvalidRequest, match="takes for the end of a path"):
        await driver.open()


async def test_the_line_of_protection_names_program_filter_and_what_is_missing(
    driver: ProcessDriver,
) -> None:
    found = driver.protection
    assert (found.isolation, found.seccomp, found.version) == ("apptainer", True, "1.3.4")
    assert found.text.startswith("apptainer 1.3.4, uid 0 of the host, system calls filtered")
    assert found.sandboxed == (os.geteuid() != 0)
    assert "overlay of Apptainer (every environment" in found.trees
