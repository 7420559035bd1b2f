"""However actions, stops and ends of trajectories interleave, nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from domain.action import Outcome
from managers.cpu.containers import container_config
from tests.conformance.containers.conftest import a_driver
from tests.conformance.containers.interleavings import MOVES, Lives
from tests.docker_engine import DockerEngine

pytestmark = pytest.mark.slow


@pytest.mark.long
async def test_random_lives_leave_no_container_and_no_core(
    engine: DockerEngine, tmp_path: Path
) -> None:
    driver = a_driver(engine, tmp_path, "direct")
    await driver.open()
    lives = Lives(driver, seed=1)
    await lives.play(100, at_once=8)

    assert set(lives.made) == set(MOVES)
    assert lives.outcomes[Outcome.COMPLETED] > 20
    assert lives.ledger.holders() == {}
    assert lives.parked > 20
    with engine.client() as client:
        label = f"{container_config.OWNER}={driver.owner}"
        assert client.containers(all=True, filters={"label": label}) == []
    await driver.close()
    assert not list((tmp_path / "state").glob("*/tangram-*"))
