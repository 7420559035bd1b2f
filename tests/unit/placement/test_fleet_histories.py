"""Random histories of a fleet: every invariant holds after each event, and a recalled fleet answers as the first one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from placement.facts import ArrangedGroup, BatchArrangement, Move, Prediction, WorkerFacts
from placement.fleet import LlmFleet
from placement.moves import SoonerRule
from placement.policies.hedged import HedgedPolicy, HedgedSettings
from placement.policies.paper import PaperPolicy
from placement.policies.plain import PlainPolicy
from placement.policies.protocol import PlacementPolicy
from tests.tiers import by_tier
from tests.unit.placement.fleets import DeclaredTimes

KEYS = st.sampled_from("abcd")
BATCHES = st.sampled_from(["", "", "s1", "s2"])
#: Predicted tokens, mostly usable.
NUMBERS = st.sampled_from([10.0, 200.0, 3000.0, 3000.0, math.nan, math.inf, -1.0])
SECONDS = st.sampled_from([0.1, 0.1, 0.5, 3.0, 70.0])
CHANGES = ["add", "add", "lose", "drain", "weights"]


class Restless(PlainPolicy):
    """Arranges members in turn, and moves whatever is predicted to the next worker."""

    arranges = True

    def __init__(self):
        super().__init__("autellix", "cache")

    def arrange(self, batch, workers, fleet):
        found = {each.key: workers[at % len(workers)].number for at, each in enumerate(batch)}
        counts = sorted(Counter(found.values()).items())
        return BatchArrangement(found, tuple(ArrangedGroup(*each, 1.0, 1.0) for each in counts))

    def move(self, trajectory, fleet):
        numbers = [load.facts.number for load in fleet.loads]
        if trajectory.worker not in numbers:
            return None
        target = numbers[(numbers.index(trajectory.worker) + 1) % len(numbers)]
        length = trajectory.total_tokens
        return Move(
            trajectory.key, trajectory.worker, target, trajectory.context_tokens, 1.0, length
        )


POLICIES: dict[str, Callable[[], PlacementPolicy]] = {
    "restless": Restless,
    "paper": PaperPolicy,
    # Moves for the least gain, so that histories have some.
    "hedged": lambda: HedgedPolicy(HedgedSettings(moves=SoonerRule(0.0, 0.0), patience=0.0)),
    "cache": lambda: PlainPolicy("fcfs", "cache"),
    "least": lambda: PlainPolicy("rr", "least"),
}


class Histories(RuleBasedStateMachine):
    """Events in any order, reports about unknown things among them."""

    @initialize(
        policy=st.sampled_from(["restless", *sorted(POLICIES)]), count=st.sampled_from([3, 3, 2, 0])
    )
    def start(self, policy, count):
        self.make = POLICIES[policy]
        self.now = 0.0
        self.names = 0
        self.workers = {number: WorkerFacts(number, 2) for number in range(1, count + 1)}
        self.fleet = self.fresh(self.workers.values())
        #: Generation → its route, of those that have not ended.
        self.open = {}
        self.begun = set()
        self.of = {}
        #: Trajectory → source, target, until when they are taken at most, and whether its transfer began.
        self.moving = {}

    def fresh(self, workers=()):
        return LlmFleet(self.make(), DeclaredTimes(transfers=100.0), workers, silent_seconds=200.0)

    @rule(seconds=SECONDS)
    def time_passes(self, seconds):
        self.now += seconds
        self.collect()

    def collect(self):
        """Fetch routes, and check that each is new or replaces one of a worker that was unusable before it began."""
        for name, route in self.fleet.routed(self.now):
            self.take(name, route)

    def take(self, name, route):
        before = self.open.get(name)
        assert before is None or (name not in self.begun and not self.is_usable(before.worker))
        assert self.is_usable(route.worker)
        assert math.isfinite(route.rank)
        beside = {
            self.open[other].worker
            for other, key in self.of.items()
            if key and key == self.of[name] and other != name and self.open[other]
        }
        beside = {worker for worker in beside if self.is_usable(worker)}
        assert not beside or route.worker in beside
        self.open[name] = route

    def is_usable(self, number):
        return number in self.workers and self.workers[number].usable

    @rule(
        key=KEYS,
        batch=BATCHES,
        size=st.integers(0, 3),
        parallel=st.booleans(),
        tokens=st.integers(0, 99),
    )
    def request(self, key, batch, size, parallel, tokens):
        self.names += 1
        name = f"g{self.names}" if parallel else key
        known = name in self.open
        route = self.fleet.request(
            key, self.now, generation=name, batch=batch, batch_size=size, prompt_tokens=tokens
        )
        if known:
            assert route == self.open[name]
            return
        self.open[name] = None
        self.of[name] = key
        self.drop_planned({key})
        if route is not None:
            self.take(name, route)
        self.collect()

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4, unique=True), tokens=NUMBERS)
    def steps_end_and_are_predicted(self, keys, tokens):
        """Most of what a fleet sees; otherwise few trajectories are ever in a tool."""
        for key in keys:
            if key not in self.open:
                self.request(key, "", 0, False, 50)
            if self.open[key] is not None:
                self.begin_named(key)
                self.end_named(key, 50, 50)
                self.fleet.predict(key, Prediction(tokens), self.now)

    @rule()
    def request_without_identity(self):
        self.names += 1
        name = f"g{self.names}"
        self.open[name], self.of[name] = None, ""
        route = self.fleet.request("", self.now, generation=name)
        if route is not None:
            self.take(name, route)

    @precondition(lambda self: any(self.open.values()))
    @rule(data=st.data())
    def begin(self, data):
        names = sorted(name for name, route in self.open.items() if route)
        self.begin_named(data.draw(st.sampled_from(names)))

    def begin_named(self, name):
        self.fleet.begin(name, self.now)
        self.begun.add(name)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), prompt=st.integers(0, 50), sampled=st.integers(-3, 50))
    def end(self, data, prompt, sampled):
        self.end_named(data.draw(st.sampled_from(sorted(self.open))), prompt, sampled)

    def end_named(self, name, prompt, sampled):
        self.fleet.end(name, self.now, prompt, sampled)
        self.gone(name)
        self.collect()

    def gone(self, name):
        self.open.pop(name, None)
        self.of.pop(name, None)
        self.begun.discard(name)

    @rule(name=st.sampled_from(["unknown", "a", "g1"]))
    def late_reports_change_nothing(self, name):
        if name in self.open or name in self.moving:
            return
        self.fleet.begin(name, self.now)
        self.fleet.end(name, self.now, 10, 10)
        self.fleet.move_ended(name, self.now, 10)

    @rule(key=KEYS, tokens=NUMBERS, step=st.none() | st.integers(0, 3))
    def predict(self, key, tokens, step):
        self.fleet.predict(key, Prediction(tokens, tokens), self.now, step=step)

    @rule()
    def start_moves(self):
        ended = [key for key, (_, _, until, _) in self.moving.items() if until <= self.now]
        for key in ended:
            del self.moving[key]
        for move in self.fleet.moves(self.now):
            taken = {end for each in self.moving.values() for end in each[:2]}
            assert not taken & {move.source, move.target}
            assert move.source != move.target
            first, second = self.workers[move.source], self.workers[move.target]
            assert second.usable
            assert first.weights_version == second.weights_version
            assert move.trajectory not in self.of.values()
            self.moving[move.trajectory] = (move.source, move.target, self.now + 10.0, False)

    @precondition(lambda self: self.moving)
    @rule(data=st.data())
    def a_transfer_begins(self, data):
        key = data.draw(st.sampled_from(sorted(self.moving)))
        source, target, _, begun = self.moving[key]
        if self.fleet.move_began(key, self.now) and not begun:
            self.moving[key] = (source, target, self.now + 60.0, True)
        self.collect()

    @precondition(lambda self: self.moving)
    @rule(data=st.data(), tokens=st.integers(0, 2))
    def a_transfer_ends(self, data, tokens):
        key = data.draw(st.sampled_from(sorted(self.moving)))
        self.fleet.move_ended(key, self.now, tokens)
        del self.moving[key]
        self.collect()

    def drop_planned(self, keys):
        """Forget moves that have not begun: their tool returned, or their workers changed."""
        self.moving = {k: each for k, each in self.moving.items() if each[3] or k not in keys}

    @rule(key=KEYS)
    def finish(self, key):
        self.fleet.finish(key, self.now)
        self.drop_planned({key})
        for name in [name for name, of in self.of.items() if of == key]:
            self.gone(name)
        self.collect()

    @rule(key=KEYS, worker=st.none() | st.integers(1, 3))
    def pin(self, key, worker):
        self.fleet.pin(key, worker, self.now)

    @rule(number=st.integers(1, 3), change=st.sampled_from(CHANGES))
    def a_worker_changes(self, number, change):
        known = self.workers.get(number)
        if change == "add":
            self.workers[number] = WorkerFacts(number, 2)
        elif known is None:
            return
        elif change == "lose":
            del self.workers[number]
        elif change == "drain":
            self.workers[number] = replace(known, usable=False)
        else:
            self.workers[number] = replace(known, weights_version=known.weights_version + 1)
        self.fleet.set_workers(self.workers.values(), self.now)
        self.drop_planned(set(self.moving))
        self.collect()
        for name, route in self.open.items():
            if route and name not in self.begun and not self.is_usable(route.worker):
                self.open[name] = None

    @rule()
    def a_recalled_fleet_goes_on_and_equals_the_former_one(self):
        memory = self.fleet.remember()
        former, self.fleet = self.fleet, self.fresh()
        self.fleet.recall(memory)
        assert self.fleet.remember() == memory
        twin = self.fresh()
        twin.recall(memory)
        assert self.future(former) == self.future(twin)
        assert former.remember() == twin.remember()

    def future(self, fleet):
        """Return what a fleet answers to further events."""
        later = self.now + 0.2
        answers = [fleet.moves(later), fleet.due(), fleet.plan()]
        answers += [fleet.request(key, later, generation=f"later {key}") for key in "abz"]
        answers += [fleet.move_began(key, later) for key in "abcd"]
        fleet.set_workers([WorkerFacts(number, 2) for number in (1, 2, 3)], later)
        answers += [fleet.routed(self.now + 30), fleet.moves(self.now + 30)]
        return [*answers, *(fleet.why(key) for key in "abcd")]

    @invariant()
    def counts_are_those_of_what_is_open(self):
        if not hasattr(self, "fleet"):
            return
        loads = {load.facts.number: load for load in self.fleet.facts.loads}
        assert list(loads) == sorted(self.workers)
        routed = Counter(route.worker for route in self.open.values() if route)
        kept = [*self.fleet.facts.trajectories.values()]
        for number, load in loads.items():
            assert load.generations == routed[number]
            there = [each for each in kept if each.worker == number]
            assert load.trajectories == len(there)
            assert load.context_tokens == sum(each.context_tokens for each in there) >= 0

    @invariant()
    def what_waits_says_why_and_waits_for_something(self):
        if not hasattr(self, "fleet"):
            return
        usable = any(each.usable for each in self.workers.values())
        for name, route in self.open.items():
            waits = self.fleet._routes.generations[name].waits
            assert bool(waits) == (route is None), name
            assert waits != "no_usable_worker" or not usable
            assert waits in ("", "no_usable_worker") or self.fleet.due() is not None

    @invariant()
    def trajectories_in_tools_are_those_without_a_generation(self):
        if not hasattr(self, "fleet"):
            return
        idle = set(self.fleet.facts.trajectories) - set(self.of.values())
        assert set(self.fleet.facts.in_tools) == idle


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=by_tier(10, 100, 1000), stateful_step_count=40, deadline=None
)
