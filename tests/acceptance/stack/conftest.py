"""One running Tangram for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.up.conftest import Tangram


@pytest.fixture(scope="session")
def tangram(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tangram]:
    running = Tangram(tmp_path_factory.mktemp("stack") / "home", "--no-demo")
    running.wait_until_ready()
    yield running
    assert running.end() == 0
