"""Bad input gets a problem document that names the field, never a 5xx."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
from msgspec.structs import replace

from domain.codec import encode
from domain.events import ConfigApplied
from domain.inventory import PoolConfig
from scheduler.runtime.redis.clients import connect_async
from tests.integration.runtime.rig import CONFIG, Rig

BAD = {
    "broken json": (b'{"task":', 400, ""),
    "not an object": (b"[]", 422, ""),
    "nothing": (b"", 422, ""),
    "unknown kind": (b'{"task":"t","kind":"dance"}', 422, "/kind"),
    "unknown field": (b'{"task":"t","kind":"noop","colour":1}', 422, "/colour"),
    "unknown field inside": (
        b'{"task":"t","kind":"exec","exec":{"command":["a"],"comand":1}}', 422, "/exec/comand"),
    "missing field": (b'{"kind":"noop"}', 422, "/task"),
    "name with a slash": (b'{"task":"a/b","kind":"noop"}', 422, "/task"),
    "negative cost": (b'{"task":"t","kind":"noop","cost":{"cpu":-1}}', 422, "/cost/cpu"),
    "absurd cost": (b'{"task":"t","kind":"noop","cost":{"cpu":1e300}}', 422, "/cost/cpu"),
    "one and a half": (b'{"task":"t","kind":"noop","cost":{"cpu":1.5}}', 422, "/cost/cpu"),
    "empty unit set": (b'{"task":"t","kind":"noop","cost":{"cpu":[]}}', 422, "/cost/cpu"),
    "never fits": (b'{"task":"t","kind":"noop","cost":{"cpu":64}}', 422, "/cost/cpu"),
    "unknown resource": (b'{"task":"t","kind":"noop","cost":{"tpu":1}}', 422, "/cost/tpu"),
    "key not in cost": (b'{"task":"t","kind":"noop","cost":{"cpu":1},"key":"x"}', 422, "/key"),
    "exec without command": (b'{"task":"t","kind":"exec"}', 422, "/exec"),
    "empty command": (b'{"task":"t","kind":"exec","exec":{"command":[]}}', 422, "/exec/command"),
    "climbing cwd": (
        b'{"task":"t","kind":"exec","exec":{"command":["a"],"cwd":"../x"}}', 422, "/exec/cwd"),
    "lease of nothing": (b'{"task":"t","kind":"lease"}', 422, "/cost"),
    "zero timeout": (b'{"task":"t","kind":"noop","timeout_seconds":0}', 422, "/timeout_seconds"),
    "E above one": (
        b'{"task":"t","kind":"noop","cost":{"cpu":1},"elasticity":{"1":2}}', 422, "/elasticity/1"),
    "unknown pool": (b'{"task":"t","kind":"noop","pool":"p"}', 422, "/pool"),
    "other project": (b'{"task":"t","kind":"noop","project":"other"}', 404, ""),
    "huge number": (b'{"task":"t","kind":"noop","metadata":{"n":1' + b"0" * 40 + b"}}", 422,
                    "/metadata"),
    "nesting that readers with less stack choke on": (
        b'{"task":"t","kind":"noop","metadata":{"n":' + b"[" * 900 + b"]" * 900 + b"}}", 422,
        "/metadata"),
    "deep nesting": (b'{"task":"t","kind":"noop","metadata":{"n":' + b"[" * 5000 + b"]" * 5000
                     + b"}}", 400, ""),
    "name with a line break behind it": (b'{"task":"t\\n","kind":"noop"}', 422, "/task"),
    "profile of too many points": (
        json.dumps({"task": "t", "kind": "noop", "cost": {"cpu": 1},
                    "elasticity": {str(n): 0.5 for n in range(1, 2000)}}).encode(),
        422, "/elasticity"),
    "a member twice": (b'{"task":"t","kind":"noop","task":"u"}', 400, ""),
    "a member twice, deep inside": (
        b'{"task":"t","kind":"noop","metadata":{"a":[{"b":1,"\\u0062":2}]}}', 400, ""),
    "large metadata": (
        json.dumps({"task": "t", "kind": "noop", "metadata": {"a": "b" * 70_000}}).encode(),
        422, "/metadata"),
    "long image": (
        json.dumps({"task": "t", "kind": "noop", "environment": {"image": "a" * 513}}).encode(),
        422, "/environment/image"),
    "image with a line break": (
        b'{"task":"t","kind":"noop","environment":{"image":"a\\n"}}', 422, "/environment/image"),
    "long label": (
        json.dumps({"task": "t", "kind": "noop", "family": "a" * 129}).encode(), 422, "/family"),
    "long name of a variable": (
        json.dumps({"task": "t", "kind": "exec",
                    "exec": {"command": ["a"], "env": {"A" * 257: ""}}}).encode(),
        422, "/exec/env"),
    "large environment": (
        json.dumps({"task": "t", "kind": "exec",
                    "exec": {"command": ["a"], "env": {"A": "b" * 140_000}}}).encode(),
        422, "/exec/env"),
    "many resources": (
        json.dumps({"task": "t", "kind": "noop",
                    "cost": {f"r{n}": 1 for n in range(65)}}).encode(), 422, "/cost"),
    "many counts": (
        json.dumps({"task": "t", "kind": "noop",
                    "cost": {"cpu": list(range(1, 1026))}}).encode(), 422, "/cost/cpu"),
    "long path of a reward": (
        json.dumps({"task": "t", "kind": "exec", "exec": {"command": ["a"]},
                    "reward": {"from": "json", "path": "a" * 513}}).encode(), 422, "/reward/path"),
    "reward in a session": (
        json.dumps({"task": "t", "kind": "exec", "trajectory": "t-1",
                    "exec": {"command": ["make"], "session": "main"},
                    "reward": {"from": "exit_code"}}).encode(), 422, "/reward"),
    "file of a reward outside": (
        json.dumps({"task": "t", "kind": "exec", "exec": {"command": ["a"]},
                    "reward": {"from": "exit_code", "files": {"../x": ""}}}).encode(), 422,
        "/reward/files"),
    "file of a reward without a name": (
        json.dumps({"task": "t", "kind": "exec", "exec": {"command": ["a"]},
                    "reward": {"from": "exit_code", "files": {"/workspace/": ""}}}).encode(), 422,
        "/reward/files"),
    "report of a reward outside": (
        json.dumps({"task": "t", "kind": "exec", "exec": {"command": ["a"]},
                    "reward": {"from": "junit", "path": "/etc/passwd"}}).encode(), 422,
        "/reward/path"),
    "lone surrogate": (b'{"task":"\\ud800","kind":"noop"}', 400, ""),
}  # fmt: skip


@pytest.mark.parametrize(("body", "status", "pointer"), BAD.values(), ids=BAD.keys())
async def test_bad_action_is_refused_naming_the_field(
    rig: Rig, body: bytes, status: int, pointer: str
) -> None:
    async with rig.client() as client:
        answer = await client.post("/actions", content=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["detail"]
    if pointer:
        assert pointer in [error["pointer"] for error in problem["errors"]]


async def test_tokens_are_needed_and_must_be_wide_enough(rig: Rig) -> None:
    body = {"task": "t", "kind": "noop"}
    async with rig.client() as client:
        anonymous = await client.post("/actions", json=body, headers={"Authorization": ""})
        forged = await client.post("/actions", json=body, headers={"Authorization": "Bearer x"})
        mine = (await client.post("/actions?wait=60", json=body)).json()["id"]
    async with rig.client("reader") as client:
        narrow = await client.post("/actions", json=body)
        seen = await client.get(f"/actions/{mine}")
    async with rig.client("stranger") as client:
        hidden = await client.get(f"/actions/{mine}")
        cancel = await client.post(f"/actions/{mine}/cancel")
    statuses = [a.status_code for a in (anonymous, forged, narrow, hidden, cancel)]
    assert statuses == [401, 401, 403, 404, 404]
    assert seen.status_code in (200, 404)  # 404: this gateway started after it had finished


async def test_large_metadata_fill_nothing(rig: Rig) -> None:
    """Each submission of eight megabytes added 14 MB to Redis, and more to its readers."""
    body = json.dumps({"task": "t", "kind": "noop", "metadata": {"a": "b" * 8_000_000}}).encode()
    async with rig.client() as client, connect_async(rig.url) as redis:
        before = (await redis.info("memory"))["used_memory"]
        statuses = {(await client.post("/actions", content=body)).status_code for _ in range(6)}
        after = (await redis.info("memory"))["used_memory"]

    assert statuses == {422}
    assert after - before < 8_000_000


async def test_a_name_twice_is_found_in_every_part_of_a_batch(rig: Rig) -> None:
    good, bad = b'{"task":"t","kind":"noop"}', b'{"task":"t","kind":"noop","kind":"exec"}'
    async with rig.client() as client:
        spaced = await client.post(
            "/actions/batch", content=b' { "actions" :[ ' + good + b" ,\n" + good + b" ] }"
        )
        inside = await client.post(
            "/actions/batch", content=b'{"actions":[' + good + b"," + bad + b"]}"
        )
        around = [
            await client.post(
                "/actions/batch", content=b'{"actions":[' + one + b'],"actions":[' + good + b"]}"
            )
            for one in (b"", good, bad)
        ]

    assert [item["status"] for item in spaced.json()["items"]] == [202, 202]
    assert [item["status"] for item in inside.json()["items"]] == [202, 400]
    assert inside.json()["items"][1]["problem"]["code"] == "repeated_name"
    assert "'kind'" in inside.json()["items"][1]["problem"]["detail"]
    assert [answer.json()["code"] for answer in around] == ["repeated_name"] * 3


async def test_large_bodies_are_refused(rig: Rig) -> None:
    async with rig.client() as client:
        answer = await client.post("/actions", content=b" " * (10 * 1024 * 1024))
    assert answer.status_code == 413


async def test_repeated_key_gives_the_same_action_and_another_body_a_conflict(rig: Rig) -> None:
    key = {"Idempotency-Key": "k"}
    async with rig.client() as client:
        one = await client.post("/actions?wait=60", json={"task": "t", "kind": "noop"}, headers=key)
        two = await client.post("/actions?wait=60", json={"task": "t", "kind": "noop"}, headers=key)
        other = await client.post("/actions", json={"task": "u", "kind": "noop"}, headers=key)
    assert one.json()["id"] == two.json()["id"]
    assert two.headers["idempotent-replayed"] == "true"
    assert other.status_code == 409


async def test_unknown_ids_are_not_found(rig: Rig) -> None:
    async with rig.client() as client:
        answers = [
            await client.get("/actions/act_nope"),
            await client.post("/actions/act_nope/cancel"),
            await client.post("/leases/act_nope/renew"),
            await client.post("/leases/act_nope/release"),
        ]
    assert [answer.status_code for answer in answers] == [404] * 4


async def test_a_body_is_passed_on_or_refused_however_deep(rig: Rig) -> None:
    """What was just read is written with less stack left."""
    statuses = set()
    async with rig.client() as client:
        for depth in range(930, 1000):
            nested = b"[" * depth + b"]" * depth
            body = b'{"task":"t","kind":"call","call":{"target":"api:x","json":' + nested + b"}}"
            statuses.add((await client.post("/actions", content=body)).status_code)
    assert statuses <= {400, 422}


@pytest.mark.parametrize(
    "query",
    [
        {"after": "elsewhere"},
        {"after": "99999999999999999999-0/0"},
        {"after": "1-99999999999999999999/0"},
        {"after": "\u0661-\u0661/1"},
        {"types": "finishd"},
    ],
    ids=str,
)
async def test_events_are_refused_before_they_begin(rig: Rig, query: dict[str, str]) -> None:
    async with rig.client() as client:
        answer = await asyncio.wait_for(client.get("/events", params=query), 120)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == f"?{next(iter(query))}"


async def test_a_lease_is_renewed_for_as_long_as_one_may_be_declared(rig: Rig) -> None:
    lease = {"task": "t", "kind": "lease", "cost": {"cpu": 1}, "lease": {"ttl_seconds": 600}}
    async with rig.client() as client:
        held = (await client.post("/actions?wait=60", json=lease)).json()["id"]
        refused = await client.post(f"/leases/{held}/renew", json={"ttl_seconds": 86_401})
        renewed = await client.post(f"/leases/{held}/renew", json={"ttl_seconds": 86_400})
    assert (refused.status_code, renewed.status_code) == (422, 200)


async def test_other_routes_are_passed_to_django(rig: Rig) -> None:
    async with rig.client() as client:
        assert (await client.get("/actions")).content == b"behind"


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "with a key"])
async def test_clients_that_wait_at_a_server_that_ends_are_asked_to_retry(
    rig: Rig, *, keyed: bool
) -> None:
    body = {"task": "t", "kind": "exec", "exec": {"command": ["sleep", "600"]}}
    headers = {"Idempotency-Key": "k"} if keyed else {}
    async with rig.client() as client:
        waiting = asyncio.create_task(client.post("/actions?wait=60", json=body, headers=headers))
        async with asyncio.timeout(120):
            while not rig.driver.storage.marks:
                await asyncio.sleep(0.005)
        waiting.cancel()  # as a web server does with what outlasts its patience at its end
        answer = await waiting
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["retry-after"]) >= 1


DECLARED = replace(
    CONFIG,
    revision=2,
    resources={**CONFIG.resources, "api:new": 1000},
    pools={**CONFIG.pools, "new": PoolConfig("new")},
)


@pytest.mark.parametrize(
    ("path", "payload"),
    [
        ("/actions", {"task": "t", "kind": "lease", "cost": {"api:new": 1}}),
        ("/tasks", {"id": "t", "pool": "new"}),
        ("/trajectories", {"id": "j", "task": "t", "pool": "new"}),
    ],
)
async def test_a_new_declaration_is_accepted_at_once(
    rig: Rig, path: str, payload: dict[str, Any]
) -> None:
    async with rig.client() as client:
        assert (await client.post(path, json=payload)).status_code == 422
        rig.redis.xadd(rig.keys.inbox, {"0": encode(ConfigApplied(config=DECLARED))})
        async with asyncio.timeout(120):
            while b"api:new" not in cast("bytes", rig.redis.get(rig.keys.capacity)):
                await asyncio.sleep(0.002)
        accepted = await client.post(path, json=payload)
    assert accepted.status_code in (201, 202), accepted.text


CLOSED = replace(
    CONFIG,
    revision=2,
    pools={
        "default": PoolConfig("default", host_network=False),
        "open": PoolConfig("open", host_network=True),
    },
)
ON_HOST = {"network": "host"}


@pytest.mark.parametrize(
    ("path", "payload"),
    [
        ("/actions", {"task": "t", "kind": "noop", "environment": ON_HOST}),
        ("/trajectories", {"id": "j", "task": "t", "environment": ON_HOST}),
    ],
)
async def test_a_network_that_the_pool_forbids_is_refused_with_the_cure(
    rig: Rig, path: str, payload: dict[str, Any]
) -> None:
    rig.redis.xadd(rig.keys.inbox, {"0": encode(ConfigApplied(config=CLOSED))})
    async with rig.client() as client:
        async with asyncio.timeout(120):
            while (
                answer := await client.post("/tasks", json={"id": "t2", "pool": "open"})
            ).is_error:
                assert answer.status_code == 422
            while b"default/t2" not in cast("bytes", rig.redis.get(rig.keys.capacity)):
                await asyncio.sleep(0.002)
        refused = await client.post(path, json=payload)
        named = await client.post(path, json={**payload, "pool": "open", "id": "j2"})
        bound = await client.post(path, json={**payload, "task": "t2", "id": "j3"})
        unknown = await client.post(path, json={**payload, "environment": {"network": "wifi"}})

    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["pointer"] == "/environment/network"
    assert "host_network: true" in refused.json()["detail"]
    assert unknown.status_code == 422
    if path == "/trajectories":
        assert (named.status_code, bound.status_code) == (201, 201)
