"""Engine ``torch`` with a real torch, on the processor: it really drops its tensors and restores them."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest
from msgspec.structs import replace

from domain.services import Degree, Engine, GpuService, ServiceEvent, WarmUp, check_service
from managers.gpu.engines import AnswersChanged, EngineFailed, OutOfMemory, Server
from managers.gpu.engines.sleeping import TorchServer
from rollout.llm.engine_client import EngineClient
from rollout.llm.sampler import SampleRequest, TurnSampler
from rollout.llm.sampling_options import SamplingOptions
from rollout.ports import Seat
from tests.architecture.tree import ROOT
from tests.conformance.engine import EngineConformance
from tests.scripted_backends import TestBinding
from tests.working_directories import processes_in

#: Has Debian's torch; ours has none.
PYTHON = "/usr/bin/python3"
#: As `tests.torch_models.large` has them.
WEIGHTS = 128 * 2**20
#: More than torch and one copy of the weights take, less than torch and two do.
BOTH = 2 * WEIGHTS + WEIGHTS // 2
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128,
}  # fmt: skip
SOURCES = {"": "large", "hangs": "waiting", "waits": "waiting", "dies": "dying"}


def a_service(model: str, **fields) -> GpuService:
    service = GpuService(
        Engine.TORCH,
        (Degree(1, 2**30),),
        source=f"tests.torch_models:{model}",
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "65536"},
        python=PYTHON,
    )
    service = replace(service, **fields)
    check_service("model", service)
    return service


@pytest.mark.slow
class TestTorchEngine(EngineConformance):
    """A worker whose device is the processor."""

    @pytest.fixture(autouse=True)
    def directory(self, tmp_path: Path) -> None:
        self._directory = tmp_path / "server"

    def make(self, trouble: str = "") -> Server:
        limit = 1.0 if trouble == "hangs" else 240.0
        service = a_service(SOURCES[trouble], restore_timeout_seconds=limit)
        return TorchServer(service, (0,), self._directory, grace_seconds=0.3)

    def holds_memory(self, server: Server) -> bool:
        """More than the copy in host memory, which is what an evicted one keeps."""
        return sum(anonymous_bytes(process) for process in self._processes()) > BOTH

    async def kill(self, server: Server) -> None:
        for process in self._processes():
            process.kill()
        while server.alive:
            await asyncio.sleep(0.01)

    def _processes(self) -> list[psutil.Process]:
        return processes_in(self._directory)

    async def test_restores_and_evictions_move_all_of_its_memory(self) -> None:
        """Its process stays, and the copy in host memory is what it was: nothing is written back."""
        server = TorchServer(a_service("writing"), (0,), self._directory, grace_seconds=0.3)
        try:
            await server.restore()
            assert self.holds_memory(server)
            (before,) = self._processes()
            first, then = await score(server), await score(server)
            assert first != then
            assert await server.evict() is ServiceEvent.EVICTED
            assert not self.holds_memory(server)
            assert anonymous_bytes(before) > WEIGHTS, "the copy in host memory stays"
            await server.restore()
            assert self.holds_memory(server)
            assert await score(server) == first
            assert self._processes() == [before]
        finally:
            await server.close()


async def score(server: Server) -> float:
    async with httpx.AsyncClient(base_url=server.base_url, trust_env=False) as client:
        answer = await client.post("/v1/score", json={"text": "x"}, timeout=180)
    number: float = answer.json()["score"]
    return number


def anonymous_bytes(process: psutil.Process) -> int:
    """Return the memory of a process that is no file's; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["changing", "corrupting"])
async def test_a_model_that_does_not_answer_as_before_is_reported_and_ended(
    model, tmp_path
) -> None:
    """I12: by the answer to its fixed prompt, and by the sums of its weights."""
    server = TorchServer(a_service(model), (0,), tmp_path, grace_seconds=0.3)
    try:
        await server.restore()
        await score(server)
        await server.evict()
        with pytest.raises(AnswersChanged, match="answers_changed"):
            await server.restore()
        assert (server.alive, server._process) == (False, None)
    finally:
        await server.close()


@pytest.mark.slow
async def test_a_model_larger_than_declared_fails_with_the_size_to_declare(
    tmp_path,
) -> None:
    service = a_service("scorer", degrees=(Degree(1, 2**20),))
    server = TorchServer(service, (0,), tmp_path, grace_seconds=0.3)
    with pytest.raises(OutOfMemory, match="take 8388864 bytes and 1048576 are declared: declare"):
        await server.restore()
    assert server._process is None


@pytest.mark.slow
async def test_an_invalid_request_and_a_crash_have_different_errors(tmp_path) -> None:
    warm_up = WarmUp("POST", "/v1/score", '{"text": "warm"}', "score")
    server = TorchServer(a_service("scorer", warm_up=warm_up), (0,), tmp_path, grace_seconds=0.3)
    try:
        await server.restore()
        async with httpx.AsyncClient(
            base_url=server.base_url, trust_env=False, timeout=180
        ) as client:
            answer = await client.post("/v1/score", json=[1])
            assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
            with pytest.raises(httpx.TransportError):
                await client.post("/v1/crash", json={})
        async with asyncio.timeout(60):
            while server.alive:
                await asyncio.sleep(0.01)
    finally:
        await server.close()


@pytest.mark.slow
async def test_an_architecture_of_transformers_is_made_from_its_configuration(tmp_path) -> None:
    """Random weights, which every start draws alike; ids in, ids out."""
    library = Path(sys.prefix) / "transformers"
    assert library.is_dir(), "./tangram test installs it"
    source = tmp_path / "config.json"
    source.write_text(json.dumps(LLAMA))
    service = a_service("", source=str(source), env={"PYTHONPATH": str(library)})
    asked = {"prompt": [1, 2, 3], "max_tokens": 6}
    said = []
    server = TorchServer(service, (0,), tmp_path / "server", grace_seconds=0.3)
    try:
        for _ in range(2):
            await server.restore()
            async with httpx.AsyncClient(base_url=server.base_url, trust_env=False) as client:
                answer = await client.post("/v1/completions", json=asked, timeout=180)
                scored = await client.post("/v1/score", json={"input": [1, 2]}, timeout=180)
                wrong = await client.post("/v1/completions", json={"prompt": "words"}, timeout=180)
                one, two = [
                    (await client.post("/v1/embeddings", json={"input": given}, timeout=180)).json()
                    for given in ([1, 2], [[1, 2], [3]])
                ]
            said.append(answer.json()["choices"][0]["token_ids"])
            assert len(scored.json()["score"]) == LLAMA["vocab_size"]
            assert wrong.status_code == 400
            assert [each["index"] for each in two["data"]] == [0, 1]
            assert two["data"][0] == one["data"][0]
            assert len(two["data"][1]["embedding"]) == LLAMA["hidden_size"]
            assert await server.evict() is ServiceEvent.EVICTED
    finally:
        await server.close()
    assert said[0] == said[1]
    assert 1 <= len(said[0]) <= 6


def log_softmax(logits: list[float]) -> list[float]:
    largest = max(logits)
    whole = largest + math.log(sum(math.exp(each - largest) for each in logits))
    return [each - whole for each in logits]


@pytest.mark.slow
async def test_sampled_tokens_of_a_transformers_model_have_the_log_probabilities_of_its_logits(
    tmp_path,
) -> None:
    """And a rollout samples them as from any other backend."""
    source = tmp_path / "config.json"
    source.write_text(json.dumps(LLAMA))
    service = a_service(
        "", source=str(source), env={"PYTHONPATH": str(Path(sys.prefix) / "transformers")}
    )
    server = TorchServer(service, (0,), tmp_path / "server", grace_seconds=0.3)
    prompt, engine = [1, 2, 3], EngineClient()
    try:
        await server.restore()
        binding = TestBinding(Seat("policy", "b1", server.base_url, 3, "openai"))
        options = SamplingOptions(temperature=5.0, max_tokens=6, seed=1)
        turns = [
            (
                await TurnSampler(engine).sample(
                    binding, SampleRequest(prompt, msgspec.structs.replace(options, seed=seed), 128)
                )
            ).tokens
            for seed in (1, 1, 2)
        ]
        async with httpx.AsyncClient(base_url=server.base_url, trust_env=False) as client:
            seen, values = [*prompt], turns[0].logprobs
            assert values is not None
            for token, logprob in zip(turns[0].ids.tolist(), values, strict=True):
                scored = await client.post("/v1/score", json={"input": seen}, timeout=180)
                assert logprob == pytest.approx(
                    log_softmax(scored.json()["score"])[token], abs=1e-4
                )
                seen.append(token)
            one = {"prompt": prompt, "max_tokens": 6, "temperature": 5.0, "top_k": 1}
            kept = await client.post("/v1/completions", json=one, timeout=180)
            greedy = await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 6})
            wrong = await client.post(
                "/v1/completions", json={**one, "temperature": "hot"}, timeout=180
            )
    finally:
        await engine.close()
        await server.close()
    assert turns[0].ids.tolist() == turns[1].ids.tolist()
    assert turns[0].ids.tolist() != turns[2].ids.tolist()
    assert kept.json()["choices"][0]["token_ids"] == greedy.json()["choices"][0]["token_ids"]
    assert (wrong.status_code, "temperature" in wrong.text) == (400, True)


@pytest.mark.slow
async def test_an_interpreter_without_torch_says_so(tmp_path) -> None:
    service = a_service("scorer", python="/usr/bin/python3", env={"PYTHONPATH": str(tmp_path)})
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')")
    server = TorchServer(service, (0,), tmp_path / "server", grace_seconds=0.3)
    with pytest.raises(EngineFailed, match="No module named torch"):
        await server.restore()


@pytest.mark.slow
async def test_as_many_requests_as_declared_are_worked_on_at_once(tmp_path) -> None:
    """Each waits for the other; and an eviction waits for both."""
    server = TorchServer(a_service("meeting", max_concurrency=2), (0,), tmp_path, grace_seconds=0.3)
    try:
        await server.restore()
        first, second = await asyncio.gather(score(server), score(server))
        assert first == second
        assert await server.evict() is ServiceEvent.EVICTED
    finally:
        await server.close()


@pytest.mark.slow
async def test_a_divided_model_answers_as_on_one_device_also_after_a_restore(
    tmp_path,
) -> None:
    """On the processor the devices are all the same; the copies, their sums and the moves are not."""
    answers = []
    for gpus in (1, 3):
        service = a_service("layered", degrees=(Degree(gpus, 2**30),))
        server = TorchServer(service, tuple(range(gpus)), tmp_path / str(gpus), grace_seconds=0.3)
        try:
            for _ in range(2):
                await server.restore()
                answers.append(await score(server))
                assert await server.evict() is ServiceEvent.EVICTED
        finally:
            await server.close()
    assert answers == pytest.approx([answers[0]] * 4)


@pytest.mark.slow
async def test_a_model_without_layers_is_not_divided_and_says_so(tmp_path) -> None:
    service = a_service("scorer", degrees=(Degree(2, 2**30),))
    server = TorchServer(service, (0, 1), tmp_path, grace_seconds=0.3)
    with pytest.raises(EngineFailed, match="needs a list of at least 2 layers"):
        await server.restore()


DIVIDED = """
from tests.torch_models import Layered
from managers.gpu.torch_worker.split import SplitWeights
from managers.gpu.torch_worker.weights import FlatWeights

model = Layered(6)
whole = FlatWeights(Layered(6), "cpu").nbytes
split = SplitWeights(model, ["cpu", "cpu", "cpu"])
assert not split.resident and max(each.nbytes for each in split.shards) < 0.6 * whole
for _ in range(2):
    split.restore()
    assert split.resident and split.unchanged()
    homes = [
        [number for number, shard in enumerate(split.shards)
         if 0 <= tensor.data_ptr() - shard._resident.data_ptr() < shard.nbytes]
        for tensor in (model.embed.weight, *(e.inner.weight for e in model.layers), model.head.weight)
    ]
    assert homes == sorted(homes) and homes[0] == [0] and homes[-1] == [2], homes
    assert (model.embed.weight == model.head.weight).all()
    split.release()
    assert not split.resident
"""


@pytest.mark.slow
async def test_each_device_has_its_layers_in_order_and_tied_weights_are_on_both() -> None:
    checking = await asyncio.create_subprocess_exec(
        PYTHON, "-c", DIVIDED, env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, words = await checking.communicate()
    assert checking.returncode == 0, words.decode()
