"""A trajectory is opened, used and finished, whatever happens in between."""

from __future__ import annotations

import json

import pytest

from tangram_client import AsyncClient, Client, Conflict, InvalidRequest, NotFound
from tangram_client.testing import FakeServer
from tests.unit.client.cli_runner import tangram


def test_trajectory_is_opened_used_and_finished(server: FakeServer, client: Client) -> None:
    with client.trajectory("trj-1", task="swe", environment={"network": "none"}) as trajectory:
        action = trajectory.exec("pytest -q", cpu=[1, 2], reward="exit_code")

    assert action.trajectory == "trj-1"
    assert server.world.payloads[action.id]["exec"]["command"] == ["sh", "-c", "pytest -q"]
    assert server.world.trajectories["trj-1"].state == "finished"


def test_trajectory_is_finished_when_its_block_fails(server: FakeServer, client: Client) -> None:
    with pytest.raises(ZeroDivisionError), client.trajectory("trj-1", task="swe"):
        raise ZeroDivisionError

    assert server.world.trajectories["trj-1"].state == "finished"


def test_failure_of_the_block_wins_over_a_failed_farewell(
    server: FakeServer, client: Client
) -> None:
    def work() -> None:
        with client.trajectory("trj-1", task="swe"):
            server.lose_requests(100)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


async def test_the_end_of_a_trajectory_is_moved(
    server: FakeServer, client: Client, aclient: AsyncClient
) -> None:
    with client.trajectory("trj-1", task="swe") as trajectory:
        assert trajectory.renew(ttl_seconds=60)["seconds_left"] == 60
        later = await aclient.renew_trajectory("trj-1", ttl_seconds=5, only_later=True)
        assert later["seconds_left"] > 50
        shown = tangram(server, "renew", "trj-1", "--ttl", "7", "-o", "json")
        assert json.loads(shown.stdout)["seconds_left"] == 7
        assert trajectory.renew()["seconds_left"] == 7200
    with pytest.raises(Conflict, match="only an open one"):
        client.renew_trajectory("trj-1")
    assert tangram(server, "renew", "nosuch").exit_code == 3


def test_finished_trajectory_takes_no_more_actions(client: Client) -> None:
    with client.trajectory("trj-1", task="swe") as trajectory:
        pass

    assert trajectory.exec("true").outcome == "cancelled"
    with pytest.raises(Conflict, match="choose another id"):
        client.open_trajectory("trj-1", task="swe")


def test_project_of_the_client_reaches_every_verb_of_a_trajectory(server: FakeServer) -> None:
    with (
        Client(server.url, server.token, project="nlp", transport=server.transport) as client,
        client.trajectory("trj-1", task="swe") as trajectory,
    ):
        trajectory.put("a", b"")
        trajectory.get("a")

    assert [sent.params.get("project") for sent in server.sent[1:]] == ["nlp"] * 3


def test_project_of_a_trajectory_reaches_every_verb_of_it(
    server: FakeServer, client: Client
) -> None:
    with client.trajectory("trj-1", task="swe", project="nlp") as trajectory:
        trajectory.put("a", b"")
        trajectory.get("a")
        action = trajectory.exec("true")

    assert [sent.params.get("project") for sent in server.sent] == [None, "nlp", "nlp", None, "nlp"]
    assert server.world.payloads[action.id]["project"] == "nlp"


@pytest.mark.parametrize("path", ["a.txt", "src/deep/ä b%2F.txt", "x?y#z"])
def test_a_file_is_read_back_unchanged(client: Client, path: str) -> None:
    with client.trajectory("trj-1", task="swe") as trajectory:
        trajectory.put(path, b"\x00\xff")
        trajectory.put("text", "grüezi")

        assert trajectory.get(path) == b"\x00\xff"
        assert trajectory.get("text").decode() == "grüezi"


@pytest.mark.parametrize("path", ["../x", "a/../../x", "./x", "", "/", ".."])
def test_path_that_climbs_is_refused_before_it_is_sent(
    server: FakeServer, client: Client, path: str
) -> None:
    with pytest.raises(InvalidRequest, match="not a path below the workspace"):
        client.put_file("trj-1", path, b"")

    assert server.sent == []


def test_missing_file_is_not_found(client: Client) -> None:
    with client.trajectory("trj-1", task="swe") as trajectory, pytest.raises(NotFound):
        trajectory.get("nothing")


async def test_async_trajectory_is_opened_used_and_finished(
    server: FakeServer, aclient: AsyncClient
) -> None:
    async with aclient.trajectory("trj-1", task="swe") as trajectory:
        await trajectory.put("a", b"1")
        assert await trajectory.get("a") == b"1"
        assert (await trajectory.exec("true")).succeeded

    assert server.world.trajectories["trj-1"].state == "finished"


async def test_project_of_an_async_trajectory_reaches_every_verb_of_it(
    server: FakeServer, aclient: AsyncClient
) -> None:
    async with aclient.trajectory("trj-1", task="swe", project="nlp") as trajectory:
        await trajectory.put("a", b"")
        await trajectory.get("a")
        action = await trajectory.call("api:search", "/q")

    assert [sent.params.get("project") for sent in server.sent] == [None, "nlp", "nlp", None, "nlp"]
    assert server.world.payloads[action.id]["project"] == "nlp"
