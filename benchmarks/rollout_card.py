"""rollout_card: what a fleet needs to know of an engine on the GPUs of this machine, measured unattended.

    python -m benchmarks.rollout_card --model /models/Qwen3-8B [--engine sglang] [--degrees 1 2 4]
    python -m benchmarks.rollout_card --url http://10.0.0.7:8000 [--url http://10.0.0.8:8000] --slots 64 --degree 1

It has not run on a GPU yet: its steps are tested against the modelled engine's HTTP alone, whose times mean nothing for cards.

Needs: with ``--model`` NVIDIA GPUs that ``nvidia-smi -L`` lists, ``vllm`` or ``sglang`` installed for this Python, and the files of the
model; one GPU for profile, order and fold, two for a move. With ``--url`` servers that run already (vLLM or SGLang, without /v1), the first
of which is measured; the second one is the target of the move. Sleep needs vLLM's ``--enable-sleep-mode`` with VLLM_SERVER_DEV_MODE=1, or
SGLang's ``--enable-memory-saver``; a move needs HiCache with a store, or LMCache with ``--controller``. What is missing is said, and the
other parts are measured. No network, no data set: prompts are random ids.

| part | measures (`benchmarks.rollout_card_parts`) |
|---|---|
| profile | seconds per token over batch × context for each degree, uncached prompts, tokens of cache, seconds of a start |
| order | whether the urgent ones of waiting requests begin first |
| fold | seconds to sleep and to wake, and whether the answer after it is that of before |
| move | first token of a long prompt with its cache, without it, and at another engine after a move |

Results: benchmarks/results/rollout_card-NAME.json, after each part, and beside it rollout_card-NAME-fleet.json, a Fleet document with the
profile (``tangram apply`` takes it). It ends within ``--minutes`` (30), the part that runs aside: later parts are left out, and named. Exit 1
when a part failed or was left out, 2, with what is missing, when nothing can be measured here.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from benchmarks import rollout_card_parts as parts
from benchmarks.record import RESULTS, store
from benchmarks.rollout_card_engine import EngineUnderTest, Unmeasured, started
from benchmarks.stack import free_port
from domain.engine_profiles import DegreeProfile, EngineProfile
from domain.fleets import DEGREES, FleetEngine, FleetSpec, WorkerSpec, check_fleet
from placement.profiles import ProfiledTimes

_ENGINES: Final = (FleetEngine.VLLM, FleetEngine.SGLANG)
_MOVED_TOKENS: Final = 8192


class Card:
    """One run: what is known of the servers, and what was found."""

    def __init__(self, options: argparse.Namespace, folder: Path | None = None) -> None:
        self.options = options
        self._folder = folder or RESULTS
        self._until = time.monotonic() + 60 * options.minutes
        self.found: dict[str, Any] = {"name": options.name, "engine": str(options.engine)}
        self.profiles: list[DegreeProfile] = []
        self.workers: list[WorkerSpec] = []

    async def part(self, name: str, measure: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """Measure a part and store what is found so far; a part that cannot be measured says why."""
        began = time.monotonic()
        if began > self._until:
            self.found[name] = {"left_out": f"{self.options.minutes:g} minutes were over"}
        else:
            print(f"-- {name}", flush=True)
            try:
                self.found[name] = await measure()
                self.found[name]["took_seconds"] = round(time.monotonic() - began, 1)
            except (Unmeasured, httpx.HTTPError, TimeoutError) as error:
                self.found[name] = {"left_out": f"{type(error).__name__}: {error}"}
        print(json.dumps(self.found[name]), flush=True)
        if self.options.store:
            store("rollout_card", self.found, self.options.name, self._folder)

    @property
    def left_out(self) -> list[str]:
        """Return the parts that were not measured."""
        return [name for name, found in self.found.items() if "left_out" in found]

    async def measure(self, engine: EngineUnderTest, restart_seconds: float | None = None) -> None:
        """Measure the profile of a degree."""

        async def measured() -> dict[str, Any]:
            options = self.options
            grid = parts.Grid(
                tuple(options.batches), tuple(options.contexts), tuple(options.prefills),
                options.tokens,
            )  # fmt: skip
            kv_tokens = options.kv_tokens or await engine.kv_tokens()
            found, known = await parts.profile(engine, grid, kv_tokens)
            self.profiles.append(msgspec.structs.replace(found, restart_seconds=restart_seconds))
            return {"profile": msgspec.to_builtins(self.profiles[-1]), **known}

        await self.part(f"profile of degree {engine.degree}", measured)

    async def measure_rest(
        self, engine: EngineUnderTest, target: EngineUnderTest | None, why: str
    ) -> None:
        """Measure order, fold and move; ``why``: there is no ``target``."""

        async def moved() -> dict[str, Any]:
            if target is None:
                raise Unmeasured(why)
            return await parts.move(
                engine, target, self.options.moved_tokens, self.options.controller
            )

        async def folded() -> dict[str, Any]:
            found = await parts.fold(engine)
            self.profiles = [
                msgspec.structs.replace(each, wake_seconds=found["wake_seconds"])
                if each.degree == engine.degree
                else each
                for each in self.profiles
            ]
            return found

        await self.part("order", lambda: parts.order(engine, self.options.order_tokens))
        await self.part("move", moved)
        await self.part("fold", folded)

    def fleet(self) -> dict[str, Any] | None:
        """Return the Fleet document; None without a profile. Raises InvalidRequest for one that no fleet could have."""
        if not self.profiles:
            return None
        options = self.options
        moved = self.found.get("move", {})
        rate = None
        if moved.get("moved_tokens") and moved["move_seconds"] > 0:
            rate = moved["moved_tokens"] / moved["move_seconds"]
        profile = EngineProfile(
            tuple(sorted(self.profiles, key=lambda each: each.degree)),
            source=f"measured {time.strftime('%Y-%m-%d', time.gmtime())}: {options.engine}, {options.name}",
            transfer_tokens_per_second=rate,
        )
        spec = FleetSpec(
            FleetEngine(options.engine), source=options.model or "", workers=tuple(self.workers),
            profile=profile,
        )  # fmt: skip
        check_fleet(options.name, spec)
        for raised in ProfiledTimes(profile).raised:
            print(raised.text, file=sys.stderr)
        return {
            "apiVersion": "tangram/v1",
            "kind": "Fleet",
            "metadata": {"name": options.name},
            "spec": msgspec.to_builtins(spec),
        }

    def store_fleet(self) -> Path | None:
        """Write the Fleet document beside the results."""
        document = self.fleet()
        if document is None or not self.options.store:
            return None
        path = self._folder / f"rollout_card-{self.options.name}-fleet.json"
        path.write_text(json.dumps(document, indent=2) + "\n")
        return path


def gpus() -> int:
    """Return the number of NVIDIA GPUs that can be used."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def missing(options: argparse.Namespace, count: int, installed: Sequence[str]) -> str:
    """Return why nothing can be measured; empty: something can. ``installed``: engines of this Python."""
    if options.url:
        return "" if options.slots else "give --slots: the generations that the engine runs at once"
    if not options.model:
        return (
            "give --model, a folder or a name that the engine knows, or --url of a server that runs"
        )
    if not count:
        return (
            "there is no NVIDIA GPU (nvidia-smi -L lists none): give --url of a server that has one"
        )
    if options.engine not in installed:
        return f"{options.engine} is not installed for this Python: pip install {options.engine}, or give --engine or --url"
    if max(options.degrees) > count:
        return f"degree {max(options.degrees)} needs as many GPUs, and there are {count}: give smaller --degrees"
    return ""


def installed() -> list[str]:
    """Return the engines that this Python has."""
    return [each.value for each in _ENGINES if importlib.util.find_spec(each.value) is not None]


async def run(card: Card) -> None:
    """Measure servers that run, or start them one after the other."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=httpx.Timeout(600, connect=10), limits=limits) as client:
        if card.options.url:
            await _of_urls(card, client)
        else:
            await _of_gpus(card, client)


async def _of_urls(card: Card, client: httpx.AsyncClient) -> None:
    options, found = card.options, []
    for number, url in enumerate(options.url, 1):
        url = url.rstrip("/").removesuffix("/v1")
        try:
            model = (await client.get(f"{url}/v1/models")).json()["data"][0]["id"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise Unmeasured(f"{url}/v1/models names no model: {error}") from error
        engine = FleetEngine(options.engine)
        found.append(EngineUnderTest(url, engine, model, options.slots, options.degree, client))
        card.workers.append(WorkerSpec(f"w{number}", url, options.slots, options.degree))
    await card.measure(found[0])
    target = found[1] if len(found) > 1 else None
    await card.measure_rest(found[0], target, "a move needs two servers: give --url twice")


async def _of_gpus(card: Card, client: httpx.AsyncClient) -> None:
    options, count = card.options, gpus()
    logs = Path(tempfile.mkdtemp(prefix="rollout-card-"))
    print("output of the engines is in", logs)
    for degree in sorted(options.degrees, reverse=True):
        async with AsyncExitStack() as stack:

            async def start(devices: Sequence[int]) -> tuple[EngineUnderTest, float]:
                port, engine = free_port(), FleetEngine(options.engine)
                seconds = await stack.enter_async_context(
                    started(engine, options.model, devices, options.slots, port, logs)
                )
                url = f"http://127.0.0.1:{port}"
                return (
                    EngineUnderTest(
                        url, engine, options.model, options.slots, len(devices), client
                    ),
                    seconds,
                )

            engine, seconds = await start(range(degree))
            await card.measure(engine, seconds)
            if degree == min(options.degrees):
                target = None
                if count >= 2 * degree:
                    target, _ = await start(range(degree, 2 * degree))
                await card.measure_rest(engine, target, f"a move needs {2 * degree} GPUs")


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", default="rollout-card", help="of the fleet [%(default)s]")
    parser.add_argument("--model", help="model to serve here: a folder, or a name")
    parser.add_argument("--url", action="append", help="a server that runs; a second one for moves")
    parser.add_argument("--engine", choices=[str(each) for each in _ENGINES], default="vllm")
    parser.add_argument("--slots", type=int, help="generations at once [64 with --model]")
    parser.add_argument("--degree", type=int, choices=DEGREES, default=1, help="of --url")
    parser.add_argument("--degrees", type=int, nargs="+", choices=DEGREES, default=[1])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048, 8192, 32768])
    parser.add_argument("--prefills", type=int, nargs="+", default=[512, 2048, 8192, 32768])
    parser.add_argument("--tokens", type=int, default=128, help="of each stream")
    parser.add_argument("--order-tokens", type=int, default=256, help="of requests that fill slots")
    parser.add_argument("--moved-tokens", type=int, default=_MOVED_TOKENS)
    parser.add_argument("--kv-tokens", type=float, help="tokens of cache [asked of the engine]")
    parser.add_argument("--controller", default="", help="address of LMCache's controller")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--store", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args(words)
    if options.model and not options.slots:
        options.slots = 64
    return options


def main(words: Sequence[str] | None = None, folder: Path | None = None) -> int:
    """Measure, print, store; return the exit status."""
    options = read_options(words)
    if why := missing(options, gpus(), installed()):
        print(f"nothing can be measured: {why}", file=sys.stderr)
        return 2
    card = Card(options, folder)
    try:
        asyncio.run(run(card))
    except (Unmeasured, httpx.HTTPError) as error:
        print(f"nothing more can be measured: {type(error).__name__}: {error}", file=sys.stderr)
        return 1 if card.profiles else 2
    if (path := card.store_fleet()) is not None:
        print("the fleet is in", path)
    if card.left_out:
        print("left out:", ", ".join(card.left_out))
    return 1 if card.left_out else 0


if __name__ == "__main__":
    sys.exit(main())
