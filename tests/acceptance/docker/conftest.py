"""A whole Tangram whose node runs commands in containers of a real engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.up.conftest import Tangram
from tests.docker_engine import IMAGE, DockerEngine, missing_programs


@pytest.fixture
def engine() -> Iterator[DockerEngine]:
    if missing := missing_programs():
        pytest.skip(f"not installed: {', '.join(missing)}")
    engine = DockerEngine().start()
    engine.load_image()
    yield engine
    engine.stop()


@pytest.fixture
def tangram(
    engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Tangram]:
    monkeypatch.setenv("TANGRAM_CPU_BACKEND", "docker")
    monkeypatch.setenv("TANGRAM_DOCKER_HOST", engine.host)
    monkeypatch.setenv("TANGRAM_DOCKER_IMAGE", IMAGE)
    started = Tangram(tmp_path / "home", "--no-demo")
    try:
        started.wait_until_ready()
        yield started
    finally:
        started.end()
