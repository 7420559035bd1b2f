"""The example of GPU services, on a running Tangram with two declared GPUs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from examples.gpu_service.demo import MODELS, ask, declaration, play
from tangram_client import AsyncClient, Client
from tangram_client._calls import apply_config
from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_five_models_answer_alike_on_two_gpus(tangram: Tangram, admin_token: str) -> None:
    url = tangram.access["url"]
    with Client(url, admin_token) as admin:
        admin.send(apply_config(declaration(mebibytes=1)))

    views = asyncio.run(play(AsyncClient(url, tangram.access["token"]), calls=16))

    homes = {(view.placement or {})["gpus"][0] for view in views}
    restores = [view for view in views if not view.result["cached"]]
    assert homes == {0, 1}
    assert len(restores) >= len(MODELS)
    assert all(
        view.timing is not None
        and view.result["restore_seconds"] <= view.timing.overhead_seconds + 1e-6
        for view in restores
    )


def test_a_model_of_torch_answers_where_it_is_declared_as_the_example_says(
    tangram: Tangram, admin_token: str
) -> None:
    """On the processor: this machine has no card, its GPUs are declared."""
    folder = ROOT / "examples/gpu_service"
    declared = Path(folder / "torch.yaml").read_text().replace("/srv/models", str(folder))
    url = tangram.access["url"]
    with Client(url, admin_token) as admin:
        admin.send(apply_config(declared))

    async def ask_both() -> list[float | None]:
        async with AsyncClient(url, tangram.access["token"]) as client:
            views = [await ask(client, "torch-reward", text, "1") for text in ("good", "bad")]
        assert [view.outcome for view in views] == ["completed"] * 2, views[0].detail
        assert [view.result["cached"] for view in views] == [False, True]
        return [view.reward for view in views]

    good, bad = asyncio.run(ask_both())
    assert good is not None
    assert bad is not None
    assert good != bad
