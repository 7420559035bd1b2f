"""Trainers, modelled: they play the programs of one workload, as closely as the answers come.

A trajectory submits its next action only after it has the answer to the one before and has thought,
so arrivals follow the service: a slow policy is also asked more slowly, as in reality.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from domain.decisions import Finish, Grant, Renew
from domain.events import ActionSubmitted, Event, LeaseReleased, LeaseRenewed, TrajectoryFinished
from domain.ids import ActionId
from simulator.agenda import Agenda
from simulator.machine import SharedMachine
from simulator.overheads import Overheads
from simulator.workloads.program import Act, Program, SimulatedTrajectory, Think, Workload

Tell = Callable[[Event], None]

#: A holder renews when this share of its lease has passed.
RENEW_AFTER = 0.5


class TrajectoryPlayer:
    """One trajectory being played."""

    __slots__ = ("program", "project", "trajectory")

    def __init__(self, rollout: SimulatedTrajectory, project: str) -> None:
        self.project = rollout.project or project
        self.trajectory = rollout.trajectory
        self.program: Program = rollout.program()


class Trainers:
    """Plays a workload step by step. `over` turns true after the last one."""

    def __init__(
        self,
        workload: Workload,
        agenda: Agenda,
        overheads: Overheads,
        tell: Tell,
        *,
        concurrency: int | None = None,
        machine: SharedMachine | None = None,
    ) -> None:
        """``concurrency``: trajectories of a step that are played at once; None: all of them.

        ``machine``: the hops to and from trainers take its costs instead of ``overheads``.
        """
        self._workload = workload
        self._agenda = agenda
        self._overheads = overheads
        self._tell = tell
        self._steps: Iterator[Sequence[SimulatedTrajectory]] = workload.steps()
        self._waiting: dict[ActionId, tuple[TrajectoryPlayer, Act]] = {}
        self._leases_end: dict[ActionId, float] = {}
        self._concurrency = concurrency
        self._machine = machine
        #: Trajectories of the step that have not begun.
        self._later: Iterator[SimulatedTrajectory] = iter(())
        self._playing = 0
        self._step_began = 0.0
        self.over = False
        #: When the last answer of the last step came.
        self.ended_at = 0.0
        #: How long each step took, from its first action to its last answer.
        self.step_seconds: list[float] = []
        #: Of each step, how long its trajectories took from the step's beginning.
        self.trajectory_seconds: list[array[float]] = []

    def begin(self, _: object = None) -> None:
        """Begin the first step."""
        self._follow(0.0)

    def _follow(self, after_seconds: float) -> None:
        """Begin the next step after a while, or end when there is none."""
        rollouts = next(self._steps, None)
        if rollouts is None:
            self.over, self.ended_at = True, self._agenda.now
        else:
            self._agenda.at(self._agenda.now + after_seconds, self._begin_step, rollouts)

    def _begin_step(self, rollouts: Sequence[SimulatedTrajectory]) -> None:
        self._step_began = self._agenda.now
        self._playing = min(len(rollouts), self._concurrency or len(rollouts))
        self.trajectory_seconds.append(array("d"))
        self._later = iter(rollouts)
        for rollout in islice(self._later, self._concurrency):
            self._begin_trajectory(rollout)
        if not rollouts:
            self._end_step()

    def _begin_trajectory(self, rollout: SimulatedTrajectory) -> None:
        player = TrajectoryPlayer(rollout, self._workload.project)
        self._agenda.at(self._agenda.now, self._start, player)

    def act_of(self, action_id: ActionId) -> Act:
        """Return the submission of a live action."""
        return self._waiting[action_id][1]

    def granted(self, grant: Grant) -> None:
        """Keep a granted lease for as long as its work takes, renewing it."""
        act, now = self.act_of(grant.action_id), self._agenda.now
        ends_at = now + act.work.base_seconds
        self._leases_end[grant.action_id] = ends_at
        self._plan_lease(act, ends_at, grant.expires_at or now)

    def renewed(self, decision: Renew) -> None:
        """Plan the next renewal of a lease."""
        ends_at = self._leases_end.get(decision.action_id)
        if ends_at is not None:
            self._plan_lease(self.act_of(decision.action_id), ends_at, decision.expires_at)

    def finished(self, finish: Finish) -> None:
        """Take an answer; its trajectory goes on."""
        player, _ = self._waiting.pop(finish.action_id)
        self._leases_end.pop(finish.action_id, None)
        if self._machine is None:
            overheads = self._overheads
            self._play(player, finish, overheads.pass_seconds + overheads.answer_seconds)
        else:
            # The answer is on its way as soon as the pass is committed.
            self._agenda.at(
                self._agenda.now + self._overheads.pass_seconds, self._answer, (player, finish)
            )

    def _answer(self, entry: tuple[TrajectoryPlayer, Finish]) -> None:
        assert self._machine is not None  # `finished` asked
        self._machine.hop(self._machine.costs.answer, self._answered, entry)

    def _answered(self, entry: tuple[TrajectoryPlayer, Finish]) -> None:
        player, finish = entry
        self._play(player, finish, 0.0)

    def _start(self, player: TrajectoryPlayer) -> None:
        self._play(player, None, 0.0)

    def _play(self, player: TrajectoryPlayer, answer: Finish | None, after_seconds: float) -> None:
        """Let ``player`` see ``answer`` after a while, think, and act.

        A program sees no clock, so it is asked at once for what it will do later.
        """
        try:
            send = player.program.send
            said = send(answer)
            while isinstance(said, Think):
                after_seconds += said.seconds
                said = send(None)
        except StopIteration:
            self._agenda.at(self._agenda.now + after_seconds, self._end_rollout, player)
        else:
            self._submit(player, said, self._agenda.now + after_seconds)

    def _submit(self, player: TrajectoryPlayer, act: Act, sent_at: float) -> None:
        self._waiting[act.action.id] = (player, act)
        event = ActionSubmitted(action=act.action, accepted_at=sent_at)
        if self._machine is None:
            self._agenda.at(sent_at + self._overheads.submit_seconds, self._tell, event)
        else:
            self._agenda.at(sent_at, self._send, event)

    def _send(self, event: Event) -> None:
        assert self._machine is not None  # `_submit` asked
        self._machine.hop(self._machine.costs.submit, self._tell, event)

    def _plan_lease(self, act: Act, ends_at: float, expires_at: float) -> None:
        now, action = self._agenda.now, act.action
        renew_at = now + RENEW_AFTER * (expires_at - now)
        if act.renews and renew_at < ends_at:
            renewal = LeaseRenewed(action_id=action.id, project=action.project)
            self._agenda.at(renew_at, self._lease_says, renewal)
        else:
            release = LeaseReleased(action_id=action.id, project=action.project)
            self._agenda.at(ends_at, self._lease_says, release)

    def _lease_says(self, event: LeaseRenewed | LeaseReleased) -> None:
        if event.action_id in self._leases_end:
            self._tell(event)

    def _end_rollout(self, player: TrajectoryPlayer) -> None:
        self._tell(TrajectoryFinished(project=player.project, trajectory=player.trajectory))
        self.trajectory_seconds[-1].append(self._agenda.now - self._step_began)
        self._playing -= 1
        for rollout in islice(self._later, 1):
            self._begin_trajectory(rollout)
            self._playing += 1
        if self._playing == 0:
            self._end_step()

    def _end_step(self) -> None:
        self.step_seconds.append(self._agenda.now - self._step_began)
        self._follow(self._workload.train_seconds)
