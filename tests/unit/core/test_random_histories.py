"""Any history of events leaves a consistent machine, and every action exactly one end."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from domain import events
from domain.action import Action, Kind, Outcome
from domain.apis import ApiConfig, Cache, CallSpec, Feedback, Verdict
from domain.decisions import Forget, ForkEnvironment
from domain.elasticity import Elasticity
from domain.events import NO_RESULT, LeasesRenewed
from domain.fleet_events import (
    CacheMoved,
    FleetWorkersChanged,
    TrajectoryPinned,
    TrajectoryPredicted,
)
from domain.fleets import FleetWorker, PlacementName, TokenUsage, WorkerFact
from domain.ids import ActionId
from domain.inventory import Config, PoolConfig
from domain.limits import Share
from tests.builders import (
    GIB,
    a_config,
    a_fleet,
    a_generation,
    a_lease,
    a_node,
    a_quota,
    an_action,
    an_environment,
    only,
)
from tests.tiers import by_tier
from tests.unit.core.followed import FollowedWorld
from tests.unit.core.watched import Watched

NODES = st.sampled_from(["n1", "n2"])
TRAJECTORIES = st.sampled_from(["t1", "t2", "t3"])
#: Trajectories that are forked, and names of their forks.
FORKED = st.sampled_from(["t1", "t1", "t2", "f1"])
FORKS = st.lists(st.sampled_from(["f1", "f2", "t3"]), min_size=1, max_size=2, unique=True)
ON_BUSY = st.sampled_from(["refuse", "wait", "copy"])
#: What a node can report; only the core says that an action expired.
REPORTED = st.sampled_from([Outcome.COMPLETED, *(o for o in Outcome if o is not Outcome.EXPIRED)])
SECONDS = st.sampled_from([0.5, 3.0, 11.0, 700.0])
CPUS = st.sampled_from([0.1, 0.5, 1, 2, 3, [2, 4], 8, *3 * ([1, 2], [1, 2, 3, 4], [1, 2, 4])])
APIS = st.dictionaries(
    st.sampled_from(["api:search", "api:code"]), st.sampled_from([1, 1, 2, 3, [1, 2]]), max_size=2
)
POLICIES = st.sampled_from(["paper", "paper", "minimum", "fixed(2)", "balanced", "gone by now"])
PROFILES = st.sampled_from([Elasticity(amdahl=share) for share in (1.0, 1.0, 0.9, 0.1)])
QUOTAS = st.lists(
    st.builds(a_quota, st.integers(1, 3), st.sampled_from([0.0, 2.0, 20.0])), min_size=1, max_size=2
)
SHARES = st.builds(
    Share, st.sampled_from([0, 1000, 2000]), st.sampled_from([None, 0, 1000]), st.just(None)
)
PATHS = st.sampled_from(["/a", "/b"])
MERGED = st.sampled_from(
    [
        {},
        {"api:search": ApiConfig("https://x")},
        {"api:search": ApiConfig("https://x", cache=Cache(5.0))},
    ]
)
ANSWER = msgspec.Raw(b"\xa2ok")
MEMORY = st.sampled_from([0, 0, GIB // 2, GIB, 3 * GIB])


GENERATION_OF = st.sampled_from(["m", "m", "m", "g"])
FLEETS: st.SearchStrategy[dict[str, tuple[int, ...]]] = st.sampled_from(
    [{"m": (1, 2)}, {"m": (1, 2)}, {"m": (2,)}, {"m": (1, 1, 1), "g": (1,)}, {"g": ()}, {}]
)
FACTS = st.builds(
    WorkerFact,
    st.sampled_from(["w1", "w2"]),
    st.sampled_from([None, None, True, False]),
    st.sampled_from([None, "no answer", ""]),
    st.sampled_from([None, None, 1, 2]),
)
USAGES = st.sampled_from([None, TokenUsage(100, 50, 0), TokenUsage(9000, 4000, 100)])
#: Tokens that a predictor may say are left.
TOKENS = st.sampled_from([0.0, 10.0, 5000.0, -1.0, math.nan, math.inf])


@st.composite
def generations(draw: st.DrawFn, number: int) -> Action:
    """Any request to a model."""
    return a_generation(
        f"a{number:04d}",
        draw(st.none() | TRAJECTORIES | TRAJECTORIES),
        fleet=draw(GENERATION_OF),
        batch=draw(st.sampled_from(["", "b1", "b2"])),
        batch_size=draw(st.sampled_from([0, 2, 3])),
        group=draw(st.sampled_from([None, "p1"])),
        priority=draw(st.sampled_from([0, 0, 0, 1])),
        queue_timeout_seconds=draw(st.sampled_from([None, None, 5.0])),
        replay_safe=draw(st.booleans()),
    )


@st.composite
def actions(draw: st.DrawFn, number: int) -> Any:
    """Any action that a trainer could submit; its id counts up, so that ids sort by age."""
    kind = draw(
        st.sampled_from([Kind.EXEC, Kind.EXEC, Kind.EXEC, Kind.LEASE, Kind.NOOP, Kind.CALL])
    )
    cost: dict[str, Any] = dict(draw(APIS)) if draw(st.booleans()) else {}
    if kind is not Kind.NOOP and draw(st.integers(0, 3)):
        cost["cpu"] = draw(CPUS)
    trajectory = draw(st.none() | TRAJECTORIES | TRAJECTORIES | st.just("f1"))
    call = CallSpec("api:search", "GET", draw(PATHS)) if kind is Kind.CALL else None
    fields: dict[str, Any] = {
        "cost": cost,
        "trajectory": trajectory,
        "priority": draw(st.sampled_from([0, 0, 0, 1, -1])),
        "queue_timeout_seconds": draw(st.sampled_from([None, None, 5.0, 50.0])),
        "replay_safe": draw(st.booleans()),
        "call": call,
    }
    if draw(st.integers(0, 3)):
        fields["elasticity"] = draw(PROFILES)
        fields["duration_seconds"] = draw(st.sampled_from([None, 0.1, 2.0, 30.0, 30.0]))
        fields["family"] = draw(st.sampled_from([None, "tests"]))
    if trajectory is not None and (memory := draw(MEMORY)):
        ttl = draw(st.sampled_from([30.0, 3600.0]))
        fields["environment"] = an_environment(memory, ttl_seconds=ttl)
    name = f"a{number:04d}"
    if kind is Kind.LEASE:
        return a_lease(name, ttl_seconds=draw(st.sampled_from([5.0, 40.0, 900.0])), **fields)
    return an_action(name, kind=kind, **fields)


def feedbacks(*, sent: bool) -> st.SearchStrategy[Feedback]:
    """Anything that an attempt could say of its API."""
    verdict, pause = st.sampled_from(Verdict), st.sampled_from([None, None, 2.0])
    return st.builds(Feedback, st.just("api:search"), verdict, st.just(sent), pause, st.booleans())


@st.composite
def configs(draw: st.DrawFn, revision: int) -> Config:
    """Any configuration that an operator could apply."""
    return a_config(
        pools=[
            PoolConfig(
                "default",
                draw(POLICIES),
                paused=draw(st.booleans()),
                shares={"cpu": {"default": draw(SHARES)}} if draw(st.booleans()) else {},
            )
        ],
        apis=draw(
            st.dictionaries(st.sampled_from(["search", "code"]), st.integers(0, 3), max_size=2)
        ),
        quotas=draw(st.dictionaries(st.sampled_from(["search", "code"]), QUOTAS, max_size=2)),
        called=draw(MERGED),
        fleets={
            name: a_fleet(slots, policy=draw(st.sampled_from(PlacementName)))
            for name, slots in draw(FLEETS).items()
        },
        shares={"api:search": {"default": draw(SHARES)}} if draw(st.booleans()) else {},
        drained_nodes=frozenset(drained := draw(st.sets(NODES))),
        finishing_nodes=frozenset(drained & draw(st.sets(NODES))),
        node_grace_seconds=draw(st.sampled_from([10.0, 60.0])),
        node_dead_seconds=draw(st.sampled_from([10.0, 60.0, 600.0])),
        revision=revision,
    )


class Histories(RuleBasedStateMachine):
    """Trainers, nodes, operators and time, in any order.

    Rules are drawn evenly, so what seldom happens shares one rule, and what matters most has two.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = Watched()
        self.followed = FollowedWorld(self.world)
        self.incarnations = {"n1": 0, "n2": 0}
        self.identities = {"n1": 0, "n2": 0}
        self.revision = 0
        self.forks = 0
        self.ended_forks: list[ForkEnvironment] = []
        self.reports: list[events.ActionFinished] = []
        self.join("n1", cpus=2, new_disk=False, beside="")
        self.join("n2", cpus=4, new_disk=False, beside="")

    def any_action(self, data: st.DataObject) -> str:
        known = [*self.world.submitted, "a9999"]
        return data.draw(st.sampled_from(known[-12:]), label="action")

    @rule(data=st.data(), count=st.integers(2, 6))
    def submit_many(self, data: st.DataObject, count: int) -> None:
        self.submit(data, count)

    @rule(data=st.data(), count=st.integers(1, 2))
    def submit(self, data: st.DataObject, count: int) -> None:
        first = len(self.world.submitted)
        batch = [data.draw(actions(first + n)) for n in range(count)]
        self.world.submit(*batch, lag_seconds=data.draw(st.sampled_from([0.0, 0.5, 8.0])))

    @rule(data=st.data(), count=st.integers(1, 4))
    def generate(self, data: st.DataObject, count: int) -> None:
        first = len(self.world.submitted)
        self.world.submit(*(data.draw(generations(first + n)) for n in range(count)))

    @rule(data=st.data(), facts=st.lists(FACTS, min_size=1, max_size=2), own=st.booleans())
    def judge_workers(self, data: st.DataObject, facts: list[WorkerFact], own: bool) -> None:
        event = FleetWorkersChanged(fleet=data.draw(GENERATION_OF), facts=tuple(facts))
        if own:
            event.joined = (FleetWorker(name="own", url="http://own:1", slots=1, degree=2),)
            event.removed = data.draw(st.sampled_from([(), ("own",)]))
        self.world.handle(event)

    @rule(
        data=st.data(), trajectory=TRAJECTORIES, what=st.sampled_from(["said", "moved", "pinned"])
    )
    def tell_the_fleet(self, data: st.DataObject, trajectory: str, what: str) -> None:
        fleet, key = data.draw(GENERATION_OF), self.world.key(trajectory)
        if what == "said":
            self.world.handle(
                TrajectoryPredicted(fleet=fleet, trajectory=key, tokens=data.draw(TOKENS))
            )
        elif what == "moved":
            ended, tokens = data.draw(st.booleans()), data.draw(st.sampled_from([0, 100]))
            self.world.handle(CacheMoved(fleet=fleet, trajectory=key, ended=ended, tokens=tokens))
        else:
            worker = data.draw(st.sampled_from(["w1", "w2", ""]))
            self.world.handle(TrajectoryPinned(fleet=fleet, trajectory=key, worker=worker))

    @rule(data=st.data())
    def renew_together(self, data: st.DataObject) -> None:
        names = {self.any_action(data), self.any_action(data)}
        self.world.handle(LeasesRenewed(action_ids=tuple(ActionId(each) for each in sorted(names))))

    @precondition(lambda self: self.world.running())
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        node, attempt = data.draw(st.sampled_from(self.world.running()))
        self.world.handle(
            events.ActionStarted(
                action_id=ActionId(attempt.action_id), node=node, attempt=attempt.attempt
            )
        )

    @precondition(lambda self: self.world.running())
    @rule(data=st.data(), outcome=REPORTED)
    def report(self, data: st.DataObject, outcome: Outcome) -> None:
        runs = self.world.running()
        chosen = data.draw(st.lists(st.sampled_from(runs), min_size=1, max_size=3, unique=True))
        unsure = outcome in {Outcome.INFRA_FAILED, Outcome.UNKNOWN}
        for node, (action_id, attempt) in chosen:
            never = unsure and data.draw(st.booleans())
            said = None
            if self.world.submitted[action_id].kind is Kind.CALL and data.draw(st.booleans()):
                said = data.draw(feedbacks(sent=not never))
            self.reports.append(
                self.world.report(
                    action_id,
                    outcome,
                    node=node,
                    attempt=attempt,
                    reward=1.0,
                    execution_seconds=2.0,
                    never_started=never,
                    feedback=said,
                    usage=data.draw(USAGES) if not node else None,
                    result=NO_RESULT if said is None else ANSWER,
                )
            )
        self.world.handle(*self.reports[-len(chosen) :])

    @precondition(lambda self: self.reports)
    @rule(data=st.data())
    def report_again(self, data: st.DataObject) -> None:
        self.world.handle(replace(data.draw(st.sampled_from(self.reports))))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.cancel(self.any_action(data))

    @rule(data=st.data(), ttl=st.sampled_from([None, 1.0, 100.0, -1.0]))
    def renew_or_release(self, data: st.DataObject, ttl: float | None) -> None:
        if ttl == -1.0:
            self.world.release(self.any_action(data))
        else:
            self.world.renew(self.any_action(data), ttl)

    @rule(paused=st.sampled_from([None, True, False]), priority=st.sampled_from([None, -1, 2]))
    def steer(self, paused: bool | None, priority: int | None) -> None:
        if paused is None:
            self.world.prioritise(priority)
        else:
            self.world.pause(paused=paused)

    @rule(trajectory=TRAJECTORIES)
    def finish_trajectory(self, trajectory: str) -> None:
        self.world.finish_trajectory(trajectory)

    @precondition(lambda self: self.world.removing)
    @rule(data=st.data())
    def remove_environment(self, data: st.DataObject) -> None:
        key, node = data.draw(st.sampled_from(sorted(self.world.removing.items())))
        self.world.handle(events.EnvironmentRemoved(trajectory=key, node=node))

    @rule(trajectory=TRAJECTORIES, verb=st.sampled_from(["open", "put", "get"]), memory=MEMORY)
    def prepare_trajectory(self, trajectory: str, verb: str, memory: int) -> None:
        if verb == "open":
            self.world.open_trajectory(trajectory, environment=an_environment(memory))
        else:
            self.world.request_file(trajectory, verb)

    @rule(source=FORKED, children=FORKS, on_busy=ON_BUSY)
    def fork(self, source: str, children: list[str], on_busy: str) -> None:
        self.forks += 1
        self.world.fork(source, *children, on_busy=on_busy, request_id=f"f{self.forks}")

    @precondition(lambda self: self.world.forking)
    @rule(data=st.data(), failed=st.sampled_from(["", "", "the disk is full"]))
    def end_fork(self, data: st.DataObject, failed: str) -> None:
        request = data.draw(st.sampled_from(sorted(self.world.forking)))
        self.ended_forks.append(self.world.forking[request])
        self.world.forked(self.ended_forks[-1], failed)

    @precondition(lambda self: self.ended_forks)
    @rule(data=st.data())
    def end_fork_again(self, data: st.DataObject) -> None:
        self.world.forked(data.draw(st.sampled_from(self.ended_forks)))

    @rule(
        node=NODES,
        cpus=st.sampled_from([1, 4, 4]),
        new_disk=st.booleans(),
        beside=st.sampled_from(("", "kept core", "yielding")),
    )
    def join(self, node: str, cpus: int, new_disk: bool, beside: str) -> None:
        self.incarnations[node] += 1
        self.identities[node] += new_disk
        self.world.join(
            a_node(
                node,
                cpus=cpus,
                memory_bytes=2 * GIB,
                identity=f"{node}-disk-{self.identities[node]}",
                incarnation=self.incarnations[node],
                keeps_a_core=beside == "kept core",
                yielding=0.5 if beside == "yielding" else 0,
            )
        )

    @rule(node=NODES, for_good=st.booleans())
    def lose(self, node: str, for_good: bool) -> None:
        self.world.lose(node, self.incarnations[node])
        if self.revision % 2:
            self.world.fence(node, self.incarnations[node])
        elif for_good:
            self.world.advance(self.world.machine.state.config.node_grace_seconds)

    @rule(node=NODES)
    def bring_back(self, node: str) -> None:
        self.world.bring_back(node, self.incarnations[node])

    @rule(node=NODES, dead=st.booleans())
    def forget(self, node: str, dead: bool) -> None:
        if dead:
            self.world.lose(node, self.incarnations[node])
            self.world.advance(self.world.machine.state.config.node_dead_seconds)
        if only(Forget, self.world.forget(node)):
            self.identities[node] += 1  # a worker that returns is asked to start without state

    @rule(data=st.data())
    def configure(self, data: st.DataObject) -> None:
        self.revision += 1
        self.world.configure(data.draw(configs(self.revision)))

    @rule(seconds=SECONDS)
    def advance(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule(go_on_with_it=st.booleans())
    def restore(self, go_on_with_it: bool) -> None:
        self.followed.store_snapshot(trim=False)
        if go_on_with_it:
            self.world.restart()
        else:
            self.world.double()

    @rule(data=st.data(), step=st.sampled_from([0.001, 0.03, 1.0]), lead=st.booleans())
    def follow(self, data: st.DataObject, step: float, lead: bool) -> None:
        """A standby follows, fast or slowly, and may have to lead."""
        if data.draw(st.booleans(), label="snapshot"):
            self.followed.store_snapshot(trim=data.draw(st.booleans(), label="trim"))
        self.followed.follow(step)
        if lead:
            self.followed.judge()

    @invariant()
    def no_action_waits_that_could_be_granted(self) -> None:
        self.world.no_waiting_action_fits()

    def teardown(self) -> None:
        self.followed.follow(0.001)
        self.world.wind_up()
        self.world.judge_the_end()
        self.world.replay()
        self.followed.judge()


TRIED = settings(
    max_examples=by_tier(20, 40, 800),
    stateful_step_count=by_tier(40, 40, 60),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.cpu_seconds(6)  # the widest check of the core is worth it
@pytest.mark.timeout(1800)  # a failure takes minutes to shrink
def test_any_history_keeps_every_promise() -> None:
    run_state_machine_as_test(Histories, settings=TRIED)
