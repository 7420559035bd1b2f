"""Cores stay as granted when others change them, and a lost engine gives no made-up outcome."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from domain.action import Outcome
from domain.allocation import Allocation
from domain.ids import ActionId, ResourceId, TrajectoryKey
from domain.ports import RunOrder
from managers.common.affinity import usable_cores
from managers.cpu.containers import ContainerDriver
from managers.cpu.containers.environment import Environment
from tests.conformance.containers.conftest import a_driver, processes_with
from tests.conformance.containers.test_container_lifetimes import owned
from tests.conformance.driver import FOREVER, Performance, an_order
from tests.docker_engine import DockerEngine
from tests.tiers import by_tier

pytestmark = pytest.mark.slow

LAST = max(usable_cores())
SEED = 20_261_121


def on_cores(order: RunOrder, *cores: int, milli: int | None = None) -> RunOrder:
    """Return the same order with these cores granted, or a part of them."""
    amount = milli or 1000 * len(cores)
    granted = Allocation(ResourceId("cpu:n1"), amount, cores, shared=milli is not None)
    return RunOrder(order.action, (granted,), order.attempt)


def cores_of(environment: Environment) -> frozenset[int]:
    assert environment.group is not None
    return environment.group.effective_cpus()


async def used_at_once(one: Environment, other: Environment, least: float) -> tuple[float, float]:
    """Return the CPU seconds that two have used at one moment when ``other`` has used ``least``.

    While we have no processor ourselves both go on: such a look is not taken.
    """
    assert one.group is not None
    assert other.group is not None
    async with asyncio.timeout(240):
        while True:
            before = one.group.usage().cpu_seconds
            seconds = other.group.usage().cpu_seconds
            if seconds >= least and one.group.usage().cpu_seconds - before < 0.005:
                return before, seconds
            await asyncio.sleep(0.01)


@pytest.fixture
def mortal() -> Iterator[DockerEngine]:
    """An engine of one test's own."""
    engine = DockerEngine().start()
    engine.load_image()
    yield engine
    engine.stop()


@pytest.mark.parametrize("way", ["direct"])
async def test_usage_of_an_action_is_counted_for_it_alone(driver: ContainerDriver) -> None:
    eat = "x = bytearray(200 * 2**20)\nfor n in range(10**6): n * n"
    heavy = await driver.run(an_order("python3", "-c", eat, name="act_1"), lambda: None)
    light = await driver.run(an_order("true", name="act_2"), lambda: None)
    assert heavy.result is not None
    assert light.result is not None
    assert heavy.result.used is not None
    assert light.result.used is not None
    assert heavy.result.used.peak_memory_bytes > 200 * 2**20
    assert light.result.used.peak_memory_bytes < 100 * 2**20
    assert 0 < light.result.used.cpu_seconds < heavy.result.used.cpu_seconds


@pytest.mark.parametrize("way", ["direct"])
async def test_the_effective_cores_are_the_granted_ones_while_acting_and_the_parked_ones_after(
    driver: ContainerDriver,
) -> None:
    performance = Performance(driver, on_cores(an_order(*FOREVER), LAST))
    await performance.started.wait()
    [environment] = driver.containers()
    assert cores_of(environment) == {LAST}
    driver.resize(ActionId("act_1"), 1, Allocation(ResourceId("cpu:n1"), 2000, usable_cores()))
    assert cores_of(environment) == set(usable_cores())
    driver.stop(ActionId("act_1"), Outcome.CANCELLED, "enough")
    await performance.task
    assert cores_of(environment) == {min(usable_cores())}


async def test_a_command_runs_on_its_granted_cores(driver: ContainerDriver) -> None:
    script = "grep Cpus_allowed_list /proc/self/status; taskset -pc 0-63 $$ >/dev/null; nproc"
    report = await driver.run(on_cores(an_order("sh", "-c", script), LAST), lambda: None)
    assert report.result is not None
    assert report.result.stdout.split() == ["Cpus_allowed_list:", str(LAST), "1"]


async def test_a_light_action_gets_its_part_of_a_core(driver: ContainerDriver) -> None:
    burn = (
        "import time; t=time.time()\nwhile time.process_time() < 0.3: pass\nprint(time.time() - t)"
    )
    order = on_cores(an_order("python3", "-c", burn), LAST, milli=200)
    report = await driver.run(order, lambda: None)
    assert report.result is not None
    assert float(report.result.stdout) > 1.0  # at least, however busy the machine is


@pytest.mark.parametrize("way", ["direct"])
async def test_an_action_without_a_core_gives_way_to_one_with_a_core(
    driver: ContainerDriver,
) -> None:
    spin = f"exec taskset -c {LAST} python3 -c 'while True: pass'"
    uncounted = Performance(driver, an_order("sh", "-c", spin, name="act_1"))
    await uncounted.started.wait()
    [environment] = driver.containers()
    await driver.run(an_order("true", name="act_2", trajectory="b"), lambda: None)
    work = an_order("python3", "-c", "while True: pass", name="act_3", trajectory="b")
    counted = Performance(driver, on_cores(work, LAST))
    await counted.started.wait()
    [other] = [each for each in driver.containers() if each is not environment]
    before = await used_at_once(environment, other, 0.3)  # by then it has begun, and only spins
    now = await used_at_once(environment, other, before[1] + 0.5)
    for name, performance in (("act_1", uncounted), ("act_3", counted)):
        driver.stop(ActionId(name), Outcome.CANCELLED, "enough")
        await performance.task
    assert now[1] - before[1] > 4 * (now[0] - before[0])


async def test_an_action_that_is_granted_a_core_later_gives_way_no_more(
    driver: ContainerDriver, engine: DockerEngine
) -> None:
    for order in (an_order("true", name="act_1"), on_cores(an_order("true", name="act_2"), LAST)):
        report = await driver.run(order, lambda: None)
        assert report.outcome == Outcome.COMPLETED
    seen = []
    for order in (
        an_order(*FOREVER, name="act_3"),
        on_cores(an_order(*FOREVER, name="act_4"), LAST),
    ):
        performance = Performance(driver, order)
        await performance.started.wait()
        [environment] = driver.containers()
        if environment.group is None:
            with engine.client() as client:
                [facts] = owned(engine, driver)
                seen.append(client.inspect_container(facts["Id"])["HostConfig"]["CpuShares"])
        else:
            seen.append(2 if environment.share and environment.share.yields else 1024)
        driver.stop(order.action.id, Outcome.CANCELLED, "enough")
        await performance.task
    assert seen == [2, 1024]


async def test_cores_that_another_program_changed_are_restored_and_counted(
    engine: DockerEngine, tmp_path: Path
) -> None:
    driver = a_driver(engine, tmp_path, "direct", sweep_seconds="0.02")
    await driver.open()
    performance = Performance(driver, on_cores(an_order(*FOREVER), LAST))
    await performance.started.wait()
    [environment] = driver.containers()
    with engine.client() as client:
        client.update_container(owned(engine, driver)[0]["Id"], cpuset_cpus="0")
    async with asyncio.timeout(120):
        while not driver.repairs:
            await asyncio.sleep(0.01)
    assert cores_of(environment) == {LAST}
    driver.stop(ActionId("act_1"), Outcome.CANCELLED, "enough")
    assert "changed from outside" in ((await performance.task).detail or "")
    await driver.remove_environment(TrajectoryKey("lab/trj-1"))
    await driver.close()


# The SDK forgets to close a socket whose other end has gone.
@pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning")
@pytest.mark.parametrize("death", ["crashes", "is stopped"])
@pytest.mark.parametrize("way", ["direct", "api"])
async def test_an_engine_that_goes_away_mid_action_leaves_it_unknown(
    mortal: DockerEngine, tmp_path: Path, way: str, death: str, sleep: str
) -> None:
    driver = a_driver(mortal, tmp_path, way, patience_seconds="120")
    await driver.open()
    performance = Performance(driver, an_order(*sleep.split()))
    async with asyncio.timeout(120):
        while not processes_with(sleep.split()[1]):
            await asyncio.sleep(0.01)
    await asyncio.to_thread(mortal.kill if death == "crashes" else mortal.terminate)
    report = await performance.task
    assert report.outcome is Outcome.UNKNOWN
    assert report.result is None
    mortal.start()
    later = await driver.run(an_order("true", name="act_2"), lambda: None)
    assert later.outcome is Outcome.INFRA_FAILED
    await driver.maintain()
    assert owned(mortal, driver) == []
    await driver.remove_environment(TrajectoryKey("lab/trj-1"))
    assert owned(mortal, driver) == []
    fresh = await driver.run(an_order("true", name="act_3"), lambda: None)
    assert fresh.outcome is Outcome.COMPLETED
    await driver.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["direct"])
async def test_random_interleavings_leave_no_container_and_no_process(
    engine: DockerEngine, driver: ContainerDriver, sleep: str
) -> None:
    """Trajectories that act, are stopped, are removed while they are made or act, and finish."""
    chance = random.Random(SEED)
    commands = (("true",), ("sh", "-c", f"{sleep} & exit 3"), tuple(sleep.split()))

    async def one(number: int) -> None:
        name = f"trj-{number}"
        order = an_order(*chance.choice(commands), name=f"act_{number}", trajectory=name)
        performance = Performance(driver, on_cores(order, chance.choice(usable_cores())))
        await asyncio.sleep(chance.random() * 0.8)
        match chance.randrange(3):
            case 0:
                driver.stop(order.id, Outcome.CANCELLED, "by chance")
            case 1:
                performance.task.cancel()
            case _:
                await driver.remove_environment(TrajectoryKey(f"lab/{name}"))
        await asyncio.wait([performance.task])
        if not performance.task.cancelled():
            report = performance.task.result()
            assert report.outcome in (Outcome.COMPLETED, Outcome.CANCELLED), report
        await driver.remove_environment(TrajectoryKey(f"lab/{name}"))

    limit = asyncio.Semaphore(6)

    async def in_turn(number: int) -> None:
        async with limit:
            await one(number)

    await asyncio.gather(*(in_turn(number) for number in range(by_tier(30, 30, 100))))
    await driver.maintain()
    assert driver.containers() == []
    assert owned(engine, driver) == []
