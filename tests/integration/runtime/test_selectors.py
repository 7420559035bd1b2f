"""Selectors over the gateway: profiles, decisions, observations and pins; and the degree that calls of a service get."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from domain.codec import encode
from domain.events import ConfigApplied
from domain.selectors import Parallelism, SelectorSpec
from domain.services import Degree
from tests.integration.runtime.gpu_rig import GIB, GpuRig
from tests.integration.runtime.rig import CONFIG, Rig

IDENTITY = {"hardware": "cpu", "model": "small", "engine": "torch"}


def cell(tp: int, context: int, speed: float | None) -> dict[str, Any]:
    found = {"oom": True} if speed is None else {"tokens_per_gpu_second": speed}
    return {
        "parallelism": {"tp": tp, "pp": 1, "dp": 1}, "context": context, "responses": 8, **found,
    }  # fmt: skip


CELLS = [cell(1, 1000, 100.0), cell(1, 4000, None), cell(2, 1000, 80.0), cell(2, 4000, 60.0)]
PROFILE = {
    "identity": IDENTITY,
    "cells": CELLS,
    "switches": [{"to": {"tp": tp, "pp": 1, "dp": 1}, "seconds": 2.0} for tp in (1, 2)],
    "source": "measured in a test",
}
SPEC = SelectorSpec((Parallelism(1), Parallelism(2)), responses=(8,), context_limit=4000)


def declare(rig: Rig) -> None:
    config = replace(CONFIG, revision=2, selectors={"long": SPEC})
    rig.redis.xadd(rig.keys.inbox, {"0": encode(ConfigApplied(config=config))})


async def test_a_trainer_asks_for_degrees_and_measurements_go_on_where_they_ended(rig: Rig) -> None:
    declare(rig)
    async with rig.client() as trainer, rig.client("cluster") as cluster:
        ask = "/selectors/long/decision"
        missing = await trainer.get("/selectors/other/decision", params={"context": 9})
        nothing = await trainer.get(ask, params={"context": 500, "responses": 8})
        first = await cluster.put("/selectors/long/profile", json={**PROFILE, "cells": CELLS[:3]})
        half = (await cluster.get("/selectors/long/profile")).json()
        await cluster.put("/selectors/long/profile", json=PROFILE)
        await cluster.put("/selectors/long/profile", json=PROFILE)
        whole = (await cluster.get("/selectors/long/profile")).json()
        short = (await trainer.get(ask, params={"context": 500, "responses": 8, "step": 1})).json()
        load = {"context": 1500, "context_longest": 2000, "responses": 8, "step": 2}
        observed = await trainer.post("/selectors/long/observations", json=load)
        shown = (await trainer.get("/selectors/long")).json()
        far = await trainer.get(ask, params={"context": 3900, "responses": 9})
        beyond = await trainer.get(ask, params={"context": 4001, "responses": 8})
        stage = await trainer.get(ask, params={"context": 9, "stage": "training"})
        after = (await trainer.get("/selectors")).json()["selectors"][0]

    assert (missing.status_code, nothing.status_code) == (404, 409)
    assert nothing.json()["code"] == "no_profile"
    assert (first.status_code, first.json()) == (202, {"selector": "long", "cells": 3})
    assert (len(half["cells"]), half["revision"]) == (3, 1)
    assert (len(whole["cells"]), whole["revision"]) == (4, 2)
    assert (short["tp"], short["switched"], short["switch_cost_seconds"]) == (1, True, 0.0)
    assert observed.status_code == 202
    assert [each["parallelism"]["tp"] for each in shown["switches"]] == [1, 2]
    assert shown["switches"][1]["code"] == "memory"
    assert shown["stages"][0]["step"] == 2
    assert (far.status_code, far.json()["code"]) == (422, "impossible")
    assert "tp2 stays" in far.text
    assert (beyond.status_code, stage.status_code) == (422, 422)
    assert after["stages"][0]["parallelism"]["tp"] == 2
    assert after["stages"][0]["load"]["context"] == 1500


async def test_pins_are_of_operators_of_all_projects_and_refused_where_memory_ends(
    rig: Rig,
) -> None:
    declare(rig)
    pin = {"parallelism": {"tp": 1, "pp": 1, "dp": 1}}
    async with rig.client("operator") as member, rig.client("cluster") as cluster:
        await cluster.put("/selectors/long/profile", json=PROFILE)
        await cluster.post("/selectors/long/observations", json={"context": 1500, "responses": 8})
        theirs = await member.post("/selectors/long/pin", json=pin)
        refused = await cluster.post("/selectors/long/pin", json=pin)
        other = await cluster.post(
            "/selectors/long/pin", json={"parallelism": {"tp": 3, "pp": 1, "dp": 1}}
        )
        forced = await cluster.post("/selectors/long/pin", json={**pin, "force": True})
        held = (await cluster.get("/selectors/long")).json()
        await cluster.post("/selectors/long/unpin")
        free = (await cluster.get("/selectors/long")).json()
        dry = await cluster.get(
            "/selectors/long/decision",
            params={"context": 100, "responses": 8, "dry_run": "true"},
        )

    assert (theirs.status_code, theirs.json()["code"]) == (403, "all_projects")
    assert (refused.status_code, refused.json()["code"]) == (422, "never_fits")
    assert "give force" in refused.text
    assert other.status_code == 422
    assert forced.status_code == 202
    assert (held["pin"]["tp"], held["forced"], held["stages"][0]["parallelism"]["tp"]) == (
        1,
        True,
        1,
    )
    assert (free["pin"], free["stages"][0]["parallelism"]["tp"]) == (None, 2)
    assert (dry.status_code, len(free["loads"])) == (200, 1)


async def test_calls_of_a_service_get_the_selected_degree_and_it_is_restored_for_them(
    gpus: GpuRig,
) -> None:
    gpus.prepare("policy")
    service = replace(
        gpus.config.services["policy"], degrees=(Degree(1, 50 * GIB), Degree(2, 50 * GIB))
    )
    spec = replace(SPEC, target="service:policy")
    gpus.config = replace(gpus.config, services={"policy": service}, selectors={"long": spec})
    gpus.start_loop()
    await gpus.start_gpu_node()
    call = {
        "task": "t", "kind": "call",
        "call": {"target": "service:policy", "method": "POST", "path": "/v1/score", "json": {}},
    }  # fmt: skip
    async with gpus.client("cluster") as client:

        async def degree() -> int:
            done = (
                await client.post("/actions?wait=60", json={**call, "project": "default"})
            ).json()
            assert done["outcome"] == "completed", done
            return int(done["units"]["gpu"])

        await client.put("/selectors/long/profile", json=PROFILE)
        found = [await degree()]
        for context in (500, 2900):
            params = {"context": context, "responses": 8}
            await client.get("/selectors/long/decision", params=params)
            found.append(await degree())

    assert found == [1, 1, 2]
    assert [len(units) for name, units in gpus.gpu_driver.runner.store.in_memory()] == [2]
