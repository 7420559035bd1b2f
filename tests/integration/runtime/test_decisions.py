"""Recent decisions of policies, and forecasts, over the gateway."""

from __future__ import annotations

from msgspec.structs import replace

from domain.codec import encode
from domain.events import ConfigApplied
from domain.inventory import PoolConfig
from tests.integration.runtime.rig import CONFIG, Rig

POOLS = {"default": PoolConfig("default", "paper")}


async def test_decisions_and_forecasts_are_served(rig: Rig) -> None:
    applied = ConfigApplied(config=replace(CONFIG, revision=2, pools=POOLS))
    rig.redis.xadd(rig.keys.inbox, {"0": encode(applied)})
    body = {
        "task": "t",
        "kind": "exec",
        "cost": {"cpu": [1, 2, 4]},
        "duration_seconds": 600,
        "elasticity": {"amdahl": 1.0},
        "exec": {"command": ["sleep", "600"]},
    }
    async with rig.client() as client:
        first = (await client.post("/actions", json=body)).json()["id"]
        # In one pass, both would be candidates of one decision.
        while (await client.get(f"/actions/{first}")).json()["state"] == "queued":
            pass
        second = (await client.post("/actions", json=body)).json()["id"]
        waiting = (await client.get(f"/actions/{second}")).json()["waiting"]
        answer = await client.get("/decisions", params={"limit": 5})
        refused = await client.get("/decisions", params={"limit": "many"})

    assert answer.status_code == 200
    (decision,) = answer.json()["items"]
    assert decision["candidates"] == [first]
    assert decision["units"] == {first: 4}
    assert decision["objective_seconds"] == 150.0
    assert decision["at"].endswith("Z")
    assert waiting["units"] == {"cpu": 1}
    assert 100 < waiting["starts_in_seconds"] <= 150
    assert refused.status_code == 422
