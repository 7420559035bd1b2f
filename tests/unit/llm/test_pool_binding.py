"""A rollout stays with its backend, and those that lose one are spread over the others."""

from __future__ import annotations

from collections import Counter

from rollout.llm.pool_binding import BackendHealth, PoolBinding, choose
from tests.scripted_backends import seat_of

SEATS = [seat_of(f"b{number}") for number in range(4)]


def test_rollouts_that_lose_a_backend_are_spread_over_the_others():
    before = {f"rol_{number}": choose(f"rol_{number}", SEATS, ()) for number in range(400)}
    lost = SEATS[2].backend
    after = {name: choose(name, SEATS, {lost}) for name in before}

    moved = [name for name, seat in before.items() if seat.backend == lost]
    assert all(after[name] == seat for name, seat in before.items() if seat.backend != lost)
    counts = Counter(after[name].backend for name in moved)
    assert set(counts) == {"b0", "b1", "b3"}
    assert max(counts.values()) < len(moved) / 2


def test_an_avoided_backend_is_used_where_there_is_no_other():
    assert choose("rol_1", SEATS[:1], {"b0"}) == SEATS[0]


async def test_without_backends_the_rollout_waits():
    asked: list[bool] = []
    answers = [[], [], SEATS[1:]]

    async def backends(wait: bool):
        asked.append(wait)
        return answers.pop(0)

    health = BackendHealth()
    health.failed("b1", "refused", 0.0)
    binding = PoolBinding("rol_1", SEATS[0], backends, health, lambda: 0.5)

    assert binding.seat == SEATS[0]
    assert list(await binding.registered()) == []
    assert (await binding.rebind("gone")).backend in {"b2", "b3"}
    assert binding.seat.backend in {"b2", "b3"}
    assert asked == [False, True, True]


async def test_a_rollout_stays_with_a_backend_that_has_new_weights():
    async def backends(wait: bool):
        return [*SEATS[:3], seat_of("b3", 2)]

    health = BackendHealth()
    binding = PoolBinding("rol_1", SEATS[3], backends, health, lambda: 0.5)

    assert await binding.rebind("new weights") == seat_of("b3", 2)
    health.failed("b3", "refused", 0.0)
    assert (await binding.rebind("a call failed")).backend != "b3"


async def test_a_rollout_follows_the_seat_of_its_lease():
    async def backends(wait: bool):
        return SEATS

    leased = SEATS[0]
    binding = PoolBinding("rol_1", SEATS[0], backends, BackendHealth(), lambda: 0.5, lambda: leased)
    binding._health.failed("b0", "refused", 0.0)
    chosen = await binding.rebind("a call failed")
    assert binding.seat == chosen != SEATS[0]  # the lease has not moved

    leased = SEATS[3]

    assert binding.seat == SEATS[3]
