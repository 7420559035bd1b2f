"""Live rollouts, workers and backends, as the loop answers queries about them."""

from __future__ import annotations

from typing import Any

import pytest

from contract.rollout_status import RolloutsStatus
from domain.rollout_events import BackendJudged, RolloutsQueried
from scheduler.runtime.loop.rollout_queries import rollouts_status
from tests.builders import a_lease, a_node
from tests.unit.core.rollout_scenario import RolloutScenario, a_backend, a_rollout, rollout_id


@pytest.fixture
def core() -> RolloutScenario:
    return RolloutScenario(a_node("n1", cpus=1))


def asked(core: RolloutScenario, **fields: object) -> RolloutsStatus:
    query = RolloutsQueried(request_id="r1", reply_to="web", **fields)  # type: ignore[arg-type]
    return rollouts_status(core.machine.state, query, 1e9, "7-0")


def test_a_waiting_rollout_says_why_and_how_many_are_before_it(core):
    core.submit_rollouts(a_rollout(1), a_rollout(2, priority=1), a_rollout(3))
    found = asked(core).rollouts
    assert [(each.id, each.position) for each in found] == [
        (rollout_id(1), 1), (rollout_id(2), 0), (rollout_id(3), 2),
    ]  # fmt: skip
    assert found[0].waiting == "no rollout worker has joined"

    core.join_worker(slots=1)
    assert asked(core, rollout_id=rollout_id(1)).rollouts[0].waiting == (
        "all 1 slots of 1 rollout workers are taken"
    )


class Looked(dict[Any, Any]):
    """Counts how often all values are looked at."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def test_a_query_looks_at_all_rollouts_twice_however_many_wait(core):
    core.submit_rollouts(*(a_rollout(number, priority=number % 3) for number in range(1, 31)))
    core.machine.state.rollouts.live = live = Looked(core.machine.state.rollouts.live)

    found = asked(core, limit=25)

    assert live.looks == 2
    assert (len(found.rollouts), found.total) == (25, 30)
    by_order = sorted(live, key=lambda each: live[each].order)
    assert [each.position for each in found.rollouts] == [
        by_order.index(each.id) for each in found.rollouts
    ]


def test_a_query_of_one_running_rollout_looks_at_no_other(core):
    core.join_worker()
    core.submit_rollouts(a_rollout(1), a_rollout(2))
    core.machine.state.rollouts.live = live = Looked(core.machine.state.rollouts.live)

    assert [each.id for each in asked(core, rollout_id=rollout_id(2)).rollouts] == [rollout_id(2)]
    assert asked(core, rollout_id=rollout_id(2), project="p").rollouts == []
    assert asked(core, rollout_id="rol_unknown").total == 0
    assert live.looks == 0


def test_pools_are_answered_when_they_are_asked_for(core):
    core.change_backends(a_backend("b1"))

    assert asked(core).pools == {}
    assert asked(core, backends=("policy", "unknown")).pools == {"policy": 1}


def test_an_assigned_rollout_shows_its_worker_and_its_progress(core):
    core.join_worker()
    core.submit_rollouts(a_rollout(1))
    core.progress(1, turns=3)

    (found,) = asked(core).rollouts

    assert (found.worker, found.attempt, found.turns, found.stage) == ("w1", 1, 3, "run")
    assert (found.waiting, found.position) == ("", None)


def test_rollouts_are_selected_by_project_task_and_group_and_counted_in_total(core):
    core.submit_rollouts(
        a_rollout(1), a_rollout(2, group="g"), a_rollout(3, task="other"), a_rollout(4, project="p")
    )

    assert [each.id for each in asked(core, project="default", limit=1).rollouts] == [rollout_id(1)]
    assert asked(core, project="default", limit=1).total == 3
    assert [each.id for each in asked(core, group="g").rollouts] == [rollout_id(2)]
    assert [each.id for each in asked(core, task="other").rollouts] == [rollout_id(3)]
    assert asked(core).states == {"waiting": 4}


def test_a_query_that_shows_none_counts_all_by_stage(core):
    core.join_worker(slots=2)
    core.submit_rollouts(*(a_rollout(number) for number in range(1, 5)), a_rollout(5, task="other"))
    core.progress(1, turns=3)

    found = asked(core, project="default", task=a_rollout(1).task, limit=0)

    assert (found.rollouts, found.total, found.stages) == ([], 4, {"run": 1})
    assert asked(core, project="default", task=a_rollout(1).task).stages == {}


def test_workers_and_backends_are_answered_when_they_are_asked_for(core):
    core.join_worker(slots=3)
    core.submit_rollouts(a_rollout(1, llm="policy"))
    core.change_backends(a_backend("b1", seats=4), a_backend("b2"))
    core.submit(a_lease("l1", cost={"llm:policy": 1}))
    core.handle(BackendJudged(pool="policy", backend="b2", unhealthy="it does not answer"))

    plain, full = asked(core), asked(core, workers=True, backends=("*",))

    assert (plain.workers, plain.backends) == ([], [])
    (worker,) = full.workers
    assert (worker.name, worker.slots, worker.rollouts) == ("w1", 3, 1)
    assert [(each.name, each.number, each.taken, each.unhealthy) for each in full.backends] == [
        ("b1", 1, 1, ""),
        ("b2", 2, 0, "it does not answer"),
    ]
    assert asked(core, backends=("unknown",)).backends == []
    assert full.pools == {"policy": 1}
    assert full.journal_id == "7-0"


def test_a_rollout_whose_handler_no_worker_has_says_which_there_are(core):
    core.join_worker(slots=4, handlers=("math", "swe"))
    core.submit_rollouts(a_rollout(1, handler="stem"))

    [found] = asked(core).rollouts

    assert found.waiting.startswith(
        "no rollout worker has the handler 'stem'; workers have math, swe"
    )
    assert asked(core, workers=True).workers[0].handlers == ("math", "swe")


def test_a_rollout_waits_for_the_slots_of_workers_that_have_its_handler(core):
    core.join_worker("w1", slots=1, handlers=("math",))
    core.join_worker("w2", slots=9, handlers=("swe",))
    core.submit_rollouts(a_rollout(1, handler="math"), a_rollout(2, handler="math"))

    assert asked(core, rollout_id=rollout_id(2)).rollouts[0].waiting == (
        "all 1 slots of 1 rollout workers are taken"
    )


def test_the_rollouts_of_a_project_are_counted_without_a_look_at_them(core):
    core.submit_rollouts(a_rollout(1), a_rollout(2), a_rollout(3, project="other"))
    core.machine.state.rollouts.live = live = Looked(core.machine.state.rollouts.live)

    assert asked(core, project="default", limit=0).total == 2
    assert live.looks == 0


def test_rollouts_of_one_door_are_selected(core):
    core.submit_rollouts(a_rollout(1), a_rollout(2, door="prorl"), a_rollout(3, door="polar"))
    assert [each.id for each in asked(core, door="prorl").rollouts] == [rollout_id(2)]
    assert len(asked(core).rollouts) == 3
