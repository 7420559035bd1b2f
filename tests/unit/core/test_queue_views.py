"""Views of queues: how many actions wait, and what the next one waits for."""

from __future__ import annotations

from domain.ids import ActionId
from scheduler.core.state import snapshot
from scheduler.runtime.rendering import queues_response, wait_details
from tests.builders import GIB, a_node, an_action, make_ledger


def test_actions_with_equal_demands_share_a_queue(core):
    scenario = core(a_node("n1", cpus=4))
    scenario.submit(an_action("running", cost={"cpu": 4}))
    scenario.submit(*(an_action(f"small{n}") for n in range(3)), an_action("wide", cost={"cpu": 2}))

    seen = queues_response(scenario.machine.queues(10))

    assert (seen.lines, seen.waiting) == (2, 4)
    assert [(line.waiting, line.needs, line.head) for line in seen.items] == [
        (3, {"cpu": 1}, "small0"),
        (1, {"cpu": 2}, "wide"),
    ]
    assert seen.items[0].why.code == "short_of"
    assert seen.items[0].why == wait_details(scenario.machine.explain("small0"))


def test_a_waiting_action_keeps_the_names_of_its_task(core):
    scenario = core(a_node("n1", cpus=1))
    names = [f"a{number}" for number in range(3)]
    scenario.submit(*(an_action(name, task="".join(("some", "task"))) for name in names))

    restored = snapshot.load(snapshot.dump(scenario.machine), make_ledger)

    for machine in (scenario.machine, restored):
        tasks = [machine.state.actions[ActionId(name)].action.task for name in names]
        assert tasks == ["sometask"] * 3
        assert all(task is tasks[0] for task in tasks)


def test_only_the_longest_queues_are_shown_and_all_are_counted(core):
    scenario = core(a_node("n1", cpus=4))
    scenario.submit(an_action("running", cost={"cpu": 4}))
    scenario.submit(*(an_action(f"a{n}", cost={"cpu": n}) for n in (1, 2, 3)), an_action("b"))

    seen = queues_response(scenario.machine.queues(1))

    assert (seen.lines, seen.waiting, len(seen.items)) == (3, 4, 1)
    assert seen.items[0].needs == {"cpu": 1}


def test_a_head_waits_longer_while_no_event_arrives(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("running"), an_action("waits"))
    submitted = scenario.machine.state.now

    (line,) = queues_response(scenario.machine.queues(10, at=submitted + 60)).items

    assert (line.head, line.waited_seconds) == ("waits", 60)


def test_memory_of_a_first_grant_is_part_of_what_a_line_needs(core):
    scenario = core(a_node("n1", memory_bytes=GIB))
    scenario.submit(an_action("x", trajectory="t1", memory_bytes=GIB))
    scenario.submit(an_action("y", trajectory="t2", memory_bytes=GIB))

    (line,) = queues_response(scenario.machine.queues(10)).items

    assert (line.memory_bytes, line.trajectory) == (GIB, "t2")
    assert line.why.resource == "memory:n1"


def test_no_action_waits_in_an_idle_system(core):
    scenario = core(a_node("n1"))
    scenario.submit(an_action("a"))
    assert scenario.machine.queues(10).items == []


def test_a_project_sees_its_own_part_of_each_queue(core):
    scenario = core(a_node("n1", cpus=4))
    scenario.submit(an_action("running", cost={"cpu": 4}))
    scenario.submit(an_action("theirs0"), an_action("theirs1"), an_action("wide", cost={"cpu": 2}))
    scenario.submit(*(an_action(f"ours{n}", project="lab") for n in range(2)))

    seen = queues_response(scenario.machine.queues(10, ("lab",)))

    assert (seen.lines, seen.waiting) == (1, 2)
    assert [(line.waiting, line.head, line.project) for line in seen.items] == [(2, "ours0", "lab")]
    assert (seen.items[0].why.code, seen.items[0].why.position) == ("behind", 3)
    assert scenario.machine.queues(10, ("strange",)).items == []
