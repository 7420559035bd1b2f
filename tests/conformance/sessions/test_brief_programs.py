"""Programs that end so soon that the node does not see them run."""

from __future__ import annotations

import pytest

from domain.errors import NotFound
from domain.ids import TrajectoryKey
from managers.cpu.sessions import process_looks
from managers.cpu.sessions.host import SessionHost
from managers.cpu.sessions.serving import SessionPlaces, SessionService
from managers.cpu.sessions.session import Identity
from managers.cpu.sessions.state import SessionPhase
from tests.conformance.sessions.host_environment import HostEnvironment
from tests.conformance.sessions.test_shell_sessions import opened, phase


async def test_a_program_that_ends_before_it_is_found_is_a_session_that_has_ended(
    host: SessionHost, environment: HostEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_looks, "children", lambda _: [])
    session = await opened(host, environment, "sh", "-c", "exit 7")
    await phase(session, SessionPhase.ENDED)
    assert session.state.exit_status == 7


async def test_a_program_that_is_gone_when_it_is_named_is_a_session_that_has_ended(
    host: SessionHost, environment: HostEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, listed = process_looks.facts_of, process_looks.children
    gone: list[int] = []

    def children(pid: int) -> list[int]:
        gone.extend(listed(pid))
        return list(gone)

    monkeypatch.setattr(process_looks, "children", children)
    monkeypatch.setattr(process_looks, "facts_of", lambda pid: None if pid in gone else found(pid))
    session = await opened(host, environment, "sh", "-c", "exit 7")
    await phase(session, SessionPhase.ENDED)
    assert session.state.exit_status == 7


async def test_a_closed_session_leaves_no_keeper(
    host: SessionHost, environment: HostEnvironment
) -> None:
    await opened(host, environment, "sh")
    keeper = Identity(*host.record(environment.name, "main").keeper)
    assert keeper.alive
    await host.close(environment.name, "main")
    assert not keeper.alive


async def test_the_output_of_a_program_that_has_ended_is_read_on_request(
    host: SessionHost, environment: HostEnvironment
) -> None:
    async def open_(_: object, __: object) -> HostEnvironment:
        return environment

    places = SessionPlaces(lambda _: environment, open_, lambda _: {}, lambda _, __: 0)
    service, trajectory = SessionService(host, places), TrajectoryKey("default/t")
    session = await opened(host, environment, "sh", "-c", "echo out; exit 3", pty=False)
    await phase(session, SessionPhase.ENDED)
    with pytest.raises(NotFound, match="ended with exit status 3"):
        service.attach(trajectory, "main", prompt=False, history=True)
    attached = service.attach(trajectory, "main", prompt=False, history=True, ended=True)
    output = await attached.output()
    assert output is not None
    assert output.stdout == b"out\n"
    assert await attached.output() is None
    assert attached.facts().exit_status == 3
    attached.close()
