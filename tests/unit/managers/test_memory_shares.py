"""Environments and GPU services share a node's memory, and no byte belongs to both."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import InvalidRequest
from domain.inventory import ResourceInventory
from domain.ports import DriverContext
from managers.common.memory_shares import (
    MemoryShares,
    limits_above,
    memory_shares,
    real_memory_bytes,
)
from managers.cpu.probe import probe_memory
from managers.gpu.probe import probe_gpu

REAL = 1000


def shares(declared: dict[str, int], *, has_gpus: bool = True) -> MemoryShares:
    settings = {name: str(value) for name, value in declared.items()}
    return memory_shares(settings, REAL, has_gpus=has_gpus)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({}, MemoryShares(500, 500)),
        ({"memory_bytes": 700}, MemoryShares(700, 300)),
        ({"memory_bytes": 1000}, MemoryShares(1000, 0)),
        ({"service_memory_bytes": 100}, MemoryShares(900, 100)),
        ({"service_memory_bytes": 0}, MemoryShares(1000, 0)),
        ({"memory_bytes": 200, "service_memory_bytes": 300}, MemoryShares(200, 300)),
        ({"memory_bytes": 800, "service_memory_bytes": 300}, MemoryShares(800, 300, True)),
        ({"memory_bytes": 2000}, MemoryShares(2000, None, True)),
    ],
    ids=str,
)
def test_an_undeclared_share_is_what_the_other_leaves(
    declared: dict[str, int], expected: MemoryShares
) -> None:
    assert shares(declared) == expected


def test_without_gpus_all_is_for_environments() -> None:
    assert shares({"service_memory_bytes": 300}, has_gpus=False) == MemoryShares(1000, None)
    assert shares({"memory_bytes": 700}, has_gpus=False) == MemoryShares(700, None)


@given(
    environments=st.none() | st.integers(1, REAL),
    services=st.none() | st.integers(0, REAL - 1),
)
def test_both_parts_together_are_never_more_than_there_is_unless_that_was_declared(
    environments: int | None, services: int | None
) -> None:
    given_ = {"memory_bytes": environments, "service_memory_bytes": services}
    found = shares({name: value for name, value in given_.items() if value is not None})
    assert found.services_bytes is not None
    assert found.oversubscribed == (found.environments_bytes + found.services_bytes > REAL)
    assert not found.oversubscribed or None not in given_.values()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"memory_bytes": "0"}, "memory_bytes is '0'.*above 0"),
        ({"service_memory_bytes": "half"}, "service_memory_bytes is 'half'"),
        ({"service_memory_bytes": "1000"}, "leave some to environments"),
    ],
    ids=["nothing for environments", "no number", "all of it"],
)
def test_a_declaration_that_makes_no_sense_is_refused(settings: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        memory_shares(settings, REAL, has_gpus=True)


def test_a_node_with_gpus_offers_to_environments_what_services_leave(tmp_path: Path) -> None:
    context = DriverContext("n1", tmp_path, {}, {"gpus": "1", "service_memory_bytes": "4096"})
    gpu = probe_gpu(context)
    assert gpu.host_memory_bytes == 4096

    beside = DriverContext("n1", tmp_path, {"gpu": gpu}, context.settings)
    assert probe_memory(beside) == ResourceInventory(real_memory_bytes() - 4096)


def test_the_limit_of_a_job_is_that_of_a_group_above_its_process() -> None:
    version_2 = limits_above("0::/system.slice/slurmstepd.scope/job_7/step_batch/user/task_0\n")
    assert Path("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max") in version_2
    assert version_2[-1] == Path("/sys/fs/cgroup/memory.max")

    version_1 = limits_above("5:devices:/\n4:memory:/slurm_n1/uid_0/job_1\n")
    root = Path("/sys/fs/cgroup/memory")
    assert version_1 == [
        root / below / "memory.limit_in_bytes"
        for below in ("slurm_n1/uid_0/job_1", "slurm_n1/uid_0", "slurm_n1", "")
    ]


def test_the_smallest_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\n")
    for name, text in {"task": "max\n", "job": "4096\n", "all": "8192\n"}.items():
        (tmp_path / name).write_text(text)
    limits = [tmp_path / name for name in ("task", "job", "all", "missing")]
    assert real_memory_bytes(tmp_path / "meminfo", limits) == 4096
