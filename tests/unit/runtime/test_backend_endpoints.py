"""Backends belong to all projects: a token of one changes none of them, and reads no address."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from contract.rollout_status import BackendStatus, RolloutsStatus
from domain.backends import MAX_POOLS, MAX_POOLS_OF_PROJECT
from domain.codec import decode_command
from domain.errors import Conflict, InvalidRequest
from domain.principals import Principal, Scope
from domain.rollout_events import BackendsChanged
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.endpoints.backends import Backends
from scheduler.runtime.gateway.http import HttpError, HttpRequest

OPERATE = frozenset({Scope.READ, Scope.OPERATE})
BOUND = Principal("operator", "other", OPERATE)
FREE = Principal("operator", None, OPERATE)
CHANGES = {
    "put": ((), {"pool": "policy", "address": "http://mine:1"}),
    "clear": (("policy",), {}),
    "balance": (("policy",), {"balance": "paper"}),
    "remove": (("policy", "b1"), {}),
    "drain": (("policy", "b1"), {}),
    "resume": (("policy", "b1"), {}),
}


class Scheduler:
    """Answers queries with two backends, keeps what is appended, and forgets pools."""

    def __init__(self) -> None:
        self.appended: list[bytes] = []
        #: Pools that it does not forget: rollouts name them.
        self.used: set[str] = set()
        self.queries = self.submitter = self
        self.status = RolloutsStatus(
            backends=[
                BackendStatus("policy", "b1", 1, "http://10.0.0.7:8000", 4),
                BackendStatus("policy", "10.0.0.8:8000", 2, "http://10.0.0.8:8000", 4),
            ],
            pools={"policy": 1},
        )

    async def rollouts(self, **_: Any) -> RolloutsStatus:
        return self.status

    async def append(self, events: list[bytes]) -> None:
        self.appended += events
        for event in map(decode_command, events):
            if isinstance(event, BackendsChanged) and event.forget and event.pool not in self.used:
                del self.status.pools[event.pool]


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


def ask(scheduler: Scheduler, verb: str, who: Principal, body: Any = None, *names: str) -> Any:
    """Call a handler; return the document of its answer."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": msgspec.json.encode(body)}

    request = HttpRequest({"path": "/", "headers": []}, cast("Any", receive))
    backends = Backends(cast("GatewayContext", scheduler))
    answer = asyncio.run(getattr(backends, verb)(request, who, *names))
    return SimpleNamespace(status=answer.status, body=msgspec.json.decode(answer.content))


@pytest.mark.parametrize("verb", CHANGES)
def test_a_token_of_one_project_changes_no_backend(scheduler, verb):
    names, body = CHANGES[verb]
    with pytest.raises(HttpError, match="not bound to a project") as refused:
        ask(scheduler, verb, BOUND, body, *names)
    assert (refused.value.status, scheduler.appended) == (403, [])

    assert ask(scheduler, verb, FREE, body, *names).status == 202
    assert len(scheduler.appended) == 1


def test_an_empty_pool_can_be_forgotten_by_its_operators(scheduler):
    with pytest.raises(Conflict, match="has backends"):
        ask(scheduler, "forget", FREE, None, "policy")
    scheduler.status = RolloutsStatus(pools={"policy": 3, "mine@other": 2})
    with pytest.raises(HttpError, match="not bound to a project"):
        ask(scheduler, "forget", BOUND, None, "policy")
    assert scheduler.appended == []
    for who, pool in ((FREE, "policy"), (BOUND, "mine@other")):
        assert ask(scheduler, "forget", who, None, pool).status == 202
    events: list[Any] = [decode_command(each) for each in scheduler.appended]
    assert [(each.pool, each.forget) for each in events] == [("policy", True), ("mine@other", True)]
    assert scheduler.status.pools == {}


def test_a_pool_that_the_core_keeps_is_said_to_stay(scheduler):
    scheduler.status, scheduler.used = RolloutsStatus(pools={"policy": 3}), {"policy"}
    with pytest.raises(Conflict, match="'policy' stays: a rollout that is not finished names it"):
        ask(scheduler, "forget", FREE, None, "policy")


def test_a_token_of_one_project_reads_no_address(scheduler):
    (pool,) = ask(scheduler, "listed", BOUND).body["pools"]
    assert [(each["name"], each["address"]) for each in pool["backends"]] == [("b1", ""), ("2", "")]

    (pool,) = ask(scheduler, "listed", FREE).body["pools"]
    assert [each["address"] for each in pool["backends"]] == [
        "http://10.0.0.7:8000", "http://10.0.0.8:8000",
    ]  # fmt: skip


@pytest.mark.parametrize("address", ["http://h:70x", "http://[::zz]"])
@pytest.mark.parametrize("name", ["b1", None])
def test_an_address_that_cannot_be_asked_is_not_stored(scheduler, address, name):
    with pytest.raises(InvalidRequest, match="no http:// address"):
        ask(scheduler, "put", FREE, {"pool": "policy", "address": address, "name": name})
    assert scheduler.appended == []


def test_one_pool_too_many_is_refused_and_not_dropped_silently(scheduler):
    scheduler.status.pools |= {f"pool{n}": 1 for n in range(MAX_POOLS - 1)}
    with pytest.raises(Conflict, match="1000 pools"):
        ask(scheduler, "put", FREE, {"pool": "one-more", "address": "http://h:1"})

    assert ask(scheduler, "put", FREE, {"pool": "pool7", "address": "http://h:1"}).status == 202


@pytest.mark.parametrize("verb", CHANGES)
def test_operators_of_a_project_change_pools_of_their_own(scheduler, verb):
    names, body = CHANGES[verb]
    own = "policy@other"
    backend = BackendStatus(own, "b1", 3, "http://10.0.0.9:8000", 4)
    scheduler.status = RolloutsStatus(backends=[backend], pools={own: 1})
    if verb == "put":
        body = {**body, "pool": own, "address": "http://127.0.0.1:8000/v1"}
    names = (own, *names[1:]) if names else ()

    assert ask(scheduler, verb, BOUND, body, *names).status == 202
    with pytest.raises(HttpError, match="a pool of your own, as 'NAME@third'"):
        ask(scheduler, verb, msgspec.structs.replace(BOUND, project="third"), body, *names)


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254", "http://[fe80::1]:80", "http://8.8.8.8", "http://100.100.100.200",
        "http://metadata.google.internal", "http://0.0.0.0:1", "http://[fd00:ec2::254]", "http://2130706433",
    ],
)  # fmt: skip
def test_a_project_has_its_rollout_workers_ask_private_addresses_alone(scheduler, address):
    body = {"pool": "policy@other", "address": address}
    with pytest.raises(InvalidRequest, match=r"by number in 10\.0\.0\.0/8|no http:// address"):
        ask(scheduler, "put", BOUND, body)
    assert scheduler.appended == []


@pytest.mark.parametrize(
    "address", ["http://10.1.2.3:1", "http://[::1]:1", "http://localhost:8000/v1"]
)
def test_private_addresses_are_permitted_in_own_pools(scheduler, address):
    assert ask(scheduler, "put", BOUND, {"pool": "policy@other", "address": address}).status == 202


def test_own_pools_are_listed_for_their_project_with_addresses(scheduler):
    mine = BackendStatus("policy@other", "10.0.0.9:8000", 3, "http://10.0.0.9:8000", 4)
    theirs = BackendStatus("policy@third", "b9", 4, "http://10.0.0.10:8000", 4)
    scheduler.status = RolloutsStatus(
        backends=[*scheduler.status.backends, mine, theirs],
        pools={"policy": 1, "policy@other": 1, "policy@third": 1},
    )
    found = {
        each["pool"]: each["backends"] for each in ask(scheduler, "listed", BOUND).body["pools"]
    }
    assert sorted(found) == ["policy", "policy@other"]
    assert [each["address"] for each in found["policy@other"]] == ["http://10.0.0.9:8000"]
    assert {each["address"] for each in found["policy"]} == {""}
    everything = ask(scheduler, "listed", FREE).body["pools"]
    assert len(everything) == 3


def test_a_project_has_a_bounded_number_of_own_pools(scheduler):
    scheduler.status = RolloutsStatus(pools={f"p{n}@other": 1 for n in range(MAX_POOLS_OF_PROJECT)})
    body = {"pool": "one-more@other", "address": "http://127.0.0.1:1"}
    with pytest.raises(Conflict, match="no more are"):
        ask(scheduler, "put", BOUND, body)
    third = msgspec.structs.replace(BOUND, project="third")
    assert ask(scheduler, "put", third, {**body, "pool": "p@third"}).status == 202
