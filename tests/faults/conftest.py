"""One system for all faults; each round is audited over the whole history."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.audit import Audit
from tests.faults.system import System


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    system = System(tmp_path_factory.mktemp("f"))
    system.start()
    yield system
    system.stop()


@pytest.fixture(scope="module")
def audit(system: System) -> Audit:
    return Audit(system)
