"""The example of GPU services, on a running Tangram with two declared GPUs."""

from __future__ import annotations

import asyncio

import pytest

from examples.gpu_service.demo import MODELS, declaration, play
from tangram_client import AsyncClient, Client
from tangram_client._config import apply_config
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


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
