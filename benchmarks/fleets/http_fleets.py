"""The modelled engine over HTTP beside its simulation: the same batch on the same workers, once in virtual time and twice in real time.

Each worker is an `EngineServer` behind uvicorn; each trajectory is a client that asks for its turns by ``/v1/completions`` with token ids,
as agents do, and sleeps for its tools.

direct   an `LlmFleet` in this process gives routes and priorities, as in the simulation; the clients ask the engines
router   a whole Tangram as ``up`` starts it, with the engines as workers of a Fleet: the clients ask its OpenAI door

All three have `hedged` without predictions and without moves, slots that bind, and the times of the engine as profile. Real time is
``speed`` times as fast as virtual time, so the profile that Tangram gets has times as many times shorter. Goal: each makespan differs from
that of the simulation by less than 10 %.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from statistics import mean
from typing import Any, Final, Protocol

import httpx
import msgspec
import uvicorn

from benchmarks.fleets.cases import FIXED, FleetCase
from benchmarks.stack import Stack, tangram, token
from domain.engine_profiles import DegreeProfile, EngineProfile
from managers.llm.fake.engine_model import EngineModel
from managers.llm.fake.engine_server import Behaviour, EngineServer
from managers.llm.fake.engine_spec import EngineSpec
from managers.llm.fake.paced_engine import PacedEngine
from placement.facts import GenerationRoute, WorkerFacts
from placement.fleet import LlmFleet
from placement.policies.hedged import HedgedPolicy, HedgedSettings
from placement.profiles import ProfiledTimes
from placement.roofline import BATCHES, CONTEXTS, PREFILLS
from simulator.fleets.rollout import FleetRollout
from simulator.fleets.setting import FleetResult, FleetSetting
from simulator.workloads.trajectories import AgentTrajectory, RecordedAgents
from tangram_client import Client
from tangram_client._calls import apply_config
from tangram_client.traces.recording import Recording

GOAL: Final = 0.10
BATCH: Final = "batch"
FLEET: Final = "modelled"
#: So many slots that trajectories wait for them: without queues the order would not count.
CASE: Final = FleetCase("hedged", FIXED["Fix-2"], slots=6, cache_share=1.0)
#: Between two looks for routes of generations that wait, as for the members of their batch.
_LOOK_SECONDS: Final = 0.02


def profile_of(spec: EngineSpec, degrees: Sequence[int], speed: float = 1.0) -> EngineProfile:
    """Return the times of ``spec`` as a profile; ``speed``: they pass so many times as fast."""
    return EngineProfile(
        tuple(
            DegreeProfile(
                degree,
                BATCHES,
                CONTEXTS,
                tuple(
                    tuple(
                        spec.token_seconds(degree, batch, context) / speed for context in CONTEXTS
                    )
                    for batch in BATCHES
                ),
                tuple(
                    (tokens, spec.prefill_seconds(degree, tokens) / speed) for tokens in PREFILLS
                ),
                spec.kv_tokens(degree),
            )
            for degree in sorted(set(degrees))
        ),
        source=f"modelled: {spec.name}, {speed:g} times as fast",
    )


def fleet_of(setting: FleetSetting) -> LlmFleet:
    """Return the placement of all ways: what Tangram has for a fleet whose caches are not moved."""
    times = ProfiledTimes(profile_of(setting.spec, setting.degrees))
    return LlmFleet(HedgedPolicy(HedgedSettings(moves=None)), times)


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


class Way(Protocol):
    """How the requests of trajectories reach the engines."""

    async def ask(self, each: AgentTrajectory, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to the next request of a trajectory."""

    async def finish(self, each: AgentTrajectory) -> None:
        """End a trajectory."""


@dataclass
class Direct:
    """Routes of an `LlmFleet` in this process."""

    fleet: LlmFleet
    addresses: Sequence[str]
    client: httpx.AsyncClient
    now: Callable[[], float]
    size: int
    _waiting: dict[str, asyncio.Future[GenerationRoute]] = field(default_factory=dict)

    async def ask(self, each: AgentTrajectory, body: dict[str, Any]) -> dict[str, Any]:
        """Ask the engine of the route."""
        route = await self._route(each, len(body["prompt"]))
        self.fleet.begin(each.key, self.now())
        answer = await self.client.post(
            self.addresses[route.worker] + "/v1/completions",
            json={**body, "priority": round(-1e3 * route.rank)},
        )
        found = _checked(answer)
        usage = found["usage"]
        self.fleet.end(
            each.key, self.now(), usage["prompt_tokens"], usage["completion_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
        )  # fmt: skip
        return found

    async def finish(self, each: AgentTrajectory) -> None:
        """End a trajectory."""
        self.fleet.finish(each.key, self.now())

    async def _route(self, each: AgentTrajectory, prompt: int) -> GenerationRoute:
        """Ask for a route, and wait for it where the fleet lets it wait."""
        found = self.fleet.request(
            each.key, self.now(), group=each.group, batch=BATCH, batch_size=self.size,
            prompt_tokens=prompt,
        )  # fmt: skip
        if found is not None:
            return found
        waits: asyncio.Future[GenerationRoute] = asyncio.get_running_loop().create_future()
        self._waiting[each.key] = waits
        while not waits.done():
            for key, route in self.fleet.routed(self.now()):
                self._waiting.pop(key).set_result(route)
            await asyncio.wait({waits}, timeout=_LOOK_SECONDS)
        return waits.result()


@dataclass
class Router:
    """The OpenAI door of a Tangram."""

    address: str
    client: httpx.AsyncClient
    token: str
    size: int

    async def ask(self, each: AgentTrajectory, body: dict[str, Any]) -> dict[str, Any]:
        """Ask the door."""
        own = {
            "trajectory": each.key, "task": "http", "group": each.group, "batch": BATCH,
            "batch_size": self.size,
        }  # fmt: skip
        answer = await self.client.post(
            f"{self.address}/v1/completions",
            json={**body, "model": FLEET, "tangram": own},
            headers=self._headers,
        )
        return _checked(answer)

    async def finish(self, each: AgentTrajectory) -> None:
        """End a trajectory."""
        url = f"{self.address}/api/v1/trajectories/{each.key}/finish"
        (await self.client.post(url, headers=self._headers)).raise_for_status()

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


def _checked(answer: httpx.Response) -> dict[str, Any]:
    if answer.status_code != 200:
        raise SystemExit(f"{answer.url} answered {answer.status_code}: {answer.text[:300]}")
    found: dict[str, Any] = answer.json()
    return found


async def play(
    batch: Sequence[AgentTrajectory], way: Way, now: Callable[[], float], speed: float
) -> dict[str, Any]:
    """Play a batch: turns by HTTP, tools asleep. Return what came out, in virtual seconds."""
    tokens = 0

    async def one(each: AgentTrajectory, number: int) -> float:
        nonlocal tokens
        context = [number] * each.prompt_tokens
        for index, turn in enumerate(each.turns):
            body = {
                "prompt": context, "max_tokens": turn.tokens, "ignore_eos": True,
                "return_token_ids": True,
            }  # fmt: skip
            found = await way.ask(each, body)
            sampled = found["choices"][0]["token_ids"]
            tokens += len(sampled)
            context = context + sampled + [index] * turn.output_tokens
            await asyncio.sleep(turn.tool_seconds / speed)
        ended = now()
        await way.finish(each)
        return ended

    ends = await asyncio.gather(*(one(each, number) for number, each in enumerate(batch)))
    return _found(max(ends), mean(ends), tokens)


def _found(makespan: float, mean_end: float, tokens: int) -> dict[str, Any]:
    return {"makespan": round(makespan, 1), "mean_end": round(mean_end, 1), "tokens": tokens}


async def _with_engines(
    setting: FleetSetting,
    batch: Sequence[AgentTrajectory],
    speed: float,
    way_to: Callable[[Sequence[str], httpx.AsyncClient, Callable[[], float]], Awaitable[Way]],
) -> dict[str, Any]:
    """Play a batch on engines of its own."""
    async with AsyncExitStack() as stack:
        addresses = [
            await stack.enter_async_context(worker(setting, degree, speed))
            for degree in setting.degrees
        ]
        limits = httpx.Limits(max_connections=None, keepalive_expiry=3.0)
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=None, limits=limits))
        began = 0.0

        def now() -> float:
            return (time.perf_counter() - began) * speed

        way = await way_to(addresses, client, now)
        began = time.perf_counter()
        return await play(batch, way, now, speed)


async def direct(
    setting: FleetSetting, batch: Sequence[AgentTrajectory], speed: float
) -> dict[str, Any]:
    """Play a batch with placement in this process."""

    async def way_to(
        addresses: Sequence[str], client: httpx.AsyncClient, now: Callable[[], float]
    ) -> Way:
        fleet = fleet_of(setting)
        fleet.set_workers(_workers(setting), 0.0)
        return Direct(fleet, addresses, client, now, len(batch))

    return await _with_engines(setting, batch, speed, way_to)


async def through_router(
    setting: FleetSetting, batch: Sequence[AgentTrajectory], speed: float, stack: Stack
) -> dict[str, Any]:
    """Play a batch through a Tangram."""

    async def way_to(
        addresses: Sequence[str], client: httpx.AsyncClient, now: Callable[[], float]
    ) -> Way:
        address = f"http://{stack.host}:{stack.port}"
        await asyncio.to_thread(_declare, stack, setting, addresses, speed)
        way = Router(address, client, stack.token, len(batch))
        await _until_healthy(way, len(addresses))
        return way

    return await _with_engines(setting, batch, speed, way_to)


def _workers(setting: FleetSetting) -> list[WorkerFacts]:
    return [WorkerFacts(n, setting.slots, degree) for n, degree in enumerate(setting.degrees)]


def _declare(stack: Stack, setting: FleetSetting, addresses: Sequence[str], speed: float) -> None:
    """Declare the engines as a fleet whose caches are not moved."""
    profile = profile_of(setting.spec, setting.degrees, speed)
    workers = [
        {"name": f"w{n}", "url": url, "slots": setting.slots, "degree": degree}
        for n, (url, degree) in enumerate(zip(addresses, setting.degrees, strict=True), 1)
    ]
    document = {
        "apiVersion": "tangram/v1",
        "kind": "Fleet",
        "metadata": {"name": FLEET},
        "spec": {
            "engine": "vllm", "workers": workers, "policy": "hedged", "transfer": "none",
            "profile": msgspec.to_builtins(profile),
        },
    }  # fmt: skip
    with Client(f"http://{stack.host}:{stack.port}", token(stack, "admin")) as client:
        client.send(apply_config(json.dumps(document)))


async def _until_healthy(way: Router, workers: int) -> None:
    """Wait until the fleet answers: one short request for each worker."""
    deadline = time.monotonic() + 60
    body = {"model": FLEET, "prompt": [1], "max_tokens": 1}
    done = 0
    while done < workers:
        answer = await way.client.post(
            f"{way.address}/v1/completions", json=body, headers=way._headers
        )
        done += answer.status_code == 200
        if time.monotonic() > deadline:
            raise SystemExit(f"the fleet does not answer: {answer.text[:300]}")


def simulated(setting: FleetSetting, batch: Sequence[AgentTrajectory]) -> FleetResult:
    """Play a batch in virtual time."""
    return FleetRollout(setting, batch, fleet_of(setting)).run()


def measure(
    recordings: Sequence[Recording], trajectories: int, speed: float, *, shared: bool = False
) -> dict[str, Any]:
    """Return makespans and mean ends in virtual seconds, and how far the real ones are off."""
    setting = CASE.setting
    batch = RecordedAgents(recordings, trajectories, 0, CASE.token_rate).trajectories()
    expected = simulated(setting, batch)
    found: dict[str, Any] = {
        "trajectories": len(batch),
        "workers": len(setting.degrees),
        "slots": setting.slots,
        "speed": speed,
        "shared_machine": shared,
        "simulated": _found(expected.makespan, mean(expected.ends), expected.tokens),
    }
    found["direct"] = asyncio.run(direct(setting, batch, speed))
    with tangram() as stack:
        found["router"] = asyncio.run(through_router(setting, batch, speed, stack))
    for way in ("direct", "router"):
        for member in ("makespan", "mean_end"):
            off = found[way][member] / found["simulated"][member] - 1
            found[way][f"{member}_off"] = round(off, 4)
    return found


def missed(found: dict[str, Any]) -> list[str]:
    """Return the goals that are missed."""
    late = [
        f"the makespan of {way} is {found[way]['makespan_off']:+.1%} off, goal ±{GOAL:.0%}"
        for way in ("direct", "router")
        if abs(found[way]["makespan_off"]) >= GOAL
    ]
    wrong = [
        f"{way} sampled {found[way]['tokens']} tokens, the simulation {found['simulated']['tokens']}"
        for way in ("direct", "router")
        if found[way]["tokens"] != found["simulated"]["tokens"]
    ]
    return late + wrong
