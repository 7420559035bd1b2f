"""FleetRollout: one batch of trajectories on one fleet, until the last of them ends.

The agenda moves trajectories between engines and tools. The `LlmFleet` decides as in production: it hears of requests, begins, ends,
predictions and transfers, and answers with routes and moves. Predictions are there as soon as a turn has ended, and a request
reaches its worker without delay; both are far shorter than a tool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from managers.llm.fake.generations import (
    EngineEvent,
    GenerationBegan,
    GenerationEnded,
    ModelledGeneration,
)
from placement.facts import GenerationRoute, Move, WorkerFacts
from placement.fleet import LlmFleet
from placement.priorities import VLLM
from simulator.agenda import Agenda
from simulator.fleets.modelled_predictors import ModelledPredictor
from simulator.fleets.policies import policy_of
from simulator.fleets.setting import FleetResult, FleetSetting
from simulator.fleets.workers import ModelledWorkers
from simulator.workloads.trajectories import AgentTrajectory

#: Between the batches of one fleet: training.
PAUSE_SECONDS = 60.0


class RolloutStalled(RuntimeError):
    """Trajectories are left, and nothing is to come."""


@dataclass(slots=True)
class _Live:
    """One trajectory now."""

    trajectory: AgentTrajectory
    turn: int = 0
    #: Tokens of its next prompt.
    context: int = 0
    #: Of the present turn, before it was cut.
    sampled: int = 0
    asked_at: float = 0.0
    queue: float = 0.0
    cached: int = 0
    #: It runs or waits on this worker.
    on: int | None = None
    began: bool = False

    @property
    def key(self) -> str:
        return self.trajectory.key


class FleetRollout:
    """A rollout that has not begun; `run` it once."""

    def __init__(
        self, setting: FleetSetting, batch: Sequence[AgentTrajectory], fleet: LlmFleet | None = None
    ) -> None:
        """Prepare a batch; ``fleet``: one that had batches before, whose measurements count."""
        self._setting = setting
        self._agenda = Agenda()
        self._live = {each.key: _Live(each, context=each.prompt_tokens) for each in batch}
        self._size = len(self._live)
        self._predictor = (
            ModelledPredictor(setting.predictor, batch, setting.seed) if setting.predictor else None
        )
        self._workers = ModelledWorkers(
            self._agenda, setting.spec, self._happened, preempts=setting.preempts
        )
        self._facts = {
            number: WorkerFacts(number, setting.slots, degree)
            for number, degree in enumerate(setting.degrees)
        }
        self.fleet = fleet or LlmFleet(policy_of(setting.policy), setting.spec)
        former = self.fleet.facts.now
        self._began = self._agenda.now = former + PAUSE_SECONDS if former else 0.0
        self._batch = f"batch-{former:.0f}"
        self._due: float | None = None
        self._ends: list[tuple[float, str]] = []
        self._queues: dict[str, float] = {}
        self._tokens = self._preempted = self._moved = self._moved_tokens = 0
        self._folded_at: float | None = None
        self._woken = False

    def run(self) -> FleetResult:
        """Let the batch end. Raises RolloutStalled."""
        batch = [live.trajectory for live in self._live.values()]
        for number, facts in self._facts.items():
            self._workers.start(number, facts.degree, facts.slots)
        self.fleet.set_workers(self._facts.values(), self._began)
        self.fleet.expect(self._batch, self._size, self._began)
        for live in self._live.values():
            self._agenda.at(self._began, self._ask, live)
        while self._live and self._agenda.advance():
            pass
        if self._live:
            raise RolloutStalled(f"{len(self._live)} trajectories never end, as {min(self._live)}")
        return self._result(batch)

    def _ask(self, live: _Live) -> None:
        """Ask for the next generation of a trajectory."""
        now = self._agenda.now
        live.asked_at, live.began = now, False
        self._predict(live)
        route = self.fleet.request(
            live.key, now, group=live.trajectory.group, batch=self._batch, batch_size=self._size,
            priority=0, prompt_tokens=live.context,
        )  # fmt: skip
        if route is not None:
            self._submit(live, route)
        self._collect()

    def _predict(self, live: _Live) -> None:
        if self._predictor is not None:
            said = self._predictor.prediction(live.key, live.turn)
            self.fleet.predict(live.key, said, self._agenda.now)

    def _collect(self) -> None:
        """Submit what the fleet has routed meanwhile, and look again when it is due."""
        for key, route in self.fleet.routed(self._agenda.now):
            self._submit(self._live[key], route)
        due = self.fleet.due()
        if due is not None and due != self._due:
            self._due = due
            self._agenda.at(due, self._is_due)

    def _is_due(self, _: None) -> None:
        self._due = None
        self._collect()

    def _submit(self, live: _Live, route: GenerationRoute) -> None:
        live.on = route.worker
        turn = live.trajectory.turns[live.turn]
        rank = float(VLLM.integer(route.rank)) if self._setting.buckets else -route.rank
        self._workers.submit(
            route.worker,
            ModelledGeneration(live.key, live.context, turn.tokens - live.sampled, live.key, rank),
        )

    def _happened(self, worker: int, event: EngineEvent) -> None:
        live = self._live[event.key]
        if isinstance(event, GenerationBegan):
            live.queue += event.at - live.asked_at
            live.cached = event.cached_tokens
            if not live.began:
                live.began = True
                self.fleet.begin(live.key, event.at)
        elif isinstance(event, GenerationEnded):
            self._ended(live, event.sampled_tokens)
        else:
            live.asked_at = event.at
            self._preempted += 1

    def _ended(self, live: _Live, sampled: int) -> None:
        now = self._agenda.now
        turn = live.trajectory.turns[live.turn]
        self._tokens += sampled
        self.fleet.end(live.key, now, live.context, sampled, live.cached)
        live.on = None
        live.context += sampled + turn.output_tokens
        live.sampled = 0
        live.turn += 1
        if live.turn == len(live.trajectory.turns):
            self._finish(live)
            return
        self._predict(live)
        self._agenda.at(now + turn.tool_seconds, self._ask, live)
        self._start_moves()
        self._sleep_when_drained()

    def _finish(self, live: _Live) -> None:
        now = self._agenda.now
        self.fleet.finish(live.key, now)
        self._ends.append((now, live.key))
        self._queues[live.key] = live.queue
        del self._live[live.key]
        self._fold()
        self._start_moves()
        self._sleep_when_drained()

    def _start_moves(self) -> None:
        now = self._agenda.now
        for move in self.fleet.moves(now):
            self.fleet.move_began(move.trajectory, now)
            seconds = self._setting.spec.transfer_seconds(move.context_tokens)
            self._agenda.at(now + seconds, self._arrived, move)

    def _arrived(self, move: Move) -> None:
        """End a transfer, late or not: the fleet knows whether it still counts."""
        tokens = 0
        live = self._live.get(move.trajectory)
        if live is not None and live.on is None:
            tokens = self._workers.move(move.trajectory, move.source, move.target)
        self._moved += 1
        self._moved_tokens += tokens
        if live is not None:
            self.fleet.move_ended(move.trajectory, self._agenda.now, tokens)
        self._collect()
        self._start_moves()

    def _fold(self) -> None:
        """Begin to fold once so few are left: narrow workers take nothing more, and end or cut what they run."""
        rule = self._setting.fold
        if rule is None or self._folded_at is not None or not self._live:
            return
        if len(self._live) > rule.left * self._size:
            return
        self._folded_at = self._agenda.now
        asked = [live for live in self._live.values() if live.on is not None]
        leaving = asked if rule.cuts else [live for live in asked if not live.began]
        began = [live for live in leaving if live.began]
        for live in leaving:
            self._leave(live)
        wide = WorkerFacts(len(self._facts), self._setting.slots, rule.degree, usable=False)
        self._facts = {n: replace(each, usable=False) for n, each in self._facts.items()}
        self._facts[wide.number] = wide
        self.fleet.set_workers(self._facts.values(), self._agenda.now)
        for live in began:
            self._ask(live)
        self._sleep_when_drained()

    def _leave(self, live: _Live) -> None:
        """Take a generation from its worker; the tokens that it has stay with the trajectory."""
        assert live.on is not None
        sampled = self._workers.withdraw(live.on, live.key)
        live.on = None
        if live.began:
            self.fleet.end(live.key, self._agenda.now, live.context, sampled, live.cached)
            self._tokens += sampled
            live.sampled += sampled
            live.context += sampled

    def _sleep_when_drained(self) -> None:
        rule = self._setting.fold
        if rule is None or self._folded_at is None or self._woken:
            return
        if all(live.on is None for live in self._live.values()):
            self._woken = True
            for number in [*self._facts][:-1]:
                self._workers.stop(number)
            self._agenda.at(self._agenda.now + rule.wake_seconds, self._wake, None)

    def _wake(self, _: None) -> None:
        number = max(self._facts)
        wide = self._facts[number] = replace(self._facts[number], usable=True)
        self._workers.start(number, wide.degree, wide.slots)
        self.fleet.set_workers(self._facts.values(), self._agenda.now)
        self._collect()

    def _result(self, batch: Sequence[AgentTrajectory]) -> FleetResult:
        longest = max(batch, key=lambda each: (each.tokens, each.key)).key
        ends = {key: at - self._began for at, key in self._ends}
        return FleetResult(
            makespan=self._ends[-1][0] - self._began,
            tokens=self._tokens,
            ends=tuple(ends.values()),
            longest_end=ends[longest],
            longest_queue=self._queues[longest],
            queue=sum(self._queues.values()) / len(self._queues),
            computed_tokens=self._workers.computed_tokens,
            cached_tokens=self._workers.cached_tokens,
            preempted=self._preempted,
            moves=self._moved,
            moved_tokens=self._moved_tokens,
            folded_at=None if self._folded_at is None else self._folded_at - self._began,
        )


def roll_out(setting: FleetSetting, *batches: Sequence[AgentTrajectory]) -> FleetResult:
    """Return the result of the last of several batches that one fleet has in turn.

    What the fleet measured of its predictor in the former ones counts in the last one, as from RL step to RL step.
    """
    fleet: LlmFleet | None = None
    for batch in batches[:-1]:
        former = FleetRollout(setting, batch, fleet)
        former.run()
        fleet = former.fleet
    return FleetRollout(setting, batches[-1], fleet).run()
