"""The rules of `managers.llm.cache_moves.CacheMover` as tests: derive, and give a fixture ``rig``."""

from __future__ import annotations

from typing import Protocol

import pytest
from msgspec.structs import replace

from domain.fleets import FleetWorker
from managers.llm.cache_moves import CacheMove, CacheMoveFailed, CacheMover

TRAJECTORY = "project/t1"


class MoverRig(Protocol):
    """An adapter under test, between two workers."""

    mover: CacheMover
    source: FleetWorker
    target: FleetWorker
    #: Whether a move without a cache is noticed, and not only by the next request.
    notices: bool

    async def fill(self) -> CacheMove:
        """Give the source a cache of `TRAJECTORY`; return its move to the target."""

    async def reusable(self, move: CacheMove) -> int:
        """Return how many tokens of the cache the target need not compute."""

    async def break_target(self) -> None:
        """End the target."""


class MoverConformance:
    """What every adapter that moves caches does."""

    async def test_a_probe_finds_the_workers_usable_and_says_how(self, rig: MoverRig) -> None:
        state = await rig.mover.probe([rig.source, rig.target])
        assert (state.usable, state.adapter) == (True, rig.mover.adapter), state.detail
        assert state.detail

    async def test_what_was_moved_is_not_computed_again(self, rig: MoverRig) -> None:
        move = await rig.fill()
        moved = await rig.mover.move(move)
        assert moved == move.context_tokens
        assert await rig.reusable(move) == moved

    async def test_a_move_never_crosses_versions_of_the_weights(self, rig: MoverRig) -> None:
        move = await rig.fill()
        later = replace(move, target=replace(move.target, weights_version=9))
        with pytest.raises(CacheMoveFailed, match="version"):
            await rig.mover.move(later)

    async def test_a_move_of_nothing_fails_unless_it_is_the_next_request_that_shows_it(
        self, rig: MoverRig
    ) -> None:
        move = await rig.fill()
        await rig.mover.move(move)
        if rig.notices:
            with pytest.raises(CacheMoveFailed):
                await rig.mover.move(move)
        else:
            assert await rig.mover.move(move) == move.context_tokens

    async def test_a_worker_that_is_gone_makes_it_unusable_and_a_move_fails(
        self, rig: MoverRig
    ) -> None:
        move = await rig.fill()
        await rig.break_target()
        state = await rig.mover.probe([rig.source, rig.target])
        assert not state.usable
        assert rig.target.name in state.detail
        if rig.notices:
            with pytest.raises(CacheMoveFailed):
                await rig.mover.move(move)
