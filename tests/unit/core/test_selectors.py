"""Selectors in the core: loads become degrees, and the calls of a service get them."""

from __future__ import annotations

from msgspec.structs import replace

from domain import events
from domain.action import Action, Outcome
from domain.decisions import Decision, Grant, SetParallelism
from domain.event_base import EventBase
from domain.fleets import TokenUsage
from domain.ids import ActionId
from domain.inventory import Config, PoolConfig
from domain.rollout_events import RolloutFinished, RolloutsSubmitted, RolloutWorkerJoined
from domain.rollouts import Rollout, RolloutId, RolloutOutcome, RolloutResult
from domain.selector_events import SelectorObserved, SelectorPinned, SelectorProfiled
from domain.selectors import (
    Parallelism,
    ParallelismProfile,
    ProfileCell,
    ProfileIdentity,
    SelectorSpec,
    SelectorStage,
    StageLoad,
    SwitchCost,
)
from scheduler.core.machine import Machine
from scheduler.core.state import snapshot
from scheduler.core.state.invariants import check
from tests.builders import START, a_config, a_machine, make_ledger, only
from tests.unit.core.test_services_on_chunks import a_call, a_gpu_node, a_service

TP1, TP2 = Parallelism(1), Parallelism(2)
PROFILE = ParallelismProfile(
    ProfileIdentity("cpu", "small", "torch"),
    (
        ProfileCell(TP1, 1000, 8, tokens_per_gpu_second=100.0),
        ProfileCell(TP1, 4000, 8, oom=True),
        ProfileCell(TP2, 1000, 8, tokens_per_gpu_second=80.0),
        ProfileCell(TP2, 4000, 8, tokens_per_gpu_second=60.0),
    ),
    (SwitchCost(TP1, 2.0), SwitchCost(TP2, 2.0)),
)


def steered(**fields: object) -> Config:
    spec = SelectorSpec((TP1, TP2), target="service:policy", responses=(8,), growth=1.2)
    return a_config(
        pools=[PoolConfig("default", "minimum")],
        services={"policy": a_service((1, 10), (2, 10))},
        selectors={"long": replace(spec, **fields)},
    )


class Steered:
    """A machine with two GPUs whose service a selector steers."""

    def __init__(self, config: Config | None = None) -> None:
        self.machine = a_machine([a_gpu_node(2)], config or steered())
        self.at = START
        self.history: list[tuple[EventBase, list[Decision]]] = []

    def tell(self, *happened: EventBase) -> list[Decision]:
        self.at += 1
        stamped = [replace(each, at=self.at) for each in happened]
        decisions = self.machine.handle(*stamped)  # type: ignore[arg-type]
        check(self.machine.state)
        return decisions

    def submit(self, *actions: Action) -> dict[str, tuple[int, ...]]:
        """Return the GPUs of each action that was granted."""
        return granted(self.tell(*(events.ActionSubmitted(action=each) for each in actions)))

    def end(self, name: str, tokens: int = 0) -> list[Decision]:
        live = self.machine.state.actions[ActionId(name)]
        usage = TokenUsage(tokens, 0) if tokens else None
        return self.tell(
            events.ActionFinished(
                action_id=live.id, node="n1", outcome=Outcome.COMPLETED, attempt=live.attempt,
                usage=usage,
            )
        )  # fmt: skip

    def observe(self, context: float, **fields: object) -> list[Decision]:
        return self.tell(
            SelectorObserved(selector="long", load=StageLoad(float(context), responses=8), **fields)  # type: ignore[arg-type]
        )


def granted(decisions: list[Decision]) -> dict[str, tuple[int, ...]]:
    return {grant.action_id: grant.allocations[0].units for grant in only(Grant, decisions)}


def call(name: str, step: int | None = None) -> Action:
    made = a_call(name, "policy", (1, 2))
    return replace(made, step=step, trajectory=None)


def test_a_load_gives_calls_the_degree_and_leaves_running_ones_alone() -> None:
    play = Steered()
    assert play.submit(call("before")) == {"before": (0,)}
    play.tell(SelectorProfiled(selector="long", change=PROFILE))

    first = play.observe(500)
    assert play.submit(call("w1"), call("w2")) == {"w1": (1,)}  # one GPU each
    grown = play.observe(2000)

    assert [each.parallelism for each in only(SetParallelism, first)] == [TP1]
    (switch,) = only(SetParallelism, grown)
    assert (switch.parallelism, switch.former, switch.code) == (TP2, TP1, "memory")
    assert granted(play.end("before")) == {}  # w2 waits for both GPUs now
    assert granted(play.end("w1")) == {"w2": (0, 1)}


def test_without_a_profile_calls_keep_the_counts_that_they_ask_for() -> None:
    play = Steered()

    decisions = play.observe(2000)

    assert only(SetParallelism, decisions) == []
    assert play.submit(call("a")) == {"a": (0,)}
    assert play.machine.state.actions[ActionId("a")].action.cost == {"gpu": (1000, 2000)}


def test_a_call_keeps_a_count_that_it_names_and_one_that_no_node_has() -> None:
    play = Steered()
    play.tell(SelectorPinned(selector="long", parallelism=TP2))

    assert play.submit(a_call("named", "policy", (1,))) == {"named": (0,)}
    alone = Steered(steered())
    alone.machine = a_machine([a_gpu_node(1)], steered())
    alone.tell(SelectorPinned(selector="long", parallelism=TP2))
    assert alone.submit(call("a")) == {"a": (0,)}


def test_a_pin_holds_until_its_end_and_one_that_is_declared_until_that_changes() -> None:
    play = Steered(steered(pin=TP2))
    assert play.submit(call("a")) == {"a": (0, 1)}
    play.tell(SelectorProfiled(selector="long", change=PROFILE))
    play.observe(500)

    (back,) = only(SetParallelism, play.tell(SelectorPinned(selector="long")))

    assert back.parallelism == TP1
    play.end("a")
    assert play.submit(call("b")) == {"b": (0,)}


def test_the_end_of_a_pin_gives_calls_their_counts_back_where_nothing_is_known() -> None:
    play = Steered()
    play.tell(SelectorPinned(selector="long", parallelism=TP2))
    assert play.submit(call("a"), call("b")) == {"a": (0, 1)}

    play.tell(SelectorPinned(selector="long"))

    assert granted(play.end("a")) == {"b": (0,)}


def test_calls_of_another_step_close_the_window_of_contexts_before_they_are_queued() -> None:
    play = Steered()
    play.tell(SelectorProfiled(selector="long", change=PROFILE))
    play.submit(call("a", step=1))
    play.end("a", tokens=900)
    play.submit(call("b", step=1))
    play.end("b", tokens=3000)

    assert play.submit(call("c", step=2)) == {"c": (0, 1)}

    (record,) = play.machine.state.residency.memory.selectors.live["long"].loads
    assert (record.load.context, record.load.context_longest, record.load.responses) == (
        1950,
        3000,
        2,
    )
    assert (record.step, record.parallelism) == (1, TP2)


def test_calls_that_wait_at_the_end_of_a_window_are_work_of_the_next_step() -> None:
    play = Steered()
    play.submit(call("a", step=1), call("b", step=1), call("c", step=1), call("d", step=1))
    play.end("a", tokens=900)

    play.submit(call("e", step=2))

    (load,) = play.machine.state.residency.memory.selectors.live["long"].loads
    assert load.load.queue == 1  # b and c have the two GPUs
    assert load.load.work_tokens == 900 + 900


def test_rollouts_of_another_batch_close_the_window_of_those_before() -> None:
    play = Steered(steered(observes=("llm:team",)))
    play.tell(SelectorProfiled(selector="long", change=PROFILE))
    play.tell(RolloutWorkerJoined(worker="w", incarnation=1, slots=4))

    def submitted(name: str, batch: str) -> list[Decision]:
        rollout = Rollout(
            id=RolloutId(name), project="default", task="t", handler="h", llm="llm:team",
            batch=batch, batch_size=8,
        )  # fmt: skip
        return play.tell(RolloutsSubmitted(rollouts=(rollout,)))

    submitted("r1", "one")
    result = RolloutResult(
        RolloutOutcome.COMPLETED, reward=1.0, prompt_tokens=500, response_tokens=1200
    )
    play.tell(RolloutFinished(rollout_id=RolloutId("r1"), worker="w", attempt=1, result=result))

    (chosen,) = only(SetParallelism, submitted("r2", "two"))

    assert chosen.parallelism == TP2
    (record,) = play.machine.state.residency.memory.selectors.live["long"].loads
    assert (record.load.context, record.load.responses) == (1700, 8)


def test_the_same_step_with_the_same_load_counts_once() -> None:
    play = Steered()
    play.tell(SelectorProfiled(selector="long", change=PROFILE))
    for _ in range(3):
        play.observe(500, step=4)

    assert len(play.machine.state.residency.memory.selectors.live["long"].loads) == 1


def test_the_stage_that_began_last_steers_the_calls() -> None:
    both = (SelectorStage.ROLLOUT, SelectorStage.TRAINING)
    play = Steered(steered(stages=both))
    cells = [replace(each, stage=SelectorStage.TRAINING) for each in PROFILE.cells]
    play.tell(SelectorProfiled(selector="long", change=PROFILE))
    play.tell(SelectorProfiled(selector="long", change=replace(PROFILE, cells=tuple(cells))))
    play.observe(500)
    play.observe(2000, stage=SelectorStage.TRAINING)
    assert play.submit(call("a")) == {"a": (0,)}
    play.end("a")

    play.observe(2100, stage=SelectorStage.TRAINING, begins=True)

    assert play.submit(call("b")) == {"b": (0, 1)}


def test_a_snapshot_continues_with_profiles_loads_pins_and_narrowed_calls() -> None:
    play = Steered()
    play.submit(call("busy"))
    play.tell(SelectorProfiled(selector="long", change=PROFILE))
    play.observe(2000)
    play.submit(call("waits"))
    stored = snapshot.dump(play.machine)

    again = snapshot.load(stored, make_ledger)

    assert snapshot.dump(again) == stored
    kept = again.state.residency.memory.selectors.live["long"]
    assert kept.profile is not None
    assert (kept.profile.revision, len(kept.profile.cells)) == (1, 4)
    assert kept.stage(SelectorStage.ROLLOUT).standing.current == TP2
    waiting = again.state.actions[ActionId("waits")]
    assert (waiting.action.cost["gpu"], waiting.asked_units) == ((2000,), (1000, 2000))
    _same_answers(play.machine, again, play.at)


def _same_answers(first: Machine, second: Machine, at: float) -> None:
    following = SelectorPinned(selector="long", parallelism=TP1, forced=True, at=at + 1)
    assert first.handle(following) == second.handle(following)
    assert snapshot.dump(first) == snapshot.dump(second)


def test_profiles_of_a_deleted_selector_are_there_when_it_is_declared_again() -> None:
    play = Steered()
    play.tell(SelectorProfiled(selector="long", change=PROFILE))
    config = play.machine.state.config
    play.observe(2000)
    play.submit(call("a"), call("b"))

    deleted = replace(config, revision=config.revision + 1, selectors={})
    assert play.machine.state.actions[ActionId("b")].asked_units
    play.tell(events.ConfigApplied(config=deleted))
    assert play.machine.state.actions[ActionId("b")].asked_units == ()
    play.tell(events.ConfigApplied(config=replace(config, revision=config.revision + 2)))

    found = play.machine.state.residency.memory.selectors.live["long"].profile
    assert found is not None
    assert len(found.cells) == 4
