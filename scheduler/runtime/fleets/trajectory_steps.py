"""Steps of trajectories, as the journal tells them: what predictors are asked about, and learn from. A pure reducer.

A generation and the tools after it are a step (`placement.features`). Tokens are those that its worker counted; tool seconds last from the end of a
trajectory's generations until its next one is submitted, as placement measures them. Prompts and tokens are not in the journal, and so not here.

Rules
1. Trajectories with a generation of a fleet are known, and no others. One that has been silent for as long as placement remembers it is forgotten.
2. A generation that failed is no step; the seconds before and after it count as tools of the step before.
3. Finished is a trajectory that its trainer finished, or whose rollout completed. One that ended otherwise (a lost environment, its time to live)
   is forgotten: it did not reach its length.
4. A trajectory whose beginning the reducer may have missed is *partial*: no question is asked about it, and nothing is learnt from it.
5. After step k there is a question as soon as its generation has ended, and another one when all tools after it have.
6. Memory is bounded: trajectories by `MOST_TRAJECTORIES`, the steps of one by `MOST_STEPS`; later steps count into its last one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from domain.action import Action
from domain.codec import JournalEntry
from domain.decisions import Finish, FinishRollout, RemoveEnvironment
from domain.events import (
    FINISHED_BY_REQUEST,
    ActionFinished,
    ActionSubmitted,
    TrajectoryFinished,
)
from domain.fleets import TokenUsage, fleet_name
from domain.ids import trajectory_key
from domain.journal_reducer import JournalReducer, on
from domain.rollouts import RolloutOutcome
from placement.features import Features, FinishedTrajectory, Progress, TrajectoryStep
from placement.fleet import SILENT_SECONDS
from scheduler.core.state.rollouts import owner_of

MOST_TRAJECTORIES: Final = 50_000
MOST_STEPS: Final = 2048
_MOST_KIND_CHARACTERS: Final = 64


class StepEnded(msgspec.Struct, frozen=True, gc=False):
    """A trajectory is in its tools after a step, or begins a batch: a prediction is of use."""

    fleet: str
    trajectory: str
    features: Features


class WentOn(msgspec.Struct, frozen=True, gc=False):
    """The next generation of a trajectory was submitted: predictions for the step before are late."""

    fleet: str
    trajectory: str


class TrajectoryOver(msgspec.Struct, frozen=True, gc=False):
    """A trajectory is known no more."""

    fleet: str
    trajectory: str
    #: What is learnt of it; None: nothing.
    finished: FinishedTrajectory | None


StepFact = StepEnded | WentOn | TrajectoryOver


class StoredSteps(msgspec.Struct, frozen=True, omit_defaults=True):
    """A trajectory in memory."""

    fleet: str
    trajectory: str
    task: str
    group: str
    prompt_tokens: float
    #: Of the last event.
    at: float
    steps: list[TrajectoryStep]
    #: Step whose tools run, and since when; None: a generation runs.
    latest: TrajectoryStep | None = None
    gap_since: float | None = None
    #: Generations and tools that run: action, kind (empty: a generation).
    running: list[tuple[str, str]] = []
    partial: bool = False


class _Course:
    """One trajectory."""

    __slots__ = ("at", "finished_tools", "gap_since", "group", "latest", "longest_tool", "partial", "progress", "prompt_tokens",
                 "running", "steps", "task")  # fmt: skip

    def __init__(self, task: str, group: str, prompt_tokens: float, partial: bool) -> None:
        self.task, self.group, self.prompt_tokens = task, group, prompt_tokens
        self.partial = partial
        self.progress = Progress(task, group, prompt_tokens)
        self.steps: list[TrajectoryStep] = []
        self.latest: TrajectoryStep | None = None
        self.gap_since: float | None = None
        self.at = 0.0
        #: Action → kind of tool; empty: a generation.
        self.running: dict[str, str] = {}
        self.longest_tool = 0.0

    @property
    def in_tools(self) -> bool:
        return self.gap_since is not None

    def submitted(self, at: float) -> None:
        """End the tools: the next generation was submitted."""
        if self.gap_since is not None and self.latest is not None:
            spent = self.latest.tool_seconds + max(0.0, at - self.gap_since)
            self.latest = replace(self.latest, tool_seconds=spent)
        self.gap_since = None

    def generated(self, usage: TokenUsage) -> None:
        """Begin the next step with an answer."""
        if self.latest is None:  # the first one: the prompt was an estimate
            self.prompt_tokens = float(max(0, usage.prompt_tokens))
            self.progress = Progress(self.task, self.group, self.prompt_tokens)
        self.close_step()
        tokens, prompt = max(0, usage.sampled_tokens), max(0, usage.prompt_tokens)
        self.latest = TrajectoryStep(float(tokens), 0.0, float(prompt + tokens))
        self.longest_tool = 0.0

    def close_step(self) -> None:
        """Count the latest step."""
        step, self.latest = self.latest, None
        if step is None:
            return
        self.progress.add(step)
        if len(self.steps) < MOST_STEPS:
            self.steps.append(step)
            return
        last = self.steps[-1]
        self.steps[-1] = replace(
            last, tokens=last.tokens + step.tokens, tool_seconds=last.tool_seconds + step.tool_seconds
        )  # fmt: skip

    def used_tool(self, kind: str, seconds: float) -> None:
        """Name the latest step after its longest tool."""
        if self.latest is not None and (not self.latest.kind or seconds > self.longest_tool):
            self.latest = replace(self.latest, kind=kind)
            self.longest_tool = seconds

    def features(self, at: float) -> Features:
        """Return the numbers after the latest step, with the seconds of its tools so far."""
        if self.latest is None:
            return self.progress.features()
        since = at if self.gap_since is None else self.gap_since
        spent = self.latest.tool_seconds + max(0.0, at - since)
        return self.progress.features_with(replace(self.latest, tool_seconds=spent))

    def finished(self) -> FinishedTrajectory | None:
        """Return what is learnt of it."""
        self.close_step()
        if self.partial or not self.steps:
            return None
        return FinishedTrajectory(self.task, tuple(self.steps), self.group, self.prompt_tokens)


class TrajectorySteps(JournalReducer):
    """The trajectories of all fleets between two of their events."""

    def __init__(self) -> None:
        super().__init__()
        #: By fleet and trajectory, the one silent for longest first.
        self._courses: OrderedDict[tuple[str, str], _Course] = OrderedDict()
        #: Trajectory → its fleets.
        self._fleets: dict[str, list[str]] = {}
        #: Rollout → its trajectories.
        self._of_rollouts: dict[str, list[str]] = {}
        #: Action that runs → fleet and trajectory.
        self._actions: dict[str, tuple[str, str]] = {}
        self._reports: dict[str, ActionFinished] = {}
        self._facts: list[StepFact] = []
        self._at = 0.0
        #: Trajectories that are seen first until then may have begun before the first entry.
        self._partial_until: float | None = None
        self.seq = 0

    def fetch(self) -> list[StepFact]:
        """Return what happened since the last call."""
        facts, self._facts = self._facts, []
        return facts

    def awaiting(self) -> list[StepEnded]:
        """Return the question about each trajectory that is in its tools now."""
        return [
            StepEnded(*key, course.features(self._at))
            for key, course in self._courses.items()
            if course.in_tools and course.latest is not None and not course.partial
        ]

    # --- journal ------------------------------------------------------------------------------

    def begin(self, entry: JournalEntry) -> None:
        """Keep the time of an entry, and forget what has been silent."""
        if self._partial_until is None:
            self._partial_until = entry.at + SILENT_SECONDS if entry.seq > 1 else entry.at - 1
        self._at, self.seq = max(self._at, entry.at), entry.seq
        self._reports.clear()
        while self._courses:
            key, course = next(iter(self._courses.items()))
            over = len(self._courses) > MOST_TRAJECTORIES
            if not over and course.at >= self._at - SILENT_SECONDS:
                break
            self._drop(key)

    def skipped(self) -> None:
        """Forget all trajectories: an entry could not be read, so steps may be missing."""
        for key in list(self._courses):
            self._drop(key)
        self._partial_until = self._at + SILENT_SECONDS

    @on(ActionSubmitted)
    def _submitted(self, event: ActionSubmitted) -> None:
        action = event.action
        key = action.trajectory_key
        if key is None:
            return
        if action.generation is None:
            for fleet in self._fleets.get(key, ()):
                self._tool_began(fleet, key, action)
        elif action.call is not None and (fleet_ := fleet_name(action.call.target)):
            self._generation_began(fleet_, key, action)

    def _tool_began(self, fleet: str, key: str, action: Action) -> None:
        course = self._touch(fleet, key)
        kind = _kind(action)
        course.running[action.id] = kind
        course.used_tool(kind, 0.0)
        self._actions[action.id] = (fleet, key)

    def _generation_began(self, fleet: str, key: str, action: Action) -> None:
        asked = action.generation
        assert asked is not None  # the caller looked
        known = (fleet, key) in self._courses
        if not known:
            partial = self._partial_until is not None and self._at <= self._partial_until
            group = f"{action.project}/{action.group}" if action.group else ""
            prompt = float(max(0, asked.prompt_tokens))
            self._add(fleet, key, _Course(action.task_key, group, prompt, partial))
        course = self._touch(fleet, key)
        course.submitted(self._at)
        course.running[action.id] = ""
        self._actions[action.id] = (fleet, key)
        if known:
            self._facts.append(WentOn(fleet, key))
        elif (
            asked.batch and not course.partial
        ):  # it waits for its batch, which is arranged by lengths
            self._facts.append(StepEnded(fleet, key, course.features(self._at)))

    @on(ActionFinished)
    def _reported(self, report: ActionFinished) -> None:
        self._reports[report.action_id] = report

    @on(Finish)
    def _finished(self, finish: Finish) -> None:
        place = self._actions.pop(finish.action_id, None)
        if place is None or place not in self._courses:
            return
        course = self._touch(*place)
        kind = course.running.pop(finish.action_id, None)
        if kind is None:
            return
        if kind:
            course.used_tool(kind, finish.timing.execution_seconds)
        else:
            self._generation_ended(course, finish)
        # While a tool runs, its end asks.
        asks = not course.partial and course.in_tools and course.latest is not None
        if asks and not any(course.running.values()):
            self._facts.append(StepEnded(*place, course.features(self._at)))

    def _generation_ended(self, course: _Course, finish: Finish) -> None:
        report = self._reports.get(finish.action_id)
        usage = None if report is None else report.usage
        if usage is not None and (usage.prompt_tokens > 0 or usage.sampled_tokens > 0):
            course.generated(usage)
        if "" not in course.running.values():
            course.gap_since = self._at

    @on(TrajectoryFinished)
    def _over(self, event: TrajectoryFinished) -> None:
        key = trajectory_key(event.project, event.trajectory)
        self._end(key, learn=event.reason == FINISHED_BY_REQUEST)

    @on(FinishRollout)
    def _rollout_over(self, finish: FinishRollout) -> None:
        learn = finish.result.outcome is RolloutOutcome.COMPLETED
        for key in list(self._of_rollouts.get(finish.rollout_id, ())):
            self._end(key, learn=learn)

    @on(RemoveEnvironment)
    def _removed(self, removal: RemoveEnvironment) -> None:
        self._end(removal.trajectory, learn=False)

    # --- trajectories -------------------------------------------------------------------------

    def _add(self, fleet: str, key: str, course: _Course) -> None:
        self._courses[fleet, key] = course
        fleets = self._fleets.setdefault(key, [])
        fleets.append(fleet)
        rollout = owner_of(key.partition("/")[2])
        if rollout is not None and len(fleets) == 1:
            self._of_rollouts.setdefault(rollout, []).append(key)

    def _touch(self, fleet: str, key: str) -> _Course:
        course = self._courses[fleet, key]
        course.at = self._at
        self._courses.move_to_end((fleet, key))
        return course

    def _end(self, key: str, *, learn: bool) -> None:
        for fleet in list(self._fleets.get(key, ())):
            self._drop((fleet, key), learn=learn)

    def _drop(self, place: tuple[str, str], *, learn: bool = False) -> None:
        course = self._courses.pop(place)
        fleet, key = place
        for action in course.running:
            self._actions.pop(action, None)
        rest = self._fleets[key]
        rest.remove(fleet)
        if not rest:
            del self._fleets[key]
            self._leave_rollout(key)
        self._facts.append(TrajectoryOver(fleet, key, course.finished() if learn else None))

    def _leave_rollout(self, key: str) -> None:
        rollout = owner_of(key.partition("/")[2])
        if rollout is None:
            return
        keys = self._of_rollouts[rollout]
        keys.remove(key)
        if not keys:
            del self._of_rollouts[rollout]

    # --- memory -------------------------------------------------------------------------------

    def remember(self) -> list[StoredSteps]:
        """Return all trajectories."""
        return [
            StoredSteps(
                *place, each.task, each.group, each.prompt_tokens, each.at, list(each.steps), each.latest,
                each.gap_since, list(each.running.items()), each.partial,
            )
            for place, each in self._courses.items()
        ]  # fmt: skip

    def recall(self, stored: Sequence[StoredSteps], at: float) -> None:
        """Go on with what `remember` returned; the next entry follows the last one before it."""
        self._partial_until = at - 1
        self._at = at
        for each in stored:
            course = _Course(each.task, each.group, each.prompt_tokens, each.partial)
            for step in each.steps:
                course.progress.add(step)
            course.steps = list(each.steps)
            course.latest, course.gap_since, course.at = each.latest, each.gap_since, each.at
            course.running = dict(each.running)
            self._add(each.fleet, each.trajectory, course)
            self._actions.update(dict.fromkeys(course.running, (each.fleet, each.trajectory)))


def _kind(action: Action) -> str:
    """Return the kind of a tool: what runs it, with its family or what it calls."""
    name = action.family or ("" if action.call is None else action.call.target)
    kind = str(action.kind)
    return (f"{kind}:{name}" if name else kind)[:_MOST_KIND_CHARACTERS]
