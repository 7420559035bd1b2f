"""Audit of rollouts after a round: in the journal, in their results, and in what their environments say of their tools."""

from __future__ import annotations

from collections import Counter, defaultdict

from domain.action import Kind
from domain.decisions import Decision, FinishRollout
from domain.events import ActionSubmitted, Event
from scheduler.runtime.rollouts.log_store import RolloutLogs
from tests.faults.audit import Audit
from tests.faults.rollout_load import RolloutLoad
from tests.faults.system import System

#: Actions of an agent beside its steps: the one of INIT, and the one that reads which steps ran.
_BESIDE = 2


class RolloutAudit(Audit):
    """Follows the journal over all rounds, and what belongs to rollouts in it."""

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self.rollout_ends: Counter[str] = Counter()
        #: Rollout → the commands that were submitted for it.
        self._commands: dict[str, set[str]] = defaultdict(set)
        self._again: set[str] = set()
        #: Rollouts whose environment was prepared again, looks at sessions, and commands that a shell never got.
        self.repairs: Counter[str] = Counter()

    def check_rollouts(self, load: RolloutLoad) -> None:
        """Raise AssertionError unless each accepted rollout ended once, completed, and each of its tools ran once."""
        self.replay()
        lost = [rollout for rollout in load.accepted if not self.rollout_ends[rollout]]
        assert not lost, f"lost {len(lost)}: {lost[:5]}"
        twice = [rollout for rollout, count in self.rollout_ends.items() if count != 1]
        assert not twice, f"ended more than once: {twice[:5]}"
        for rollout, plan in load.accepted.items():
            found = load.ended[rollout]
            assert found.outcome == "completed", (
                f"{rollout} is {found.outcome}: {found.reason}\n{self._last_records(rollout)}"
            )
            assert found.reward == plan.reward, f"{rollout} has {found.reward}, not {plan.reward}"
            ran = found.body["detail"]["ran"]
            wanted = [str(step) for step in range(len(plan.steps))]
            assert ran == wanted, f"{rollout} ran {ran} of {len(wanted)} steps"
            assert found.turns == len(plan.steps) + 1, f"{rollout} has {found.turns} turns"
            self._check_actions(rollout, len(plan.steps) + _BESIDE)
        self.checked["rollouts"] += len(load.accepted)

    def _last_records(self, rollout: str) -> str:
        """Return the end of a rollout's log, for the report of a failure."""
        records = RolloutLogs(self._system.home.path / "bodies" / "rollouts").read(rollout)
        return "\n".join(f"{each.kind} {each.header}" for each in records[-4:])

    def _check_actions(self, rollout: str, wanted: int) -> None:
        """Each tool is one action, which ended once; an environment that was prepared again has its own."""
        commands = self._commands.pop(rollout, set())
        assert len(commands) >= wanted, f"{rollout}: {len(commands)} of {wanted} actions"
        if rollout in self._again:
            self.repairs["environments_prepared_again"] += 1
        else:
            self.repairs["commands_submitted_again"] += len(commands) - wanted
        several = [each for each in commands if self.finishes[each] != 1]
        assert not several, f"{rollout}: {several} ended more than once"

    def _take_event(self, event: Event) -> None:
        super()._take_event(event)
        if isinstance(event, ActionSubmitted) and event.action.kind is Kind.EXEC:
            action = event.action
            rollout = action.metadata.get("rollout")
            if rollout is None or action.exec is None:
                return
            if "-again" in str(action.trajectory):
                self._again.add(rollout)
            if action.exec.command:
                self._commands[rollout].add(action.id)
            else:
                self.repairs["looks_at_sessions"] += 1

    def _take_decision(self, decision: Decision) -> None:
        super()._take_decision(decision)
        if isinstance(decision, FinishRollout):
            self.rollout_ends[decision.rollout_id] += 1
