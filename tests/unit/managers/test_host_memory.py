"""Host memory of services: a start without room is refused; the longest asleep service is ended for room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.services import ServiceState
from managers.gpu.host_memory import Home, HostMemory, HostMemoryExceeded, NoRoom
from tests.unit.managers.keeping import NEED, A, B, Rig

C: Home = ("c", (2, 3))
D: Home = ("d", (4,))


@pytest.fixture
async def tight() -> AsyncIterator[Rig]:
    """Return a node with host memory for two services."""
    rig = Rig(host_bytes=20)
    yield rig
    rig.check()
    await rig.close()


async def test_the_longest_asleep_service_is_ended_for_a_call(tight: Rig) -> None:
    await tight.asleep(A)
    await tight.asleep(C)
    await tight.used(B)
    assert tight.states() == {
        "a": ServiceState.COLD, "c": ServiceState.HOST_RESIDENT, "b": ServiceState.RESIDENT,
    }  # fmt: skip
    tight.check()


async def test_an_idle_cached_service_is_ended_when_none_sleeps(tight: Rig) -> None:
    await tight.used(A)
    await tight.runner.hold("x", C, NEED)
    await tight.used(D)
    assert tight.states()["a"] is ServiceState.COLD
    assert tight.runner.store.take_lost() == (A,)
    tight.runner.release("x", C)


async def test_a_call_fails_with_the_reason_when_all_services_work(tight: Rig) -> None:
    await tight.runner.hold("x", A, NEED)
    await tight.runner.hold("y", C, NEED)
    with pytest.raises(NoRoom, match="20 are in use by 2 of them: declare the host_memory_bytes"):
        await tight.runner.hold("z", D, NEED)
    assert tight.states()["d"] is ServiceState.COLD
    tight.check()
    tight.runner.release("x", A)
    assert (await tight.runner.hold("z", D, NEED)).alive


async def test_a_service_larger_than_all_memory_fails_at_once_and_evicts_none() -> None:
    rig = Rig(host_bytes=9)
    with pytest.raises(HostMemoryExceeded, match="TANGRAM_NODE_SERVICE_MEMORY_BYTES"):
        await rig.runner.hold("x", A, NEED, [B])
    with pytest.raises(HostMemoryExceeded):
        await rig.runner.prefetch(A, NEED, awake=False)
    rig.check()
    await rig.close()


async def test_no_service_is_ended_for_a_preload(tight: Rig) -> None:
    await tight.asleep(A)
    await tight.asleep(C)
    for awake in (False, True):
        with pytest.raises(NoRoom, match="of host memory"):
            await tight.runner.prefetch(D, NEED, awake=awake)
    assert tight.states()["a"] is ServiceState.HOST_RESIDENT


@pytest.mark.parametrize("trouble", ["dies", "hangs"])
async def test_a_service_that_failed_to_start_takes_no_memory(tight: Rig, trouble: str) -> None:
    tight.troubles["a"] = trouble
    for attempt in (
        tight.runner.hold("x", A, NEED),
        tight.runner.prefetch(A, NEED),
        tight.runner.prefetch(A, NEED, awake=False),
    ):
        with pytest.raises(Exception, match="it "):
            await attempt
        tight.check()


async def test_a_service_that_works_is_not_ended_for_room(tight: Rig) -> None:
    """1. a sleeps. 2. b is being started on its GPUs, for ever. 3. d has no room until b has ended."""
    await tight.asleep(A)
    tight.troubles["b"] = "waits"
    holding = asyncio.ensure_future(tight.runner.hold("x", B, NEED))
    while B not in tight.servers or not tight.servers[B].held:
        await asyncio.sleep(0)
    with pytest.raises(NoRoom):
        await tight.runner.hold("y", D, NEED)
    assert tight.states()["a"] is ServiceState.HOST_RESIDENT
    holding.cancel()


homes = st.sampled_from([(name, (unit,)) for name in "abc" for unit in (0, 1)])


@given(
    capacity=st.integers(0, 40),
    needs=st.fixed_dictionaries({name: st.integers(0, 30) for name in "abc"}),
    steps=st.lists(st.tuples(st.booleans(), homes), max_size=30),
)
def test_the_sum_never_passes_the_capacity_and_all_of_it_is_released(
    capacity: int, needs: dict[str, int], steps: list[tuple[bool, Home]]
) -> None:
    memory = HostMemory(capacity, lambda home: needs[home[0]])
    there: dict[Home, int] = {}
    for comes, home in steps:
        if not comes:
            memory.give_back(home)
            there.pop(home, None)
        elif memory.fits(home):
            memory.take(home)
            there.pop(home, None)
            there[home] = needs[home[0]]
        else:
            assert home not in there
            with pytest.raises(NoRoom):
                memory.take(home)
        assert memory.used_bytes == sum(there.values()) <= capacity
        assert memory.oldest() == [each for each, taken in there.items() if taken]
