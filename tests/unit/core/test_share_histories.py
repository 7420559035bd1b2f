"""Shares hold in any history: checked by arithmetic from what nodes run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from domain.action import ActionState
from domain.decisions import Grant
from domain.elasticity import Elasticity
from domain.inventory import PoolConfig
from domain.limits import Share
from domain.resources import MILLI
from tests.builders import a_config, a_node, an_action, only
from tests.tiers import by_tier
from tests.unit.core.watched import Watched

PROJECTS = ("a", "b", "c", "without-share")
CORES = 12
AMOUNT = st.integers(0, 4).map(lambda units: units * MILLI)
SHARES = st.fixed_dictionaries(
    {name: st.builds(Share, AMOUNT, st.none() | AMOUNT, st.none() | AMOUNT) for name in "abc"}
)
RIGID = ["minimum", "fixed(2)", "paper"]
POLICIES = st.sampled_from([*RIGID, "malleable", "malleable", "balanced"])
COUNTS = st.sampled_from([1, 1, 2, 3, [1, 2], [1, 2, 4], [2, 3]])


class ShareHistories(RuleBasedStateMachine):
    """Projects with any shares of one node's cores submit; what ends, ends in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = Watched()
        self.shares: dict[str, Share] = {}
        self.policy = "minimum"
        self.revision = 0
        self.world.join(a_node("n1", cpus=CORES))

    @initialize(shares=SHARES, policy=POLICIES)
    def begin(self, shares: dict[str, Share], policy: str) -> None:
        self.configure(shares, policy)

    def configure(self, shares: dict[str, Share], policy: str) -> None:
        self.shares, self.policy, self.revision = shares, policy, self.revision + 1
        pool = PoolConfig("default", policy, shares={"cpu": shares}, scan_after_shrinking=True)
        self.world.configure(a_config(pools=[pool], revision=self.revision))

    @rule(data=st.data(), project=st.sampled_from(PROJECTS), count=st.integers(1, 6))
    def submit(self, data: st.DataObject, project: str, count: int) -> None:
        first = len(self.world.submitted)
        batch = [self.an_action(data, project, first + n) for n in range(count)]
        self.judge(lambda: self.world.submit(*batch))

    @staticmethod
    def an_action(data: st.DataObject, project: str, number: int) -> Any:
        fields: dict[str, Any] = {}
        if data.draw(st.booleans()):
            fields = {"elasticity": Elasticity(amdahl=0.95), "duration_seconds": 10.0}
        cost: dict[str, Any] = {"cpu": data.draw(COUNTS)}
        malleable = data.draw(st.booleans())
        name = f"a{number:04d}"
        return an_action(name, project=project, cost=cost, malleable=malleable, **fields)

    @precondition(lambda self: self.world.running())
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        runs = self.world.running()
        chosen = data.draw(st.lists(st.sampled_from(runs), min_size=1, max_size=3, unique=True))
        reports = [
            self.world.report(name, node=node, attempt=attempt, execution_seconds=1.0)
            for node, (name, attempt) in chosen
        ]
        self.judge(lambda: self.world.handle(*reports))

    @rule(seconds=st.sampled_from([0.5, 30.0]))
    def advance(self, seconds: float) -> None:
        self.judge(lambda: self.world.advance(seconds))

    @rule(shares=SHARES, policy=POLICIES)
    def change_shares(self, shares: dict[str, Share], policy: str) -> None:
        self.configure(shares, policy)

    @rule(go_on_with_it=st.booleans())
    def restore(self, go_on_with_it: bool) -> None:
        self.world.restart() if go_on_with_it else self.world.double()

    def judge(self, step: Any) -> None:
        """Take one step, and raise when it granted more than is due."""
        before, order = self.used(), self.waiting()
        decisions = step()
        used = self.used()
        for project in PROJECTS:
            self.judge_limits(project, before[project], used)
        granted = [grant for grant in only(Grant, decisions) if grant.action_id in order]
        self.judge_order(granted, order)
        owners = [project for project in PROJECTS if self.waits_within_its_own(project)]
        if owners and self.policy in RIGID:
            event("an owner waits for borrowers")
            excess = {name: used[name] - self.of(name).nominal for name in PROJECTS}
            borrowed = [g for g in granted if excess[self.project_of(g.action_id)] > 0]
            assert borrowed == [], "lent again while its owner waits"

    def judge_limits(self, project: str, before: int, used: Counter[str]) -> None:
        if used[project] <= before:
            return  # after a cut it may have more than is due, but gets no more
        share = self.of(project)
        assert share.borrow is None or used[project] <= share.nominal + share.borrow
        kept = sum(
            max(0, self.of(other).kept - used[other]) for other in PROJECTS if other != project
        )
        if used[project] > share.kept:  # else it takes what no other project could have had
            assert sum(used.values()) + kept <= max(CORES * MILLI, self.everything())
            event("shares bind")

    def everything(self) -> int:
        return sum(share.nominal for share in self.shares.values())

    def judge_order(self, granted: list[Grant], order: list[str]) -> None:
        """First come, first served inside a project: on one node no action is overtaken."""
        still = self.waiting()
        for grant in granted:
            earlier = order[: order.index(grant.action_id)]
            mine = [n for n in earlier if self.project_of(n) == self.project_of(grant.action_id)]
            assert not set(mine) & set(still), "overtaken inside its project"

    @invariant()
    def owners_have_what_is_never_lent(self) -> None:
        """No action waits for its share when it needs no more than what others never get."""
        if self.policy != "minimum" or self.everything() > CORES * MILLI:
            return
        used = self.used()
        whole = all(used[name] <= self.of(name).nominal for name in PROJECTS)
        for project in PROJECTS:
            head = next((n for n in self.waiting() if self.project_of(n) == project), None)
            if head is not None:
                wants = used[project] + self.least(head)
                due = self.of(project).nominal if whole else self.of(project).kept
                assert wants > due or self.over_committed(used)

    def over_committed(self, used: Counter[str]) -> bool:
        """Shares were changed while more ran than they leave room for."""
        kept = sum(max(0, self.of(name).kept - used[name]) for name in PROJECTS)
        return sum(used.values()) + kept > CORES * MILLI

    @invariant()
    def no_action_waits_that_could_be_granted(self) -> None:
        self.world.no_waiting_action_fits()

    def waits_within_its_own(self, project: str) -> bool:
        head = next((n for n in self.waiting() if self.project_of(n) == project), None)
        if head is None or self.world.why(head).code != "share":
            return False
        return self.used()[project] + self.admitted_at(head) <= self.of(project).nominal

    def of(self, project: str) -> Share:
        return self.shares.get(project, Share(0))

    def project_of(self, name: str) -> str:
        return self.world.submitted[name].project

    def least(self, name: str) -> int:
        return self.world.submitted[name].cost["cpu"][0]

    def admitted_at(self, name: str) -> int:
        return self.world.live(name).needs.key_amount

    def waiting(self) -> list[str]:
        """Return who waits, first come first."""
        actions = self.world.machine.state.actions.values()
        return sorted(str(live.id) for live in actions if live.state is ActionState.QUEUED)

    def used(self) -> Counter[str]:
        """Return what each project's actions really have."""
        used: Counter[str] = Counter()
        for grant in self.world.physical["n1"].values():
            for allocation in grant.allocations:
                used[self.project_of(grant.action_id)] += allocation.amount
        return used

    def teardown(self) -> None:
        self.world.wind_up()
        self.world.judge_the_end()
        self.world.replay()


TRIED = settings(
    max_examples=by_tier(10, 40, 400),
    stateful_step_count=by_tier(20, 20, 60),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.cpu_seconds(5)  # the widest check of the core is worth it
@pytest.mark.timeout(1800)  # a failure takes minutes to shrink
def test_any_history_keeps_to_the_shares() -> None:
    run_state_machine_as_test(ShareHistories, settings=TRIED)
