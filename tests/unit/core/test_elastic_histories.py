"""Any history of elastic actions keeps every promise, under every policy and every switch."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from domain.elasticity import Elasticity
from domain.inventory import PoolConfig
from tests.builders import a_config, a_node, an_action
from tests.tiers import by_tier
from tests.unit.core.watched import Watched

APIS = {"search": 4}
POLICIES = st.sampled_from(
    [
        "paper",
        "malleable",
        "balanced",
        "malleable",
        "paper",
        "balanced",
        "fixed(2)",
        "minimum",
        "makespan",
        "weighted",
    ]
)
COUNTS = st.sampled_from([[1, 2], [1, 2, 3, 4], [1, 2, 4], [2, 3], 1, 2, 0.5])
PROFILES = st.sampled_from([Elasticity(amdahl=share) for share in (1.0, 0.95, 0.5)])
SECONDS = st.sampled_from([0.5, 2.0, 10.0, 10.0, 30.0])


@st.composite
def elastic_actions(draw: st.DrawFn, number: int) -> Any:
    """An action that mostly has a profile; some wait for an API as well, some are in no hurry."""
    cost: dict[str, Any] = {"cpu": draw(COUNTS)}
    if draw(st.integers(0, 3)) == 0:
        cost["api:search"] = draw(st.sampled_from([1, [1, 2, 3]]))
    fields: dict[str, Any] = {}
    if draw(st.integers(0, 5)):
        fields = {"elasticity": draw(PROFILES), "duration_seconds": draw(SECONDS | st.none())}
    return an_action(
        f"a{number:04d}",
        cost=cost,
        malleable=draw(st.booleans()),
        priority=draw(st.sampled_from([0, 0, 0, 1])),
        queue_timeout_seconds=draw(st.sampled_from([None, None, 5.0])),
        **fields,
    )


class ElasticHistories(RuleBasedStateMachine):
    """Bursts of elastic actions on two nodes; what ends, ends in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = Watched()
        self.revision = 0
        self.switch("malleable")
        self.world.join(a_node("n1", cpus=5), a_node("n2", cpus=3))

    @rule(data=st.data(), count=st.integers(3, 7))
    def submit_many(self, data: st.DataObject, count: int) -> None:
        self.submit(data, count)

    @rule(data=st.data(), count=st.integers(1, 3))
    def submit(self, data: st.DataObject, count: int) -> None:
        first = len(self.world.submitted)
        self.world.submit(*(data.draw(elastic_actions(first + n)) for n in range(count)))
        self.note()

    @precondition(lambda self: self.world.running())
    @rule(data=st.data(), seconds=SECONDS)
    def report(self, data: st.DataObject, seconds: float) -> None:
        runs = self.world.running()
        chosen = data.draw(st.lists(st.sampled_from(runs), min_size=1, max_size=2, unique=True))
        self.world.handle(
            *(
                self.world.report(name, node=node, attempt=attempt, execution_seconds=seconds)
                for node, (name, attempt) in chosen
            )
        )
        self.note()

    @precondition(lambda self: self.world.submitted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.cancel(data.draw(st.sampled_from(sorted(self.world.submitted)[-6:])))

    @rule(seconds=SECONDS)
    def advance(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule(policy=POLICIES)
    def switch(self, policy: str) -> None:
        self.revision += 1
        pools = [PoolConfig("default", policy)]
        self.world.configure(a_config(pools=pools, apis=APIS, revision=self.revision))

    @rule(cpus=st.sampled_from([2, 5, 8]))
    def resize_a_node(self, cpus: int) -> None:
        self.world.join(a_node("n1", cpus=cpus))

    @rule(go_on_with_it=st.booleans())
    def restore(self, go_on_with_it: bool) -> None:
        if go_on_with_it:
            self.world.restart()
        else:
            self.world.double()

    def note(self) -> None:
        """Show with --hypothesis-show-statistics how often anybody is held back."""
        event(f"held back: {bool(self.world.machine.state.queues.deferrals)}")

    @invariant()
    def no_action_waits_that_could_be_granted(self) -> None:
        self.world.no_waiting_action_fits()

    def teardown(self) -> None:
        self.world.wind_up()
        self.world.judge_the_end()
        self.world.replay()


TRIED = settings(
    max_examples=by_tier(25, 50, 1000),
    stateful_step_count=by_tier(30, 30, 60),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.cpu_seconds(5)  # the widest check of the core is worth it
@pytest.mark.timeout(1800)  # a failure takes minutes to shrink
def test_any_elastic_history_keeps_every_promise() -> None:
    run_state_machine_as_test(ElasticHistories, settings=TRIED)
