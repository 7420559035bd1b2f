"""The driver of GPU services with real processes: what it leaves, finds again, and counts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from domain.action import Action, Kind, Outcome
from domain.allocation import Allocation, Home, Hosting
from domain.apis import CallSpec, ServiceResult
from domain.events import ChunkReport
from domain.ids import ActionId, ResourceId
from domain.inventory import ResourceInventory
from domain.ports import DriverContext, PrepareOrder, RunOrder, UnitUse
from domain.services import Degree, Engine, GpuService, ServiceState, WarmUp
from managers.gpu.driver import GpuDriver
from managers.gpu.engines.fake import FakeEngineServer, FakeMemory
from managers.gpu.engines.leftovers import end_left_by, label_of
from tests.architecture.tree import ROOT
from tests.conformance.test_torch_engine import a_service
from tests.fake_nvml import FakeNvml

GIB = 2**30
MODEL = str(ROOT / "examples/gpu_service/numpy_model.py")
SERVICE = GpuService(
    Engine.PROCESS,
    (Degree(1, 50 * GIB),),
    command=(sys.executable, MODEL, "--port", "{port}", "--mebibytes", "1"),
)
CONTEXT_GPUS = ResourceInventory(1000, ((0,),), oversubscribed=True, memory_bytes=80 * GIB)


def a_driver(directory: Path) -> GpuDriver:
    return GpuDriver(DriverContext("n1", directory, {"gpu": CONTEXT_GPUS}, {}))


def an_order(name: str, service: str, declared: GpuService = SERVICE, *evicted: str) -> RunOrder:
    call = CallSpec(f"service:{service}", path="/v1/score", body='{"text": "x"}')
    action = Action(
        id=ActionId(name), project="p", task="t", kind=Kind.CALL, call=call, cost={"gpu": (1000,)}
    )
    homes = tuple(Home(each, (0,)) for each in evicted)
    hosting = Hosting(service, 50 * GIB, evicted=homes)
    chunk = Allocation(ResourceId("gpu:n1"), 1000, (0,), hosting=hosting)
    return RunOrder(action, (chunk,), service=declared)


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[GpuDriver]:
    driver = a_driver(tmp_path)
    await driver.open()
    yield driver
    await driver.close()


def labelled(directory: Path) -> list[int]:
    """Return the processes that services of ``directory`` have."""
    label = label_of(directory)
    found = []
    for process in psutil.process_iter(["environ"]):
        environment = process.info["environ"] or {}
        if label.items() <= environment.items():
            found.append(process.pid)
    return found


@pytest.mark.slow
async def test_processes_of_a_dead_predecessor_are_ended_before_the_node_joins(
    driver: GpuDriver, tmp_path: Path
) -> None:
    report = await driver.run(an_order("1", "a"), lambda: None)
    assert report.outcome is Outcome.COMPLETED
    assert len(labelled(tmp_path)) == 1
    driver._marks.close()  # it is not heard of again

    successor = a_driver(tmp_path)
    left = await successor.open()

    assert labelled(tmp_path) == []
    assert [each.mark for each in left] == ["1#1"]
    assert successor.residents() == ()
    await successor.close()


@pytest.mark.slow
async def test_services_of_a_killed_node_worker_are_ended_by_its_folder(
    driver: GpuDriver, tmp_path: Path
) -> None:
    await driver.run(an_order("1", "a"), lambda: None)

    assert await asyncio.to_thread(end_left_by, tmp_path) == 1
    assert labelled(tmp_path) == []
    assert end_left_by(tmp_path / "other") == 0


@pytest.mark.slow
async def test_a_service_that_is_declared_otherwise_is_started_again(driver: GpuDriver) -> None:
    other = replace(SERVICE, command=(*SERVICE.command, "--seed", "8"))
    answers = []
    for name, declared in (("1", SERVICE), ("2", SERVICE), ("3", other)):
        report = await driver.run(an_order(name, "a", declared), lambda: None)
        assert isinstance(report.answer, ServiceResult)
        answers.append(report.answer.body)

    assert answers[0] == answers[1] != answers[2]
    assert driver.residents() == (Home("a", (0,)),)


@pytest.mark.slow
async def test_declared_memory_is_counted_and_evictions_are_reported(
    driver: GpuDriver,
) -> None:
    await driver.run(an_order("1", "a"), lambda: None)
    reported = await driver.run(an_order("2", "b"), lambda: None)  # no eviction was ordered

    assert reported.outcome is Outcome.COMPLETED
    assert reported.chunk is not None
    assert reported.chunk.gone == (Home("a", (0,)),)
    assert driver.residents() == (Home("b", (0,)),)


@pytest.mark.parametrize(
    ("trouble", "words", "stuck"),
    [("leaks", "memory of GPUs (0,) was not free in time", (0,)), ("dies", "declare memory", ())],
)
async def test_a_failed_restore_is_reported_with_the_gpus_to_keep_out_of_use(
    tmp_path: Path, trouble: str, words: str, stuck: tuple[int, ...]
) -> None:
    """I11: an eviction that frees nothing; and a service for which there is not enough memory."""
    memory = FakeMemory()

    def make_server(_: GpuService, home: Home) -> FakeEngineServer:
        behaves = {"a": "leaks" if trouble == "leaks" else "", "b": trouble}
        return FakeEngineServer(memory, home.units, 50 * GIB, behaves[home.service])

    driver = GpuDriver(
        DriverContext("n1", tmp_path, {"gpu": CONTEXT_GPUS}, {}),
        make_server=make_server,
        free_bytes=lambda unit: 80 * GIB - memory.used.get(unit, 0),
        patience_seconds=0.05,
    )
    await driver.open()
    try:
        first = an_order("1", "a")
        await driver._services.hold(first.mark, SERVICE, Home("a", (0,)), 50 * GIB, ())
        driver.runner.release(first.mark, ("a", (0,)))
        reported = await driver.run(an_order("2", "b", SERVICE, "a"), lambda: None)
        assert (reported.outcome, reported.never_started) == (Outcome.INFRA_FAILED, True)
        assert words in (reported.detail or "")
        assert reported.chunk is not None
        assert reported.chunk.stuck == stuck
        assert reported.chunk.failed == (() if stuck else (Home("b", (0,)),))
        assert driver.residents() == ()
    finally:
        await driver.close()


@pytest.mark.slow
async def test_models_of_torch_take_turns_on_a_gpu_and_stay_in_host_memory(
    driver: GpuDriver, tmp_path: Path
) -> None:
    answers = []
    for number, (name, evicted) in enumerate([("a", ()), ("b", ("a",)), ("a", ("b",))]):
        order = an_order(str(number), name, a_service("scorer", paths=("/v1",)), *evicted)
        report = await driver.run(order, lambda: None)
        assert isinstance(report.answer, ServiceResult), report.detail
        answers.append(report.answer.body)
        states = {each.service: each.state for each in driver.runner.store.instances()}

    assert len(set(answers)) == 1
    assert states == {"a": ServiceState.RESIDENT, "b": ServiceState.HOST_RESIDENT}
    assert len(labelled(tmp_path)) == 2, "both processes stay"
    assert driver.residents() == (Home("a", (0,)),)


async def test_memory_of_a_foreign_process_is_respected_and_the_process_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml({"used_gib": 60, "pids": (4711,), "busy": 90})
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    have = replace(CONTEXT_GPUS, oversubscribed=False)
    driver = GpuDriver(DriverContext("n1", tmp_path, {"gpu": have}, {}), patience_seconds=0.05)
    await driver.open()
    try:
        reported = await driver.run(an_order("1", "a"), lambda: None)
        assert driver.measured() == {0: UnitUse(0.9, 60 * GIB, 80 * GIB)}
    finally:
        await driver.close()
    assert (reported.outcome, reported.never_started) == (Outcome.INFRA_FAILED, True)
    assert reported.detail is not None
    assert reported.detail.endswith("was not free in time; processes there: 4711")
    assert reported.chunk is not None
    assert reported.chunk.stuck == (0,)


class SilentServer(FakeEngineServer):
    """Is there, and never answers a call."""

    base_url = ""


@pytest.mark.parametrize(
    ("engine", "stays"), [(Engine.TORCH, False), (Engine.PROCESS, True)], ids=["torch", "process"]
)
async def test_a_worker_that_hangs_in_a_call_is_ended_and_a_server_that_may_stop_by_itself_stays(
    tmp_path: Path, engine: Engine, stays: bool
) -> None:
    """Only engine torch cannot give up what its client waits for no more."""
    hanging = asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hanging.wait()
        writer.close()

    listening = await asyncio.start_server(hang, "127.0.0.1")
    memory = FakeMemory()

    def make_server(_: GpuService, home: Home) -> FakeEngineServer:
        server = SilentServer(memory, home.units, 50 * GIB)
        server.base_url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        return server

    context = DriverContext("n1", tmp_path, {"gpu": CONTEXT_GPUS}, {})
    driver = GpuDriver(context, make_server=make_server)
    await driver.open()
    try:
        order = an_order("1", "a", replace(SERVICE, engine=engine, source="m:f"))
        order.action = replace(order.action, timeout_seconds=0.1)
        report = await driver.run(order, lambda: None)
        assert report.outcome is Outcome.TIMEOUT
        assert driver.residents() == ((Home("a", (0,)),) if stays else ())
        assert (memory.used[0] > 0) is stays
    finally:
        await driver.close()
        hanging.set()
        listening.close()


async def test_a_call_of_a_service_that_is_declared_no_more_fails_and_says_so(
    driver: GpuDriver,
) -> None:
    order = an_order("1", "a")
    order.service = None
    report = await driver.run(order, lambda: None)

    assert report.outcome is Outcome.INFRA_FAILED
    assert "not a service that is declared now" in (report.detail or "")


@pytest.mark.slow
async def test_a_service_that_answers_otherwise_is_ended_and_kept_out_until_declared_again(
    driver: GpuDriver,
) -> None:
    """I12, where every start draws other weights."""
    changing = replace(
        SERVICE,
        command=("sh", "-c", f'exec "{sys.executable}" "{MODEL}" --port {{port}} --seed $$'),
        warm_up=WarmUp("POST", "/v1/score", '{"text": "x"}', "score"),
    )
    assert (await driver.run(an_order("1", "a", changing), lambda: None)).outcome == "completed"
    assert (await driver.run(an_order("2", "b", SERVICE, "a"), lambda: None)).outcome == "completed"

    reported = await driver.run(an_order("3", "a", changing, "b"), lambda: None)
    again = await driver.run(an_order("4", "a", changing), lambda: None)
    mended = await driver.run(an_order("5", "a"), lambda: None)

    for report, words in ((reported, "answered otherwise"), (again, "in quarantine on GPUs (0,)")):
        assert (report.outcome, report.never_started) == (Outcome.INFRA_FAILED, True)
        assert words in (report.detail or "")
        assert report.chunk is not None
        assert Home("a", (0,)) in report.chunk.gone
        assert report.chunk.failed == (Home("a", (0,)),)
    assert mended.outcome is Outcome.COMPLETED


@pytest.mark.slow
async def test_a_service_that_was_prepared_is_there_when_it_is_called(driver: GpuDriver) -> None:
    home = Home("a", (0,))
    reported = await driver.prepare(PrepareOrder(SERVICE, home, 50 * GIB))
    other = await driver.prepare(PrepareOrder(SERVICE, Home("b", (0,)), 50 * GIB))
    report = await driver.run(an_order("1", "a"), lambda: None)

    assert (reported.node, reported.home, reported.failed, reported.chunk) == (
        "n1",
        home,
        "",
        ChunkReport(),
    )
    assert reported.seconds > 0
    assert other.failed == "the memory that it needs is not free"
    assert other.chunk == ChunkReport(gone=(Home("b", (0,)),))
    assert report.outcome is Outcome.COMPLETED
    assert isinstance(report.answer, ServiceResult)
    assert report.answer.restore_seconds < reported.seconds
