"""The tensor-parallel example under the Python that has torch: equal answers of all degrees, and a real lack of memory."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.parallelism.servers import TensorParallelServer
from examples.tensor_parallel.declare import PYTHON, ROOT

pytestmark = pytest.mark.slow

SIZES = {"vocabulary": 512, "width": 64, "layers": 2, "heads": 4, "context": 2048}
MEBIBYTE = 2**20
PROMPT = [20 + n % 40 for n in range(200)]


def serve(
    play: Callable[..., Coroutine[Any, Any, None]],
    *degrees: int,
    memory_bytes: int = 0,
    weights: str = "",
) -> None:
    """Run ``play`` with a server of each degree."""

    async def run() -> None:
        servers = [TensorParallelServer(each, memory_bytes, SIZES, weights) for each in degrees]
        try:
            for server in servers:
                await server.ready()
            await play(*servers)
        finally:
            for server in servers:
                await server.close()

    asyncio.run(run())


async def completed(server: TensorParallelServer, **members: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "max_tokens": 12, "seed": 4, "logprobs": 0, "ignore_eos": True}
    answer = await server.post("/v1/completions", {**body, **members})
    assert answer.status_code == 200, answer.text
    return answer.json()


def write_weights(path: Path, version: int, seed: int) -> None:
    """Let the Python that has torch write a whole model, and replace the file at once."""
    code = (
        "import os, sys, torch\n"
        "from examples.rollouts.small_model.transformer import Shape, Transformer\n"
        f"state = Transformer(Shape(*{tuple(SIZES.values())}), {seed}).state_dict()\n"
        f"torch.save({{'weights_version': {version}, 'state': state}}, sys.argv[1] + '.new')\n"
        "os.replace(sys.argv[1] + '.new', sys.argv[1])\n"
    )
    subprocess.run([PYTHON, "-c", code, str(path)], cwd=ROOT, check=True)


def test_one_and_two_ranks_sample_the_same_tokens_with_the_same_probabilities() -> None:
    async def play(one: TensorParallelServer, two: TensorParallelServer) -> None:
        found = [await completed(each, n=3) for each in (one, two)]
        for alone, divided in zip(*(each["choices"] for each in found), strict=True):
            assert divided["token_ids"] == alone["token_ids"]
            probabilities = [each["logprobs"]["token_logprobs"] for each in (divided, alone)]
            assert probabilities[0] == pytest.approx(probabilities[1], abs=1e-4)
        rows = [choice["token_ids"] for choice in found[0]["choices"]]
        assert len({tuple(row) for row in rows}) == 3, "rows of one prompt have seeds of their own"
        single = await completed(one, n=1, seed=5)
        assert single["choices"][0]["token_ids"] == rows[1], (
            "a prompt is computed once for its rows"
        )

    serve(play, 1, 2)


def test_one_rank_dies_for_lack_of_memory_where_two_survive_and_is_started_again() -> None:
    # 32 rows of 1,500 tokens take 49 MB of keys and values; half of that beside a rank's weights fits.
    body = {"prompt": PROMPT * 7, "n": 32, "max_tokens": 100, "ignore_eos": True, "logprobs": None}

    async def play(one: TensorParallelServer, two: TensorParallelServer) -> None:
        before = {each.pid for each in psutil.Process(one.process.pid).children()}
        answer = await one.post("/v1/completions", body)
        assert answer.status_code == 507, answer.text
        assert answer.json()["error"] == "out_of_memory"
        assert "status 77" in answer.json()["evidence"]
        took = (await completed(two, **body))["tangram"]
        assert 20 * MEBIBYTE < took["peak_memory_bytes"] < 44 * MEBIBYTE
        after = {each.pid for each in psutil.Process(one.process.pid).children()}
        assert after
        assert not after & before, "the rank that died is another process now"
        assert len((await completed(one))["choices"][0]["token_ids"]) == 12

    serve(play, 1, 2, memory_bytes=44 * MEBIBYTE)


def test_a_rank_that_is_killed_without_evidence_is_a_failure_and_no_lack_of_memory() -> None:
    async def play(server: TensorParallelServer) -> None:
        (rank, _) = psutil.Process(server.process.pid).children()
        os.kill(rank.pid, signal.SIGKILL)
        answer = await server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 4})
        assert answer.status_code == 500, answer.text
        assert "status -9" in answer.json()["detail"]
        assert (await completed(server))["tangram"]["tp"] == 2

    serve(play, 2)


def test_replaced_weights_serve_the_next_batch_at_every_degree(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    write_weights(weights, 3, seed=1)

    async def play(one: TensorParallelServer, two: TensorParallelServer) -> None:
        former = await completed(one)
        assert former["tangram"]["weights_version"] == 3
        await asyncio.to_thread(write_weights, weights, 4, 2)
        found = [await completed(each) for each in (one, two)]
        assert [each["tangram"]["weights_version"] for each in found] == [4, 4]
        tokens = [each["choices"][0]["token_ids"] for each in (former, *found)]
        assert tokens[1] == tokens[2] != tokens[0]
        weights.write_bytes(b"no weights")
        assert (await completed(two))["tangram"]["weights_version"] == 4
        assert (await two.client.get("/tangram/state")).json()["refused"]

    serve(play, 1, 2, weights=str(weights))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prompt": "text"}, "token ids"),
        ({"prompt": [600]}, "511"),
        ({"prompt": [1] * 2048}, "maximum context length is 2048"),
        ({"prompt": [1], "n": 1000}, "n:"),
    ],
)
def test_a_wrong_request_is_refused_with_what_is_wrong(body: dict[str, Any], said: str) -> None:
    async def play(server: TensorParallelServer) -> None:
        answer = await server.post("/v1/completions", body)
        assert answer.status_code == 400
        assert said in answer.json()["detail"]

    serve(play, 1)
