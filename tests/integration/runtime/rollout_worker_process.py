"""A rollout worker in a process of its own, for tests that kill it: ``python -m … URL PREFIX FOLDER NAME HOLD``.

Its work is an agent of `TURNS` turns; each samples some tokens and runs one action. Before the record of turn ``HOLD`` it
prints ``held`` and waits for SIGUSR1.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import redis.asyncio

from contract.responses import ActionResponse, CompletionsResponse
from domain.codec import read_entry
from domain.decisions import Finish
from domain.events import ActionFinished
from domain.redis_keys import Keys
from domain.rollouts import RolloutOutcome, RolloutResult, Stage
from rollout.ports import Assigned, Record, RolloutPort
from rollout.tokens.sampled import SampledTokens
from rollout.tokens.segments import SampledTurn
from rollout.tokens.turn_records import turn_record
from scheduler.runtime.action_views import finished_view
from scheduler.runtime.batches.row_door import RowDoorOptions
from scheduler.runtime.body_store import BodyStore
from scheduler.runtime.gateway.context import GatewayBackend, GatewayContext
from scheduler.runtime.redis.clients import connect_async
from scheduler.runtime.rollouts.log_store import RolloutLogs
from scheduler.runtime.rollouts.role import RoleOptions, run_rollout_role
from tests.integration.runtime.rollout_rig import ScriptedWorker, Work

TURNS = 5


def sampled(turn: int) -> SampledTurn:
    """Return what the model of the test says in a turn: three tokens after a context of two."""
    ids = np.arange(10 * turn, 10 * turn + 3, dtype=np.int32)
    return SampledTurn(
        context=np.array([900 + turn, 901 + turn], np.int32),
        tokens=SampledTokens(ids, np.full(3, -0.5, np.float32), "stop"),
        weights_version=1,
        follows=turn - 1 if turn else None,
        message={"role": "assistant", "content": str(turn)},
    )


def agent(hold: int) -> Work:
    """Return the work of the worker."""
    released = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, released.set)

    async def work(port: RolloutPort, given: Assigned) -> None:
        rollout, attempt = given.rollout, given.attempt
        lease = await port.lease(rollout, attempt, Stage.RUN, 0)
        number = len(await port.read(rollout))
        turn = sum(each.kind == "turn" for each in await port.read(rollout))
        while turn < TURNS:
            members = {"kind": "noop", "trajectory": rollout.id, "cost": {"api:search": 1}}
            action = await port.submit(rollout, attempt, f"run/{turn}", members)
            end = await port.wait(rollout, action)
            assert end.outcome == "completed"
            if turn == hold:
                sys.stdout.write("held\n")
                sys.stdout.flush()
                await released.wait()
            await port.append(rollout, attempt, number, turn_record(sampled(turn)))
            turn, number = turn + 1, number + 1
        await port.append(rollout, attempt, number, Record("result", {"detail": {"by": "agent"}}))
        await port.release(lease)
        result = RolloutResult(RolloutOutcome.COMPLETED, 1.0, turns=turn)
        await port.finished(rollout, attempt, result)

    return work


def rows(client: redis.asyncio.Redis, keys: Keys) -> GatewayBackend:
    """Return what a database with rows would answer, from the whole journal."""

    async def action_view(action_id: str) -> ActionResponse | None:
        found = None
        for key, fields in cast("list[Any]", await client.xrange(keys.journal)):
            entry = read_entry(key.decode(), fields)
            events = [each for each in entry.events if isinstance(each, ActionFinished)]
            reports = {each.action_id: each for each in events}
            for each in entry.decisions:
                if isinstance(each, Finish) and each.action_id == action_id:
                    report = reports.get(each.action_id)
                    found = finished_view(each, report, entry.at, entry.wall_offset_seconds)
        return found

    async def nothing(*_: object) -> None:
        return None

    async def no_completions(project: str | None, after: int, limit: int) -> CompletionsResponse:
        return CompletionsResponse([], "0")

    async def no_facts() -> dict[str, str]:
        return {}

    async def every_task(*_: object) -> bool:
        return True

    return GatewayBackend(nothing, action_view, no_completions, no_facts, no_facts, every_task)


async def main(url: str, prefix: str, folder: str, name: str, hold: str) -> None:
    """Run the worker until it is killed."""
    bodies = BodyStore(Path(folder))
    client, keys = connect_async(url), Keys(prefix)
    context = GatewayContext(client, keys, rows(client, keys), bodies=bodies)
    logs, options = (
        RolloutLogs(Path(folder) / "rollouts"),
        RoleOptions(name, handlers=("agent",), rows=RowDoorOptions()),
    )
    work = agent(int(hold))
    await run_rollout_role(context, logs, options, lambda port, _: ScriptedWorker(port, work))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
