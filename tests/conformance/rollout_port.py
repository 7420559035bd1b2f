"""The rules of `rollout.ports` as tests: derive from `RolloutPortConformance` and give a fixture ``rig``.

class TestMyPort(RolloutPortConformance):
    @pytest.fixture
    async def rig(self): yield MyRig()
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import pytest

from domain.errors import Conflict
from domain.rollouts import Rollout, RolloutOutcome, RolloutProgress, RolloutResult, Stage
from rollout.ports import Assigned, Record, RolloutPort, Superseded, Withdrawn

RESULT = RolloutResult(RolloutOutcome.COMPLETED, 1.0)
TURN = Record("turn", {"n": 1, "message": {"content": "é"}}, {"ids": b"\x01\0\0\0", "p": b""})


class PortRig(Protocol):
    """A port under test, and the scheduler's side of it."""

    port: RolloutPort

    async def submit(self, request: Mapping[str, Any]) -> Assigned:
        """Submit a rollout with this request, and return what `assignments` yields."""

    async def assign_again(self, given: Assigned) -> Assigned:
        """Take the rollout off its worker, and assign it in its next attempt to the worker of `port`."""

    async def cancel(self, given: Assigned) -> Withdrawn:
        """Cancel a rollout, and return what `assignments` yields."""

    async def result(self, rollout: Rollout) -> RolloutResult:
        """Return the end of a rollout."""

    def action(self) -> dict[str, Any]:
        """Return the members of an action that completes at once."""

    def session(self) -> dict[str, Any]:
        """Return the members of a session of bash."""

    def session_action(self, session: str) -> dict[str, Any]:
        """Return the members of an action in a session, with exit status 0."""


class RolloutPortConformance:
    """What every port must do."""

    async def test_the_first_record_is_the_request(self, rig: PortRig) -> None:
        given = await rig.submit({"instance": {"id": "i", "problem": 1}})

        [request] = await rig.port.read(given.rollout)

        assert request.kind == "request"
        assert request.header["instance"] == {"id": "i", "problem": 1}

    async def test_records_are_read_in_order_with_their_arrays(self, rig: PortRig) -> None:
        given = await rig.submit({})
        artefact = Record("artefact", {"name": "patch"}, {"content": b"\xff" * 100_000})
        for number, record in enumerate((TURN, artefact), start=1):
            await rig.port.append(given.rollout, given.attempt, number, record)

        assert list(await rig.port.read(given.rollout))[1:] == [TURN, artefact]

    async def test_the_same_record_may_be_appended_again_and_another_may_not(
        self, rig: PortRig
    ) -> None:
        given = await rig.submit({})
        for _ in range(2):
            await rig.port.append(given.rollout, given.attempt, 1, TURN)

        with pytest.raises(Conflict):
            await rig.port.append(given.rollout, given.attempt, 1, Record("turn", {"n": 2}))
        with pytest.raises(Conflict):
            await rig.port.append(given.rollout, given.attempt, 3, TURN)
        assert len(await rig.port.read(given.rollout)) == 2

    async def test_a_successor_reads_what_its_predecessor_stored(self, rig: PortRig) -> None:
        given = await rig.submit({})
        await rig.port.append(given.rollout, given.attempt, 1, TURN)

        again = await rig.assign_again(given)

        assert again.attempt > given.attempt
        assert list(await rig.port.read(again.rollout))[1:] == [TURN]

    async def test_an_attempt_that_is_over_changes_nothing(self, rig: PortRig) -> None:
        given = await rig.submit({})
        again = await rig.assign_again(given)
        rollout, over = given.rollout, given.attempt

        with pytest.raises(Superseded):
            await rig.port.append(rollout, over, 1, TURN)
        with pytest.raises(Superseded):
            await rig.port.lease(rollout, over, Stage.INIT, 0)
        with pytest.raises(Superseded):
            await rig.port.submit(rollout, over, "a", {**rig.action(), "trajectory": rollout.id})
        with pytest.raises(Superseded):
            await rig.port.finished(rollout, over, RESULT)
        assert len(await rig.port.read(again.rollout)) == 1

    async def test_leases_are_granted_for_each_stage_and_released_more_than_once(
        self, rig: PortRig
    ) -> None:
        given = await rig.submit({})
        for stage in Stage:
            lease = await rig.port.lease(given.rollout, given.attempt, stage, 0)
            assert lease.stage is stage
            assert lease.queued_seconds >= 0.0
            for _ in range(2):
                await rig.port.release(lease)

    async def test_a_key_is_one_action_however_often_it_is_submitted(self, rig: PortRig) -> None:
        given = await rig.submit({})
        members = {**rig.action(), "trajectory": given.rollout.id}
        first = await rig.port.submit(given.rollout, given.attempt, "a", members)

        again = await rig.assign_again(given)

        assert await rig.port.submit(again.rollout, again.attempt, "a", members) == first
        other = await rig.port.submit(again.rollout, again.attempt, "b", members)
        assert other != first
        ends = [await rig.port.wait(given.rollout, other) for _ in range(2)]
        assert [(end.id, end.outcome) for end in ends] == [(other, "completed")] * 2

    async def test_an_action_that_has_ended_is_not_changed_by_a_cancel(self, rig: PortRig) -> None:
        given = await rig.submit({})
        members = {**rig.action(), "trajectory": given.rollout.id}
        action = await rig.port.submit(given.rollout, given.attempt, "a", members)
        await rig.port.wait(given.rollout, action)

        await rig.port.cancel(given.rollout, action, "late")

        assert (await rig.port.wait(given.rollout, action)).outcome == "completed"

    async def test_a_trajectory_may_be_opened_and_finished_again(self, rig: PortRig) -> None:
        given = await rig.submit({})
        for _ in range(2):
            await rig.port.open(given.rollout, given.rollout.id, None)
        for _ in range(2):
            await rig.port.finish(given.rollout, given.rollout.id)

    async def test_a_session_is_opened_once_and_takes_actions(self, rig: PortRig) -> None:
        given = await rig.submit({})
        rollout, name = given.rollout, given.rollout.id
        await rig.port.open(rollout, name, None)
        for _ in range(2):  # a successor opens what its predecessor opened
            await rig.port.open_session(rollout, name, "s-1", rig.session())

        members = {**rig.session_action("s-1"), "trajectory": name}
        action = await rig.port.submit(rollout, given.attempt, "a", members)
        end = await rig.port.wait(rollout, action)

        assert end.outcome == "completed"
        assert end.result is not None
        assert (end.result["exit_code"], end.result["session"]) == (0, "idle")

    async def test_an_action_whose_session_is_not_open_runs_nothing_and_says_so(
        self, rig: PortRig
    ) -> None:
        """Tools open another session then: `rollout.agent.tool_session`."""
        given = await rig.submit({})
        rollout, name = given.rollout, given.rollout.id
        await rig.port.open(rollout, name, None)
        await rig.port.open_session(rollout, name, "s-1", rig.session())

        members = {**rig.session_action("s-2"), "trajectory": name}
        action = await rig.port.submit(rollout, given.attempt, "a", members)
        end = await rig.port.wait(rollout, action)

        assert end.outcome == "completed"
        assert end.result is not None
        assert end.result["exit_code"] == 127
        assert "session" not in end.result
        assert "there is no session 's-2'" in end.result["stderr"]

    async def test_the_end_is_accepted_once(self, rig: PortRig) -> None:
        given = await rig.submit({})
        await rig.port.finished(given.rollout, given.attempt, RESULT)

        found = await rig.result(given.rollout)

        assert (found.outcome, found.reward) == ("completed", 1.0)
        with pytest.raises(Superseded):
            await rig.port.finished(given.rollout, given.attempt, RESULT)
        with pytest.raises(Superseded):
            await rig.port.append(given.rollout, given.attempt, 1, TURN)
        with pytest.raises(Superseded):
            await rig.port.lease(given.rollout, given.attempt, Stage.RUN, 0)

    async def test_a_cancelled_rollout_is_withdrawn(self, rig: PortRig) -> None:
        given = await rig.submit({})

        withdrawn = await rig.cancel(given)

        assert (withdrawn.rollout_id, withdrawn.attempt) == (given.rollout.id, given.attempt)
        assert not withdrawn.parked
        assert (await rig.result(given.rollout)).outcome is RolloutOutcome.CANCELLED
        with pytest.raises(Superseded):
            await rig.port.append(given.rollout, given.attempt, 1, TURN)

    async def test_a_cancel_ends_the_wait_for_a_lease(self, rig: PortRig) -> None:
        held = [await rig.submit({}) for _ in range(2)]
        for each in held:
            await rig.port.lease(each.rollout, each.attempt, Stage.RUN, 0)
        waiting = await rig.submit({})
        lease = asyncio.ensure_future(
            rig.port.lease(waiting.rollout, waiting.attempt, Stage.RUN, 0)
        )
        await asyncio.sleep(0)

        await rig.cancel(waiting)

        with pytest.raises(Superseded):
            await asyncio.wait_for(lease, 60)

    async def test_progress_is_reported_without_any_guarantee(self, rig: PortRig) -> None:
        given = await rig.submit({})

        await rig.port.report(given.rollout, given.attempt, RolloutProgress(Stage.RUN, turns=3))

    async def test_a_pool_that_nothing_named_has_no_backends(self, rig: PortRig) -> None:
        assert list(await rig.port.backends("unknown")) == []
