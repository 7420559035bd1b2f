"""Restores and evictions of services on chunks: one at a time, only into free memory."""

from __future__ import annotations

import asyncio

import pytest

from domain.errors import Conflict
from domain.services import ServiceState
from managers.gpu.engines import AnswersChanged, EngineFailed, OutOfMemory
from managers.gpu.host_memory import Home, NoRoom
from managers.gpu.memory_reclaim import MemoryNotFreed
from managers.gpu.residents_store import Quarantined
from tests.unit.managers.keeping import NEED, SIZE, A, B, Rig, coming


async def test_a_service_stays_cached_and_is_not_restored_twice(rig: Rig) -> None:
    for holder in ("x", "y"):
        server = await rig.runner.hold(holder, A, NEED)
        assert server.alive
        rig.runner.release(holder, A)
    assert rig.servers[A].restores == 1


async def test_an_eviction_is_over_before_the_restore_begins(rig: Rig) -> None:
    await rig.runner.hold("x", A, NEED)
    rig.runner.release("x", A)
    await rig.runner.hold("y", B, NEED, [A])
    assert rig.states() == {"a": ServiceState.HOST_RESIDENT, "b": ServiceState.RESIDENT}


async def test_an_evicted_service_leaves_unless_it_works(rig: Rig) -> None:
    await rig.runner.hold("x", A, NEED)
    await rig.runner.evict(A)
    assert rig.states() == {"a": ServiceState.RESIDENT}
    rig.runner.release("x", A)
    for _ in range(2):
        await rig.runner.evict(A)
        assert rig.states() == {"a": ServiceState.HOST_RESIDENT}
    await rig.runner.evict(B)  # never heard of it
    await rig.runner.hold("y", A, NEED)
    assert rig.servers[A].restores == 2


async def test_a_service_in_use_is_not_taken_away(rig: Rig) -> None:
    await rig.runner.hold("x", A, NEED)
    with pytest.raises(Conflict, match="locked by x"):
        await rig.runner.hold("y", B, NEED, [A])
    assert rig.servers[A].alive


async def test_memory_that_is_freed_late_is_waited_for(rig: Rig) -> None:
    rig.troubles["a"] = "late"
    await rig.runner.hold("x", A, NEED)
    rig.runner.release("x", A)
    server = await rig.runner.hold("y", B, NEED, [A])
    assert server.alive


async def test_a_service_that_sleeps_and_frees_nothing_is_ended(rig: Rig) -> None:
    rig.troubles["a"] = "keeps"
    await rig.runner.hold("x", A, NEED)
    rig.runner.release("x", A)
    assert (await rig.runner.hold("y", B, NEED, [A])).alive
    assert rig.states() == {"a": ServiceState.COLD, "b": ServiceState.RESIDENT}
    assert rig.runner.store.take_lost() == (A,)


async def test_a_service_that_fails_while_it_drains_is_ended_and_its_memory_measured_free(
    rig: Rig,
) -> None:
    rig.troubles["a"] = "breaks"
    await rig.runner.hold("x", A, NEED)
    rig.runner.release("x", A)
    assert (await rig.runner.hold("y", B, NEED, [A])).alive
    assert rig.states()["a"] is ServiceState.COLD


async def test_a_service_that_answers_otherwise_after_a_restore_is_quarantined_until_it_is_forgotten(
    rig: Rig,
) -> None:
    """I12; the next call fails at once, and others have the memory."""
    rig.troubles["a"] = "changes"
    await rig.runner.hold("x", A, NEED)
    rig.runner.release("x", A)
    await rig.runner.hold("y", B, NEED, [A])
    rig.runner.release("y", B)
    with pytest.raises(AnswersChanged):
        await rig.runner.hold("z", A, NEED, [B])
    assert set(rig.memory.used.values()) == {0}
    assert (rig.states()["a"], rig.runner.store.take_lost()) == (ServiceState.COLD, (A,))
    with pytest.raises(Quarantined, match="answered otherwise"):
        await rig.runner.hold("z", A, NEED)
    assert (await rig.runner.hold("z", B, NEED)).alive
    rig.runner.release("z", B)

    rig.troubles["a"] = ""
    await rig.runner.forget(A)
    assert (await rig.runner.hold("z", A, NEED, [B])).alive


async def test_memory_that_is_never_freed_names_its_gpus_and_nothing_is_restored(rig: Rig) -> None:
    rig.troubles["a"] = "leaks"
    await rig.runner.hold("x", A, NEED)
    rig.runner.release("x", A)
    with pytest.raises(MemoryNotFreed) as failed:
        await rig.runner.hold("y", B, NEED, [A])
    assert failed.value.units == (0, 1)
    assert rig.servers[B].restores == 0
    rig.servers[A].trouble = ""  # so that nothing is left after this test


async def test_a_restore_that_fails_leaves_the_chunk_to_others(rig: Rig) -> None:
    rig.troubles["a"] = "dies"
    with pytest.raises(OutOfMemory, match="out of memory; declare memory_bytes of what it really"):
        await rig.runner.hold("x", A, NEED)
    assert rig.states() == {"a": ServiceState.COLD}
    assert (await rig.runner.hold("y", B, NEED)).alive


async def test_a_service_that_crashed_is_restored_when_it_is_wanted_next(rig: Rig) -> None:
    await rig.runner.hold("x", A, NEED)
    rig.servers[A].crash()
    rig.runner.release("x", A)
    assert (await rig.runner.hold("y", A, NEED)).alive
    assert rig.servers[A].restores == 2


async def test_two_that_race_for_one_service_restore_it_once(rig: Rig) -> None:
    held = await asyncio.gather(*(rig.runner.hold(f"x{n}", A, NEED) for n in range(4)))
    assert rig.servers[A].restores == 1
    assert all(server is held[0] for server in held)


async def test_a_race_for_gpus_of_other_services_waits_until_those_have_settled(rig: Rig) -> None:
    """1. `x` wants a on 0 and 1. 2. It gives up. 3. `y` and `z` want GPUs 1 and 0 for theirs.

    Both evict a, whose restore goes on; the first of them does it, the second finds it gone.
    """
    narrow: tuple[Home, Home] = (("b", (1,)), ("c", (0,)))
    holding = asyncio.ensure_future(rig.runner.hold("x", A, NEED))
    await asyncio.sleep(0)
    holding.cancel()
    both = await asyncio.gather(
        *(
            rig.runner.hold(holder, home, NEED, [A])
            for holder, home in zip("yz", narrow, strict=True)
        )
    )
    assert all(server.alive for server in both)
    assert rig.states()["a"] is ServiceState.HOST_RESIDENT


async def test_a_cancel_during_a_restore_leaves_it_cached_and_evictable(rig: Rig) -> None:
    holding = asyncio.ensure_future(rig.runner.hold("x", A, NEED))
    await asyncio.sleep(0)
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert (await rig.runner.hold("y", B, NEED, [A])).alive
    assert rig.servers[A].restores == 1


async def test_closing_ends_even_a_restore_that_hangs(rig: Rig) -> None:
    rig.troubles["a"] = "waits"
    holding = asyncio.ensure_future(rig.runner.hold("x", A, NEED))
    while not rig.memory.used.get(0):
        await asyncio.sleep(0)
    await rig.runner.close()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert rig.memory.used[0] == 0


async def test_a_preloaded_service_is_found(rig: Rig) -> None:
    for _ in range(2):
        await rig.runner.prefetch(A, NEED)
    assert rig.states() == {"a": ServiceState.RESIDENT}
    assert (await rig.runner.hold("x", A, NEED)).alive
    assert rig.servers[A].restores == 1


async def test_a_call_waits_for_its_service_when_a_restore_is_under_way(rig: Rig) -> None:
    work = await coming(rig, A)
    held, _ = await asyncio.gather(rig.runner.hold("x", A, NEED), work)
    assert (held.alive, rig.servers[A].restores) == (True, 1)


async def test_no_service_is_evicted_for_a_preload(rig: Rig) -> None:
    await rig.runner.hold("x", A, NEED)
    rig.runner.release("x", A)
    with pytest.raises(NoRoom):
        await rig.runner.prefetch(B, NEED)
    assert rig.states()["a"] is ServiceState.RESIDENT


async def test_a_preload_stops_for_a_call_on_its_gpus(rig: Rig) -> None:
    rig.troubles["a"] = "waits"
    work = await coming(rig, A)
    assert (await rig.runner.hold("y", B, NEED, [A])).alive
    with pytest.raises(NoRoom, match="took its GPUs"):
        await work
    assert rig.states() == {"a": ServiceState.COLD, "b": ServiceState.RESIDENT}
    assert rig.runner.store.take_lost() == (A,)


async def test_a_preload_stops_for_a_program_that_needs_its_gpus(rig: Rig) -> None:
    rig.troubles["a"] = "waits"
    work = await coming(rig, A)
    await rig.runner.clear(A[1], SIZE)
    with pytest.raises(NoRoom):
        await work


async def test_a_preload_that_wakes_a_service_keeps_its_copy_and_leaves_then(rig: Rig) -> None:
    await rig.runner.prefetch(A, NEED)
    await rig.runner.evict(A)
    work = await coming(rig, A)
    assert (await rig.runner.hold("y", B, NEED, [A])).alive
    await work
    assert rig.states() == {"a": ServiceState.HOST_RESIDENT, "b": ServiceState.RESIDENT}
    assert rig.servers[A].restores == 2


async def test_closing_ends_preloads(rig: Rig) -> None:
    rig.troubles["a"] = "waits"
    work = await coming(rig, A)
    await rig.runner.close()
    with pytest.raises(NoRoom):
        await work
    assert rig.memory.used[0] == 0


async def test_a_prepared_service_is_in_host_memory_and_wakes_for_a_call(rig: Rig) -> None:
    for _ in range(2):
        await rig.runner.prefetch(A, NEED, awake=False)
    assert (rig.states(), rig.memory.used) == ({"a": ServiceState.HOST_RESIDENT}, {0: 0, 1: 0})
    assert (await rig.runner.hold("x", A, NEED)).alive
    await rig.runner.prefetch(A, NEED, awake=False)
    assert rig.states() == {"a": ServiceState.RESIDENT}


async def test_a_preparation_stops_for_a_call_and_begins_again_later(rig: Rig) -> None:
    rig.troubles["a"] = "waits"
    work = asyncio.ensure_future(rig.runner.prefetch(A, NEED, awake=False))
    while not rig.memory.used.get(0):
        await asyncio.sleep(0)
    assert (await rig.runner.hold("y", B, NEED)).alive
    with pytest.raises(NoRoom):
        await work
    rig.runner.release("y", B)
    await rig.runner.evict(B)
    rig.servers[A].trouble = ""
    await rig.runner.prefetch(A, NEED, awake=False)
    assert rig.states() == {"a": ServiceState.HOST_RESIDENT, "b": ServiceState.HOST_RESIDENT}


async def test_nothing_is_sent_after_the_end(rig: Rig) -> None:
    await rig.runner.close()
    with pytest.raises(EngineFailed, match="the node worker is shutting down"):
        await rig.runner.prefetch(A, NEED)


async def test_a_service_discarded_in_use_is_ended_before_its_next_call(
    rig: Rig,
) -> None:
    for holder in ("x", "y"):
        await rig.runner.hold(holder, A, NEED)
    rig.runner.release("x", A)
    await rig.runner.discard(A, later=True)
    assert rig.states() == {"a": ServiceState.RESIDENT}
    await rig.runner.hold("z", A, NEED)
    assert rig.servers[A].restores == 1, "y is still with it"
    for holder in ("y", "z"):
        rig.runner.release(holder, A)
    for _ in range(2):
        assert (await rig.runner.hold("x", A, NEED)).alive
        rig.runner.release("x", A)
    assert rig.servers[A].restores == 2
