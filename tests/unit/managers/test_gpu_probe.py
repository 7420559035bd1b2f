"""GPUs that a node offers, from NVML or from its operator."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from subprocess import PIPE

import pytest

from domain.errors import InvalidRequest
from domain.ids import ResourceId
from domain.ports import DriverContext, UnitUse
from managers.common.visible_gpus import chosen_gpus
from managers.gpu.engines.leftovers import VARIABLE, label_of, left_by
from managers.gpu.ledger import ChunkLedger
from managers.gpu.probe import NvmlMeter, inventory_of, probe_gpu, read_gpus
from tests.fake_nvml import GIB, FakeNvml


def context(**settings: str) -> DriverContext:
    return DriverContext("n1", Path("unused"), {}, settings)


def test_devices_keep_their_numbers_and_the_smallest_memory_counts() -> None:
    nvml = FakeNvml({"gib": 80}, {"gib": 40, "mig": 0})
    inventory = inventory_of(read_gpus(nvml))
    assert (inventory.capacity, inventory.groups) == (2000, ((0, 1),))
    assert (inventory.memory_bytes, inventory.unhealthy) == (40 * GIB, ())
    assert not nvml.open


@pytest.mark.parametrize(
    ("device", "trouble"),
    [
        ({"lost": True}, "GPU is lost"),
        ({"mig": 1}, "it is split into MIG devices"),
        ({"compute_mode": 2}, "its compute mode is prohibited"),
        ({"pending": True}, "its memory waits for a reset to be repaired"),
        ({"pids": (17, 18)}, "processes work on it: 17, 18"),
    ],
    ids=lambda each: str(each),
)
def test_a_gpu_in_trouble_keeps_its_place_and_is_not_offered(device, trouble) -> None:
    gpus = read_gpus(FakeNvml({}, device, {}, {}))
    assert gpus[1].trouble == trouble
    ledger = ChunkLedger(ResourceId("gpu:n1"), inventory_of(gpus))
    assert ledger.counts == (1, 1, 0, 0)
    assert ledger.allocate("a", 2000).units == (2, 3)


@pytest.mark.slow
def test_leftovers_of_a_dead_predecessor_do_not_mark_a_gpu_as_foreign(tmp_path) -> None:
    label = label_of(tmp_path)
    assert label_of(tmp_path) == label
    variables = {**os.environ, VARIABLE: label[VARIABLE]}
    with subprocess.Popen(["cat"], env=variables, stdin=PIPE, stdout=PIPE) as left:
        assert left.stdin is not None
        assert left.stdout is not None
        left.stdin.write(b"!")
        left.stdin.flush()
        # Popen returns before the kernel shows what the new program was given; this is after.
        assert left.stdout.read(1) == b"!"
        try:
            ours = left_by(tmp_path)
            (ours_alone, both) = read_gpus(
                FakeNvml({"pids": (left.pid,)}, {"pids": (left.pid, os.getpid())}), ours
            )
            assert ours_alone.trouble == ""
            assert both.trouble == f"processes work on it: {os.getpid()}"
        finally:
            left.kill()
    assert not left_by(tmp_path / "new")(os.getpid())


def test_memory_is_measured_by_number_with_its_processes() -> None:
    meter = NvmlMeter(FakeNvml({}, {"gib": 40, "used_gib": 30, "pids": (17,)}))
    assert [meter.free_bytes(unit) // GIB for unit in (0, 1)] == [80, 10]
    assert [meter.pids(unit) for unit in (0, 1)] == [[], [17]]


def test_a_node_without_the_library_has_no_gpus() -> None:
    inventory = inventory_of(read_gpus(FakeNvml(broken=True)))
    assert (inventory.capacity, inventory.groups) == (0, ())


def test_declared_gpus_are_counted_and_shown_as_declared() -> None:
    inventory = probe_gpu(context(gpus="3", gpu_memory_bytes="1000"))
    assert (inventory.capacity, inventory.groups) == (3000, ((0, 1, 2),))
    assert inventory.oversubscribed
    assert inventory.memory_bytes == 1000


def test_gpus_that_an_engine_granted_keep_their_numbers_and_the_others_are_not_read() -> None:
    nvml = FakeNvml({"minor": 0}, {"minor": 1}, {"minor": 2, "pids": (17,)}, {"minor": 3})
    gpus = read_gpus(nvml, chosen=chosen_gpus("nvml:0, GPU-3"))
    assert [(gpu.number, gpu.trouble) for gpu in gpus] == [(0, ""), (3, "")]
    ledger = ChunkLedger(ResourceId("gpu:n1"), inventory_of(gpus))
    assert ledger.allocate("a", 2000).units == (0, 3)


def test_an_operator_may_declare_that_there_are_none() -> None:
    assert probe_gpu(context(gpus="0")).capacity == 0


@pytest.mark.parametrize(
    "settings", [{"gpus": "two"}, {"gpus": "-1"}, {"gpus": "1", "gpu_memory_bytes": "80 GiB"}],
    ids=str,
)  # fmt: skip
def test_an_invalid_number_is_refused_by_name(settings) -> None:
    with pytest.raises(InvalidRequest, match="give a whole number"):
        probe_gpu(context(**settings))


def test_gpu_activity_is_measured_except_of_a_lost_gpu() -> None:
    meter = NvmlMeter(
        FakeNvml({"gib": 80, "used_gib": 60, "busy": 35}, {"used_gib": 1}, {"lost": 1})
    )

    assert meter.use(0) == UnitUse(0.35, 60 * GIB, 80 * GIB)
    assert meter.use(1) == UnitUse(None, GIB, 80 * GIB)
    assert meter.use(2) is None


def test_the_fake_has_no_call_and_no_figure_that_nvml_lacks() -> None:
    import pynvml

    calls = [name for name in vars(FakeNvml) if name.startswith("nvml")]

    assert len(calls) > 10
    assert [name for name in calls if not callable(getattr(pynvml, name, None))] == []
    memory, use = (
        {name for name, _ in each._fields_}
        for each in (pynvml.c_nvmlMemory_t, pynvml.c_nvmlUtilization_t)
    )
    assert {"total", "free"} <= memory
    assert {"gpu", "memory"} <= use
