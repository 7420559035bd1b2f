"""A second engine model beside ours: a batch on servers that this project has not made, and on the modelled engine with their measured times.

    python -m benchmarks.fleets.second_engine --url http://127.0.0.1:8301 --url http://127.0.0.1:8302 --slots 6

The servers answer ``/v1/completions`` with token ids as prompt, ``ignore_eos`` and streams, and run ``--slots`` sequences at once in order of
arrival; they need neither priorities nor token ids in answers. One of them is measured as `benchmarks.rollout_card` does; the times are fitted
to the terms of `EngineModel`; the batch is simulated with them, with the order and the routes that it then has over HTTP.

`dynamo.mocker` (``pip install --only-binary :all: ai-dynamo``) is such a server, with a frontend of its own for each worker:

    export DYN_FILE_KV=/tmp/kv-8301 DYN_SELF_HOST_METADATA=0 HF_HUB_OFFLINE=1
    python -m dynamo.mocker --model-path TOKENIZER --max-num-seqs 6 --block-size 16 --discovery-backend file --request-plane tcp --event-plane zmq
    python -m dynamo.frontend --http-port 8301 --discovery-backend file --request-plane tcp --event-plane zmq

TOKENIZER is a folder with ``tokenizer.json``, ``config.json`` and a chat template of plain Jinja. The answers name no ids, so that a prompt continues
the former prompt and not its answer: servers compute the answer's tokens again, the simulation does not.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any, Final

import httpx
import msgspec
import numpy as np

from benchmarks import rollout_card_parts as parts
from benchmarks.fleets.cases import FleetCase
from benchmarks.fleets.http_fleets import Direct, play
from benchmarks.record import store
from benchmarks.rollout_card_engine import EngineUnderTest
from domain.engine_profiles import DegreeProfile, EngineProfile
from domain.fleets import FleetEngine
from managers.llm.fake.engine_spec import EngineSpec
from placement.facts import WorkerFacts
from placement.fleet import LlmFleet
from placement.policies.registry import make_policy
from placement.profiles import ProfiledTimes
from simulator.fleets.rollout import FleetRollout
from simulator.options import RECORDINGS
from simulator.traces import make_recordings
from simulator.workloads.trajectories import RecordedAgents

#: No priorities, as the servers have none; where the cache is.
POLICY: Final = "fcfs+cache"
GRID: Final = parts.Grid((1, 2, 4, 6), (512, 2048, 8192), (512, 2048, 8192), 128)


class FittedSpec(EngineSpec, frozen=True):
    """The modelled engine with measured times in place of assumed ones."""

    batches: tuple[int, ...] = ()
    #: Seconds of a token at each batch, caches not counted; of each token of cache; and of each token of a prompt.
    bases: tuple[float, ...] = ()
    cache_seconds: float = 0.0
    prompt_seconds: tuple[float, float] = (0.0, 0.0)
    cache_tokens: float = 0.0

    def base_seconds(self, degree: int, batch: int) -> float:
        """Return the seconds of one token of each of ``batch`` sequences, their caches not counted."""
        return float(np.interp(batch, self.batches, self.bases))

    def context_seconds(self, degree: int) -> float:
        """Return the seconds that each token of cache adds to each token sampled."""
        return self.cache_seconds

    def prefill_seconds(self, degree: int, tokens: int) -> float:
        """Return the seconds that so many uncached tokens of a prompt take."""
        fixed, each = self.prompt_seconds
        return fixed + each * tokens if tokens else 0.0

    def kv_tokens(self, degree: int) -> float:
        """Return the tokens of cache that fit on a worker."""
        return self.cache_tokens


def fitted(profile: DegreeProfile) -> FittedSpec:
    """Return the modelled engine with the times of a profile: least squares of base(batch) + slope · batch · context, and of a line of prompts."""
    rows = [
        (number, batch * context, profile.token_seconds[number][place])
        for number, batch in enumerate(profile.batches)
        for place, context in enumerate(profile.contexts)
    ]
    matrix = np.zeros((len(rows), len(profile.batches) + 1))
    for row, (number, cached, _) in enumerate(rows):
        matrix[row, number], matrix[row, -1] = 1.0, cached
    solved, *_ = np.linalg.lstsq(matrix, np.array([each[2] for each in rows]), rcond=None)
    tokens, seconds = zip(*profile.prefill, strict=True)
    slope, fixed = (
        np.polyfit(tokens, seconds, 1) if len(tokens) > 1 else (seconds[0] / tokens[0], 0)
    )
    return FittedSpec(
        name="fitted", parameters=1.0, kv_bytes=1.0, batches=profile.batches,
        bases=tuple(np.maximum.accumulate(np.maximum(solved[:-1], 1e-6)).tolist()),
        cache_seconds=max(0.0, float(solved[-1])),
        prompt_seconds=(max(0.0, float(fixed)), max(1e-9, float(slope))),
        cache_tokens=profile.kv_tokens,
    )  # fmt: skip


@dataclass
class Unnamed(Direct):
    """Servers whose answers name no ids and count no cached tokens."""

    model: str = ""
    _asked: dict[str, int] = field(default_factory=dict)

    async def ask(self, each: Any, body: dict[str, Any]) -> dict[str, Any]:
        """Ask the server of the route; the ids of the answer are made up."""
        route = await self._route(each, len(body["prompt"]))
        self.fleet.begin(each.key, self.now())
        wanted = {"model": self.model, "prompt": body["prompt"], "max_tokens": body["max_tokens"], "ignore_eos": True}  # fmt: skip
        answer = await self.client.post(
            self.addresses[route.worker] + "/v1/completions", json=wanted
        )
        if answer.status_code != 200:
            raise SystemExit(f"{answer.url} answered {answer.status_code}: {answer.text[:300]}")
        sampled = answer.json()["usage"]["completion_tokens"]
        self.fleet.end(each.key, self.now(), len(body["prompt"]), sampled)
        turn = self._asked[each.key] = self._asked.get(each.key, 0) + 1
        return {"choices": [{"token_ids": [1_000 + turn] * sampled}]}


async def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, simulate, play."""
    batch = RecordedAgents(
        make_recordings(RECORDINGS, 0), options.trajectories, 0, options.token_rate,
        tool_ratio=options.tool_ratio,
    ).trajectories()  # fmt: skip
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:
        model = (await client.get(f"{options.url[0]}/v1/models")).json()["data"][0]["id"]
        engine = EngineUnderTest(
            options.url[0], FleetEngine.OPENAI, model, options.slots, 1, client
        )
        profile, _ = await parts.profile(engine, GRID, options.kv_tokens)
        times = ProfiledTimes(EngineProfile((profile,)))
        degrees = (1,) * len(options.url)
        setting = replace(
            FleetCase(POLICY, degrees, slots=options.slots).setting, spec=fitted(profile)
        )
        expected = FleetRollout(setting, batch, LlmFleet(make_policy(POLICY), times)).run()
        fleet = LlmFleet(make_policy(POLICY), times)
        fleet.set_workers([WorkerFacts(n, options.slots, 1) for n in range(len(degrees))], 0.0)
        began = time.perf_counter()

        def now() -> float:
            return time.perf_counter() - began

        way = Unnamed(fleet, options.url, client, now, len(batch), model=model)
        found = await play(batch, way, now, 1.0)
    simulated = {"makespan": round(expected.makespan, 1), "mean_end": round(mean(expected.ends), 1)}
    return {
        "server": options.name,
        "trajectories": len(batch),
        "workers": len(degrees),
        "slots": options.slots,
        "shared_machine": options.shared,
        "profile": msgspec.to_builtins(profile),
        "simulated": simulated,
        "http": found,
        **{f"{each}_off": round(found[each] / value - 1, 4) for each, value in simulated.items()},
    }


def main() -> int:
    """Compare, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", action="append", required=True, help="one for each worker")
    parser.add_argument("--slots", type=int, default=6, help="sequences that a server runs at once")
    parser.add_argument("--name", default="dynamo.mocker", help="of the server, for the result")
    parser.add_argument("--kv-tokens", type=float, default=262_144.0, help="tokens of cache")
    parser.add_argument("--trajectories", type=int, default=32)
    parser.add_argument("--token-rate", type=float, default=5.0, help="tokens of a recorded second")
    parser.add_argument("--tool-ratio", type=float, default=0.2)
    parser.add_argument("--shared", action="store_true", help="note that other work ran here")
    parser.add_argument("--store", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    found: Mapping[str, Any] = asyncio.run(compare(options))
    print({name: value for name, value in found.items() if name != "profile"})
    if options.store:
        print("stored in", store("fleets.second_engine", dict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
