"""Sandboxes obey the rules of ``network: egress``; real npm and apt, stand-in servers."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from domain.action import EnvironmentSpec, ExecSpec, Outcome
from domain.confinement import NETWORK_EGRESS
from domain.egress import EgressRules
from domain.ports import DriverContext
from domain.ports.sessions import SessionSpec
from managers.cpu.egress.gateway import PORT
from managers.cpu.egress.proxy import EgressProxy
from managers.cpu.environment.protocol import InitCommand
from managers.cpu.process import ProcessDriver
from tests.conformance.driver import TRAJECTORY, an_order
from tests.conformance.egress import (
    FETCH,
    PYTHON,
    Door,
    EgressConformance,
    ProxyingDriver,
    naming,
    origin,
    secure,
)
from tests.conformance.egress_origin import NAME, Origin, an_apt_mirror, an_npm_registry
from tests.conformance.isolations import isolations

__all__ = ["origin", "secure"]

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif("bwrap" not in isolations(), reason="no sandbox works here"),
]


class TestEgressOfSandboxes(EgressConformance):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.directory = tmp_path
        self.settings: dict[str, str] = {}

    def make(self, proxy: EgressProxy) -> ProxyingDriver:
        settings = {"isolation": "bwrap", **self.settings}
        context = DriverContext("n1", self.directory / "state", {}, settings)
        self.driver = ProcessDriver(context, proxy)
        return self.driver

    async def test_a_session_reaches_what_the_pool_names_now(
        self, door: Door, origin: Origin
    ) -> None:
        origin.files["/word"] = b"hello"
        environment = EnvironmentSpec(network=NETWORK_EGRESS)
        sessions = self.driver.sessions
        await sessions.open(TRAJECTORY, SessionSpec("main"), environment)
        fetch = (PYTHON, "-c", FETCH, f"http://{NAME}:{origin.port}/word")

        async def said(rules: EgressRules, number: int) -> str:
            spec = ExecSpec((" ".join(map(shlex.quote, fetch)),), session="main")
            order = an_order(name=f"act_in_session_{number}", spec=spec, timeout_seconds=300)
            order = replace(order, environment=environment, egress=rules)
            report = await door.driver.run(order, lambda: None)
            assert report.result is not None, report
            return report.result.stdout

        assert (await said(naming(origin), 1)).strip() == "hello"
        assert "egress.hosts does not name it" in await said(EgressRules(("a.example.org",)), 2)

    async def test_what_a_command_leaves_goes_on_and_reaches_the_same(
        self, door: Door, origin: Origin
    ) -> None:
        origin.files["/word"] = b"hello"
        door.rules = naming(origin)
        url = f"http://{NAME}:{origin.port}/word"
        script = (
            f'(until [ -e go ]; do sleep 0.01; done; {PYTHON} -c "$0" {url} >got) >/dev/null 2>&1 &'
        )
        await door.run("sh", "-c", script, FETCH)
        await door.run("touch", "go")
        assert (
            await door.run("sh", "-c", "until [ -s got ]; do sleep 0.01; done; cat got")
        ).stdout == "hello"

    async def test_another_worker_serves_the_environment_that_it_adopts(
        self, door: Door, origin: Origin
    ) -> None:
        origin.files["/word"] = b"hello"
        door.rules = naming(origin)
        self.settings["environment_keep"] = "true"
        await door.driver.close()
        door.driver = self.make(door.proxy)
        await door.driver.open()
        await door.run("sh", "-c", "echo kept >/dev/shm/kept")
        await door.driver.close()
        door.driver = self.make(door.proxy)
        await door.driver.open()

        assert (await door.fetch(origin)).stdout == "hello"
        assert (await door.run("cat", "/dev/shm/kept")).stdout == "kept\n"

    async def test_a_port_that_a_program_has_taken_is_no_proxy(
        self, door: Door, origin: Origin
    ) -> None:
        origin.files["/word"] = b"hello"
        sessions = self.driver.sessions
        environment = EnvironmentSpec(network=NETWORK_EGRESS)
        await sessions.open(TRAJECTORY, SessionSpec("main"), environment)
        environments = self.driver.environments
        assert environments is not None
        code = f"import socket, time; s = socket.create_server(('127.0.0.1', {PORT})); print(flush=True); time.sleep(600)"
        living = environments.of(TRAJECTORY)
        os.mkfifo(living.control / "said", 0o666)
        os.chmod(living.control / "said", 0o666)
        said = os.open(living.control / "said", os.O_RDWR)
        await living.start(InitCommand((PYTHON, "-c", code), stdout="/.tangram/said"))
        assert await asyncio.to_thread(os.read, said, 1) == b"\n"
        os.close(said)
        door.rules = naming(origin)

        report = await door.report("true")

        assert report.outcome is Outcome.INFRA_FAILED
        assert "Address already in use" in str(report.detail)

    @pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
    async def test_npm_installs(self, door: Door, origin: Origin) -> None:
        url = f"http://{NAME}:{origin.port}"
        origin.files = an_npm_registry(url)
        door.rules = naming(origin)

        result = await door.run(
            "npm",
            "install",
            "--registry",
            url,
            "--no-audit",
            "--no-fund",
            "--no-update-notifier",
            "tiny",
        )

        assert result.exit_code == 0, result
        assert (await door.run("node", "-p", "require('tiny')")).stdout == "from the registry\n"

    @pytest.mark.skipif(shutil.which("apt-get") is None, reason="apt-get is not installed")
    async def test_apt_updates_and_downloads(
        self, door: Door, origin: Origin, tmp_path: Path
    ) -> None:
        origin.files = an_apt_mirror(tmp_path)
        door.rules = naming(origin)
        source = f"deb [trusted=yes] http://{NAME}:{origin.port} ./\n"
        await door.driver.put_file(TRAJECTORY, "sources.list", source.encode())
        script = """
    set -e
    mkdir -p state/lists/partial cache/archives/partial && touch status
    apt() { apt-get -o Dir::Etc::sourcelist=/workspace/sources.list -o Dir::Etc::sourceparts=- \\
      -o Dir::Etc::main=- -o Dir::Etc::parts=- -o Dir::Etc::preferencesparts=- \\
      -o Dir::State=/workspace/state -o Dir::State::status=/workspace/status \\
      -o Dir::Cache=/workspace/cache -o APT::Sandbox::User= -o Debug::NoLocking=1 "$@"; }
    apt update
    apt download tiny
    ls *.deb
    """

        result = await door.run("sh", "-c", script)

        assert result.exit_code == 0, result
        assert "tiny_1.0_all.deb" in result.stdout.splitlines()


async def test_a_node_without_a_sandbox_refuses_the_network(tmp_path: Path) -> None:
    driver = ProcessDriver(DriverContext("n1", tmp_path / "s", {}, {"isolation": "process"}))
    await driver.open()
    environment = EnvironmentSpec(network=NETWORK_EGRESS)
    order = replace(an_order("true"), environment=environment, egress=EgressRules(("a.org",)))

    report = await driver.run(order, lambda: None)
    await driver.close()

    assert report.outcome is Outcome.INFRA_FAILED
    assert "it has no sandbox" in str(report.detail)
