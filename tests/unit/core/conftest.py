"""A core with a check of its invariants after every step and at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.scenario import Scenario

StartCore = Callable[..., Scenario]


@pytest.fixture
def core() -> Iterator[StartCore]:
    """Start scenarios: ``core(a_node("n1", cpus=2), config=a_config())``."""
    started: list[Scenario] = []

    def start(*nodes: Any, **fields: Any) -> Scenario:
        started.append(Scenario(*nodes, **fields))
        return started[-1]

    yield start
    for scenario in started:
        scenario.check()
