"""A backend's dialect is found out, unless its registration states it."""

from __future__ import annotations

import pytest

from domain.errors import InvalidRequest
from rollout.llm.engine_client import BackendFailed, EngineClient
from rollout.llm.probing import ProbedBackend, probe
from tests.scripted_backends import Backends, FaultyBackend


async def probed(backend: FaultyBackend | None, dialect: str = "") -> ProbedBackend:
    client = EngineClient(transport=Backends(**({"b1": backend} if backend else {})))
    try:
        return await probe(client, "http://b1", dialect)
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("dialect", "models", "context"),
    [
        ("vllm", ("scripted",), 32_768),
        ("sglang", ("scripted",), 32_768),
        ("openai", ("scripted",), None),
        ("prorl", (), None),
    ],
)
async def test_a_dialect_is_known_by_the_pages_of_its_engine(dialect, models, context):
    assert await probed(FaultyBackend(dialect)) == ProbedBackend(dialect, models, context)


@pytest.mark.parametrize(
    ("listed", "declared", "wanted", "named"),
    [
        (("a", "b"), "", "b", "b"),
        (("a", "b"), "", "/models/policy", "a"),
        (("a", "b"), "", "", "a"),
        (("a", "b"), "lora", "b", "lora"),
        ((), "", "policy", "policy"),
        ((), "", "", ""),
    ],
)
def test_requests_name_a_model_that_the_backend_has(listed, declared, wanted, named):
    assert ProbedBackend("vllm", listed).model(declared, wanted) == named


async def test_prorl_is_known_by_its_document_before_it_is_asked_for_tokens():
    backend = FaultyBackend("prorl")
    body = {"properties": {"prompt_ids": {"type": "array"}, "top_p": {}}}
    document = {"paths": {"/generate": {}}, "components": {"schemas": {"GenerateRequest": body}}}
    backend.served._pages = lambda: {"/openapi.json": document}  # type: ignore[method-assign]

    assert (await probed(backend)).dialect == "prorl"
    assert backend.asked == []


async def test_a_stated_dialect_is_taken_as_it_is():
    backend = FaultyBackend("prorl")
    assert (await probed(backend, "openai")).dialect == "openai"
    assert backend.asked == []
    with pytest.raises(InvalidRequest, match="dialect is one of"):
        await probed(backend, "grpc")


async def test_what_is_no_engine_says_so_and_what_does_not_answer_is_down():
    page = FaultyBackend("prorl", lambda answer: 500)
    with pytest.raises(BackendFailed, match="state its dialect"):
        await probed(page)
    with pytest.raises(BackendFailed, match="connection refused"):
        await probed(None)
