"""Servers of language models by one suite: the worker of engine torch, the modelled engines, and the scripted server of the examples."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from examples.rollouts.scripted_llm import Served
from managers.llm.fake.engine_model import EngineModel
from managers.llm.fake.engine_server import Behaviour, EngineServer
from managers.llm.fake.engine_spec import MODELLED
from managers.llm.fake.paced_engine import PacedEngine
from managers.llm.fake.word_tokens import VOCABULARY
from tests.chat_models import tokenizer
from tests.conformance.language_engine import LanguageEngineConformance, ServedModel
from tests.scripted_backends import scripted_model, serving
from tests.torch_workers import CONFIG, TorchWorker, write_config


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchWorker]:
    with TorchWorker(write_config(tmp_path_factory.mktemp("model"))) as worker:
        yield worker


@pytest.mark.slow
class TestTorchWorker(LanguageEngineConformance):
    """A small random Llama, by torch on the processor."""

    @pytest.fixture
    def engine(self, worker: TorchWorker) -> ServedModel:
        vocabulary = int(str(CONFIG["vocab_size"]))
        return ServedModel(worker.url, "openai", vocabulary, too_long=600)


@pytest.mark.parametrize("dialect", ["openai", "vllm"])
class TestScripted(LanguageEngineConformance):
    """The server that follows a script; it computes nothing, so it caches nothing."""

    @pytest.fixture
    async def engine(self, dialect: str) -> AsyncIterator[ServedModel]:
        model = scripted_model(context=512)
        async with serving(Served(model, dialect)) as url:
            yield ServedModel(url, dialect, tokenizer().vocabulary_size, too_long=600, caches=False)


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
class TestModelled(LanguageEngineConformance):
    """Modelled engines, a hundred times as fast as what they model."""

    @pytest.fixture
    async def engine(self, dialect: str) -> AsyncIterator[ServedModel]:
        engine = PacedEngine(EngineModel(MODELLED["8B"], 1, 8), 100.0)
        server = EngineServer(engine, Behaviour(dialect, "modelled", context=512))
        async with serving(server) as url:
            yield ServedModel(url, dialect, VOCABULARY, too_long=600)
        await engine.close()
