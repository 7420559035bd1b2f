"""A rollout of another project is as one that does not exist, also while it is live."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contract.rollout_status import RolloutsStatus
from contract.rollout_views import RolloutView
from domain.errors import NotFound
from domain.principals import Principal, Scope
from domain.rollouts import RolloutState
from scheduler.runtime.gateway import rollout_lookup
from scheduler.runtime.gateway.context import ROW_POLL_SECONDS
from scheduler.runtime.gateway.rollout_lookup import RolloutLookup


async def test_a_live_rollout_of_another_project_is_not_found_at_once(monkeypatch):
    row = RolloutView(id="r1", state=RolloutState.ASSIGNED, project="default", task="t")
    ends = SimpleNamespace(
        recent=lambda _: None, of=lambda _: asyncio.Future(), discard=lambda *_: None
    )

    async def answer(found: Any) -> Any:
        return found

    context = SimpleNamespace(
        rollout_ends=ends,
        queries=SimpleNamespace(rollouts=lambda **_: answer(RolloutsStatus())),
        backend=SimpleNamespace(rollout_view=lambda _: answer(row)),
    )
    monkeypatch.setattr(rollout_lookup, "ROW_SECONDS", ROW_POLL_SECONDS)
    stranger = Principal("stranger", "other", frozenset({Scope.READ}))

    with pytest.raises(NotFound):
        await RolloutLookup(cast("Any", context)).find(cast("Any", None), stranger, "r1")
