"""batches: 256 rollouts of 32K tokens from rollout workers to 4 ranks of a trainer, beside the JSON that ProRL's door answers to ``/process``.

``python -m benchmarks.batches [--rollouts 256] [--tokens 32768] [--ranks 4] [--workers 2] [--rounds 3]``. Logs of rollouts are written as rollout
workers do. Two servers read them, in processes of their own, and ranks in theirs: the row doors of rollout workers, and a web server
whose answers are made by the code of the door. Each rank fetches what it owns, so the JSON has the better case: no controller that gathers it
all. The same by one controller, as the published clients do, is measured once. A rank is done when its tokens, log-probabilities and masks are arrays.
Goal: at least 5 × between the medians of one run. Arrays are compared with the logs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import uvicorn

from benchmarks.record import store
from contract.batch_views import BatchManifest, RowWorker
from contract.rollout_views import RolloutView
from dispatcher.batches import pull
from domain.redis_keys import Keys
from domain.rollouts import RolloutOutcome, RolloutState
from facades.prorl.answers import pieces
from facades.prorl.answers import turns_of as turns_of_answer
from rollout.ports import Record
from rollout.tokens.sampled import SampledTokens
from rollout.tokens.segments import SampledTurn, segments_of
from rollout.tokens.turn_records import turn_record, turns_of
from scheduler.runtime.batches.batch_store import BatchStore
from scheduler.runtime.batches.manifests import found_rows, manifest_of, new_batch_id
from scheduler.runtime.batches.owners import asked_owners
from scheduler.runtime.batches.row_addresses import RowAddresses
from scheduler.runtime.batches.row_door import RowDoor, RowDoorOptions
from scheduler.runtime.batches.row_reader import RowReader
from scheduler.runtime.batches.row_streams import RowStreams
from scheduler.runtime.batches.row_tokens import RowTokens
from scheduler.runtime.gateway.http import encode_json
from scheduler.runtime.redis.clients import connect_async
from scheduler.runtime.rollouts.log_store import RolloutLogs
from scheduler.runtime.rollouts.result_documents import turns_document
from tests.redis_server import RedisServer

VOCABULARY = 151_936
TURN_TOKENS = 400
CONTEXT_TOKENS = 624
SECRET = b"bench"
KEYS = Keys("bench")
LIFE_SECONDS = 7200
_spawn = multiprocessing.get_context("spawn")


def write_log(logs: RolloutLogs, number: int, tokens: int) -> RolloutView:
    """Write the log of a rollout of about ``tokens`` tokens: turns of a model and results of tools, as of a software task."""
    chance = np.random.default_rng(number)
    rollout = f"rol_{number:028x}"
    logs.create([(rollout, Record("request", {}))])
    turns = max(1, tokens // (TURN_TOKENS + CONTEXT_TOKENS))
    for turn in range(turns):
        sampled = SampledTurn(
            context=chance.integers(0, VOCABULARY, CONTEXT_TOKENS, np.int32),
            tokens=SampledTokens(
                chance.integers(0, VOCABULARY, TURN_TOKENS, np.int32),
                -chance.exponential(0.3, TURN_TOKENS).astype(np.float32),
            ),
            weights_version=3 + turn // 20,
            follows=turn - 1 if turn else None,
            message={"role": "assistant", "content": "x" * 40},
            asked=[{"role": "tool", "content": "y" * 40}],
        )
        logs.append(rollout, 1, turn + 1, turn_record(sampled))
    return RolloutView(
        id=rollout, state=RolloutState.FINISHED, outcome=RolloutOutcome.COMPLETED, project="default",
        reward=float(number % 2), instance=str(number // 8), group=f"g-{number // 8}", sample=number % 8, turns=turns,
    )  # fmt: skip


def serve_rows(url: str, folder: str, name: str, ready: Connection) -> None:
    """Serve rows as a rollout worker does, until killed."""

    async def run() -> None:
        client = connect_async(url)
        streams = RowStreams(
            BatchStore(client, KEYS), RowTokens(SECRET), RolloutLogs(Path(folder)), name
        )
        door = RowDoor(RowAddresses(client, KEYS), name, RowDoorOptions(), streams)
        await door.open(1)
        assert door.address is not None
        ready.send(door.address.address)
        await asyncio.Event().wait()

    asyncio.run(run())


def serve_json(folder: str, views: Sequence[RolloutView], ready: Connection) -> None:
    """Answer each path ``/process/{id}`` as ProRL's door answers a job that has ended, until killed."""
    logs, known = RolloutLogs(Path(folder)), {view.id: view for view in views}

    def native(rollout: str) -> bytes:
        return encode_json(turns_document(rollout, logs.read(rollout), packed=False))

    async def application(scope: Any, receive: Any, send: Any) -> None:
        view = known[scope["path"].rpartition("/")[2]]
        turns = turns_of_answer(await asyncio.to_thread(native, view.id))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in pieces(view, turns, instance_id=view.instance, trajectory_id=None, patch=None):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    listening = socket.create_server(("127.0.0.1", 0))
    ready.send(f"127.0.0.1:{listening.getsockname()[1]}")
    config = uvicorn.Config(application, lifespan="off", log_level="warning")
    asyncio.run(uvicorn.Server(config).serve([listening]))


def rank_process(manifest: dict[str, Any], rank: int, pipe: Connection) -> None:
    """Fetch what a rank owns, whenever it is asked to; answers a checksum of its arrays, seconds and bytes."""
    while (asked := pipe.recv()) is not None:
        how, address = asked
        began, cpu = time.perf_counter(), time.process_time()
        if how == "pull":
            arrays = pull(manifest, rank)
            moved = manifest["owners"][rank]["bytes"]
        else:
            owned = [manifest["rows"][row]["rollout"] for row in manifest["owners"][rank]["rows"]]
            every = [row["rollout"] for row in manifest["rows"]]
            arrays, moved = fetch_json(address, owned if how == "json" else every)
        seconds = time.perf_counter() - began
        pipe.send((checksum(arrays), seconds, moved, time.process_time() - cpu))


def fetch_json(address: str, rollouts: Sequence[str]) -> tuple[dict[str, np.ndarray], int]:
    """Return the tokens of jobs as arrays, and the bytes of their answers; one connection, as many requests as there are jobs."""
    connection, moved = HTTPConnection(address), 0
    parts: dict[str, list[np.ndarray]] = {"tokens": [], "loss_mask": [], "logprobs": []}
    for rollout in rollouts:
        connection.request("POST", f"/process/{rollout}", body=b"{}")
        body = connection.getresponse().read()
        moved += len(body)
        for message in json.loads(body)["messages"]:
            ids = np.array(message["token_ids"], np.int32)
            sampled = message["logprobs"] is not None
            parts["tokens"].append(ids)
            parts["loss_mask"].append(np.full(len(ids), sampled, np.uint8))
            values = (
                np.array(message["logprobs"], np.float32)
                if sampled
                else np.zeros(len(ids), np.float32)
            )
            parts["logprobs"].append(values)
    connection.close()
    return {name: np.concatenate(found) for name, found in parts.items()}, moved


def checksum(arrays: dict[str, np.ndarray]) -> int:
    """Return a checksum of tokens, masks and log-probabilities."""
    found = 0
    for name in ("tokens", "loss_mask", "logprobs"):
        found = zlib.crc32(np.ascontiguousarray(arrays[name]).data, found)
    return found


def expected(logs: RolloutLogs, rollouts: Sequence[str]) -> int:
    """Return the checksum of rollouts by their logs."""
    parts: dict[str, list[np.ndarray]] = {"tokens": [], "loss_mask": [], "logprobs": []}
    for rollout in rollouts:
        [segment] = segments_of(turns_of(logs.read(rollout)))
        assert segment.logprobs is not None
        zeros = np.zeros(len(segment.prompt_ids), np.uint8)
        parts["tokens"] += [segment.prompt_ids, segment.response_ids]
        parts["loss_mask"] += [zeros, segment.loss_mask]
        parts["logprobs"] += [zeros.astype(np.float32), segment.logprobs]
    return checksum({name: np.concatenate(found) for name, found in parts.items()})


class Ranks:
    """The processes of the ranks."""

    def __init__(self, manifest: dict[str, Any], ranks: int, stack: ExitStack) -> None:
        self.pipes: list[Connection] = []
        for rank in range(ranks):
            ours, theirs = _spawn.Pipe()
            start(stack, partial(rank_process, manifest, rank, theirs))
            self.pipes.append(ours)

    def run(self, how: str, address: str = "", ranks: int | None = None) -> dict[str, Any]:
        """Let ranks fetch at once; return checksums, seconds until the last one is done, and bytes."""
        asked = self.pipes[:ranks]
        began = time.perf_counter()
        for pipe in asked:
            pipe.send((how, address))
        found = [pipe.recv() for pipe in asked]
        return {
            "seconds": time.perf_counter() - began,
            "bytes": sum(each[2] for each in found),
            "cpu_seconds_of_ranks": sum(each[3] for each in found),
            "checksums": [each[0] for each in found],
        }


def start(stack: ExitStack, target: Callable[[], None]) -> None:
    """Start a process that ends with the stack."""
    process = _spawn.Process(target=target, daemon=True)
    process.start()
    stack.callback(process.join, 10)
    stack.callback(process.kill)


def started(stack: ExitStack, target: Callable[..., None], *arguments: Any) -> str:
    """Start a server; return its address."""
    ours, theirs = _spawn.Pipe()
    start(stack, partial(target, *arguments, theirs))
    address: str = ours.recv()
    return address


async def make_manifest(
    url: str, logs: RolloutLogs, views: Sequence[RolloutView], ranks: int
) -> BatchManifest:
    """Store a batch of all rollouts, as the gateway does."""
    client, now = connect_async(url), time.time()
    found = found_rows(views, RowReader(logs))
    manifest = manifest_of(
        new_batch_id(), "default", found, asked_owners({"ranks": ranks}), now, now + LIFE_SECONDS
    )
    await BatchStore(client, KEYS).put(manifest, now, now + LIFE_SECONDS)
    await client.aclose()
    return manifest


def measure(given: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Return the numbers of one run."""
    logs = RolloutLogs(directory / "rollouts")
    views = [write_log(logs, number, given.tokens) for number in range(given.rollouts)]
    for number, view in enumerate(views):
        view.worker = f"w{number % given.workers}"
    redis = RedisServer(directory / "redis").start()
    with ExitStack() as stack:
        stack.callback(redis.stop)
        folder = str(directory / "rollouts")
        names = [f"w{number}" for number in range(given.workers)]
        doors = [started(stack, serve_rows, redis.url, folder, name) for name in names]
        web = started(stack, serve_json, folder, views)
        began = time.perf_counter()
        made = asyncio.run(make_manifest(redis.url, logs, views, given.ranks))
        manifest_seconds = time.perf_counter() - began
        tokens = RowTokens(SECRET)
        for owner in made.owners:
            owner.token = tokens.token(made.id, "default", owner.rank, time.time() + LIFE_SECONDS)
        made.workers = [
            RowWorker(name, address) for name, address in zip(names, doors, strict=True)
        ]
        manifest = json.loads(msgspec.json.encode(made))
        ranks = Ranks(manifest, given.ranks, stack)
        rounds: list[tuple[dict[str, Any], dict[str, Any]]] = []
        ranks.run(
            "pull"
        )  # starts the processes; the logs were just written, so files are in memory for both
        for number in range(given.rounds):
            rounds.append((ranks.run("pull"), ranks.run("json", web)))
            print(
                f"round {number + 1}: "
                + ", ".join(f"{each['seconds']:.2f} s" for each in rounds[-1])
            )
        alone = ranks.run("all json", web, ranks=1)
    for rank, owner in enumerate(manifest["owners"]):
        right = expected(logs, [manifest["rows"][row]["rollout"] for row in owner["rows"]])
        for pair in rounds:
            if any(each["checksums"][rank] != right for each in pair):
                raise RuntimeError(f"rank {rank} has other rows than the logs")
    return numbers(manifest, rounds, alone, manifest_seconds)


def numbers(
    manifest: dict[str, Any],
    rounds: Sequence[tuple[dict[str, Any], dict[str, Any]]],
    alone: dict[str, Any],
    manifest_seconds: float,
) -> dict[str, Any]:
    """Return what is stored."""
    pulls, jsons = zip(*rounds, strict=True)
    pulled, fetched = (median(each["seconds"] for each in found) for found in (pulls, jsons))
    return {
        "rollouts": len(manifest["rows"]), "tokens": manifest["tokens"], "ranks": manifest["ranks"],
        "workers": len(manifest["workers"]),
        "manifest_seconds": round(manifest_seconds, 3), "manifest_kilobytes": round(len(json.dumps(manifest)) / 1e3, 1),
        "pull_seconds": [round(each["seconds"], 3) for each in pulls],
        "json_seconds": [round(each["seconds"], 3) for each in jsons],
        "json_by_one_controller_seconds": round(alone["seconds"], 3),
        "pull_megabytes": round(pulls[0]["bytes"] / 1e6, 1), "json_megabytes": round(jsons[0]["bytes"] / 1e6, 1),
        "pull_cpu_seconds_of_ranks": round(median(each["cpu_seconds_of_ranks"] for each in pulls), 3),
        "json_cpu_seconds_of_ranks": round(median(each["cpu_seconds_of_ranks"] for each in jsons), 3),
        "ratio": round(fetched / pulled, 2), "ratio_to_one_controller": round(alone["seconds"] / pulled, 2),
        "ratio_with_manifest": round(fetched / (pulled + manifest_seconds), 2),
        "bytes_ratio": round(jsons[0]["bytes"] / pulls[0]["bytes"], 2),
    }  # fmt: skip


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-store", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tangram-batches-") as directory:
        found = measure(given, Path(directory))
    for name, value in found.items():
        print(f"{name:32} {value}")
    print(f"{found['ratio']} × (goal: at least 5)")
    if not given.no_store:
        print("stored in", store("batches", found))


if __name__ == "__main__":
    main()
