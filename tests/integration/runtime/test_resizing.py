"""A running action is resized on its node when another one arrives, over a real Redis."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from domain.codec import encode
from domain.events import ConfigApplied
from domain.ids import ActionId
from domain.inventory import PoolConfig
from tests.integration.runtime.rig import CONFIG, Rig

POOLS = {"default": PoolConfig("default", "malleable")}


def an_exec(**more: object) -> dict[str, object]:
    """Return a malleable command that runs until it is ended."""
    command = {"command": ["sleep", "600"]}
    cost = {"cpu": {"min": 1, "max": 4}}
    return {"task": "t", "kind": "exec", "cost": cost, "malleable": True, "exec": command, **more}


async def holds(rig: Rig, action_id: str, cores: int) -> None:
    """Wait until the node's driver runs an action with so many cores."""
    async with asyncio.timeout(120):
        while sum(each.amount for each in rig.driver.holds(ActionId(action_id))) != cores * 1000:
            await asyncio.sleep(0.005)


async def test_a_running_action_gives_cores_to_a_new_one_and_gets_them_back(rig: Rig) -> None:
    applied = ConfigApplied(config=replace(CONFIG, revision=2, pools=POOLS))
    rig.redis.xadd(rig.keys.inbox, {"0": encode(applied)})
    async with rig.client() as client:
        first = (await client.post("/actions", json=an_exec())).json()["id"]
        await holds(rig, first, 4)
        second = (await client.post("/actions", json=an_exec())).json()["id"]
        await holds(rig, first, 2)
        await holds(rig, second, 2)
        view = (await client.get(f"/actions/{first}")).json()
        assert view["units"] == {"cpu": 2}
        assert len(view["placement"]["cpus"]) == 2

        await client.post(f"/actions/{second}/cancel")
        await holds(rig, first, 4)
        await client.post(f"/actions/{first}/cancel")
        ended = (await client.get(f"/actions/{first}", params={"wait": 60})).json()

    assert (ended["outcome"], ended["units"]) == ("cancelled", {"cpu": 4})
