"""The modelled engine over HTTP beside its simulation: the same batch on the same workers, once in virtual time and once in real time.

Each worker is an `EngineServer` behind uvicorn; each trajectory is a client that asks for its turns by ``/v1/completions`` with token ids,
as agents do, and sleeps for its tools. Routes and priorities come from the same `LlmFleet` as in the simulation. Goal: the makespans
differ by less than 10 %.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx
import uvicorn

from benchmarks.fleets.cases import FIXED, FleetCase
from managers.llm.fake.engine_model import EngineModel
from managers.llm.fake.engine_server import Behaviour, EngineServer
from managers.llm.fake.paced_engine import PacedEngine
from placement.facts import GenerationRoute, WorkerFacts
from placement.fleet import LlmFleet
from simulator.fleets.modelled_predictors import ModelledPredictor
from simulator.fleets.policies import policy_of
from simulator.fleets.rollout import roll_out
from simulator.fleets.setting import FleetSetting
from simulator.workloads.trajectories import AgentTrajectory, RecordedAgents
from tangram_client.traces.recording import Recording

GOAL: Final = 0.10
BATCH: Final = "batch"


class _Started(uvicorn.Server):
    """A server that says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self.ready.set()


@asynccontextmanager
async def worker(setting: FleetSetting, degree: int, speed: float) -> AsyncIterator[str]:
    """Serve one worker on a free port; give its address."""
    engine = PacedEngine(EngineModel(setting.spec, degree, setting.slots), speed)
    app = EngineServer(engine, Behaviour(context=1_000_000))
    # Idle connections outlast any tool.
    server = _Started(uvicorn.Config(app, log_level="error", timeout_keep_alive=3600))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve([listener]))
        await server.ready.wait()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@dataclass
class _Real:
    """One batch over HTTP."""

    fleet: LlmFleet
    predictor: ModelledPredictor
    addresses: Sequence[str]
    client: httpx.AsyncClient
    speed: float
    size: int

    def __post_init__(self) -> None:
        self._began = asyncio.get_running_loop().time()
        self._routes: dict[str, asyncio.Future[GenerationRoute]] = {}

    def now(self) -> float:
        return (asyncio.get_running_loop().time() - self._began) * self.speed

    async def route(self, each: AgentTrajectory, turn: int, prompt: int) -> GenerationRoute:
        """Ask for a route, and wait for it where the fleet lets it wait."""
        self.fleet.predict(each.key, self.predictor.prediction(each.key, turn), self.now())
        found = self.fleet.request(
            each.key, self.now(), group=each.group, batch=BATCH, batch_size=self.size,
            prompt_tokens=prompt,
        )  # fmt: skip
        waits: asyncio.Future[GenerationRoute] = asyncio.get_running_loop().create_future()
        if found is None:
            self._routes[each.key] = waits
        else:
            waits.set_result(found)
        for key, route in self.fleet.routed(self.now()):
            self._routes.pop(key).set_result(route)
        return await waits

    async def play(self, each: AgentTrajectory, number: int) -> None:
        """Play one trajectory: its turns by HTTP, its tools asleep."""
        context = [number] * each.prompt_tokens
        for index, turn in enumerate(each.turns):
            route = await self.route(each, index, len(context))
            self.fleet.begin(each.key, self.now())
            body = {
                "prompt": context, "max_tokens": turn.tokens, "ignore_eos": True,
                "return_token_ids": True, "priority": round(-1e3 * route.rank),
            }  # fmt: skip
            answer = await self.client.post(
                self.addresses[route.worker] + "/v1/completions", json=body
            )
            answer.raise_for_status()
            found = answer.json()
            usage = found["usage"]
            self.fleet.end(
                each.key, self.now(), usage["prompt_tokens"], usage["completion_tokens"],
                usage["prompt_tokens_details"]["cached_tokens"],
            )  # fmt: skip
            context = context + found["choices"][0]["token_ids"] + [index] * turn.output_tokens
            await asyncio.sleep(turn.tool_seconds / self.speed)
        self.fleet.finish(each.key, self.now())


async def measure(
    recordings: Sequence[Recording], trajectories: int, speed: float
) -> dict[str, Any]:
    """Return both makespans in virtual seconds, and how far the real one is off."""
    case = FleetCase("seconds+cache", FIXED["Fix-2"], "oracle", slots=12)
    batch = RecordedAgents(recordings, trajectories, 0, case.token_rate).trajectories()
    setting = case.setting
    simulated = roll_out(setting, batch).makespan
    workers = [WorkerFacts(n, setting.slots, degree) for n, degree in enumerate(setting.degrees)]
    fleet = LlmFleet(policy_of(setting.policy), setting.spec, workers)
    async with AsyncExitStack() as stack:
        addresses = [
            await stack.enter_async_context(worker(setting, degree, speed))
            for degree in setting.degrees
        ]
        limits = httpx.Limits(max_connections=None)
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=None, limits=limits))
        predictor = ModelledPredictor(case.predictor, batch)
        real = _Real(fleet, predictor, addresses, client, speed, len(batch))
        await asyncio.gather(*(real.play(each, number) for number, each in enumerate(batch)))
        measured = real.now()
    return {
        "trajectories": len(batch),
        "workers": len(workers),
        "speed": speed,
        "simulated_makespan": round(simulated, 1),
        "http_makespan": round(measured, 1),
        "off": round(measured / simulated - 1, 4),
    }


def missed(found: dict[str, Any]) -> list[str]:
    """Return the goal where it is missed."""
    if abs(found["off"]) < GOAL:
        return []
    return [f"the makespan over HTTP is {found['off']:+.1%} off, goal ±{GOAL:.0%}"]
