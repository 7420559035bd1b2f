"""The Kubernetes baseline, on cases that can be computed by hand."""

from __future__ import annotations

import pytest

from domain.elasticity import Elasticity
from domain.errors import InvalidRequest
from simulator.agenda import Agenda
from simulator.baselines.kubernetes import RULES, Kubernetes, PodRules
from simulator.baselines.shared_node import SharedNode, SharedRun
from simulator.cluster import GIB, Cluster, LargerCluster
from simulator.work import ActionWork
from simulator.workloads.program import Think
from tests.unit.simulator.scripts import Script, act, keep, script

PLAIN = PodRules(create_seconds=2.0, exec_seconds=0.0)


def ends(cores: int, *runs: tuple[float, float, int, bool]) -> list[float]:
    """Return when runs (begin, T_ori, cap in cores, elastic) end on a node with ``cores``."""
    agenda = Agenda()
    node, ended = SharedNode(agenda, cores * 1000), [0.0] * len(runs)
    for index, (begin, seconds, cap, elastic) in enumerate(runs):
        work = ActionWork(seconds, Elasticity(amdahl=1.0) if elastic else None)

        def done(run: SharedRun, index: int = index) -> None:
            ended[index] = agenda.now

        agenda.at(begin, node.begin, SharedRun(work, cap * 1000, done))
    while agenda.advance():
        pass
    return ended


@pytest.mark.parametrize(
    ("cores", "runs", "expected"),
    [
        (2, [(0.0, 3.0, 1, False)], [3.0]),
        (1, [(0.0, 3.0, 1, False), (0.0, 3.0, 1, False)], [6.0, 6.0]),
        (1, [(0.0, 4.0, 1, False), (2.0, 1.0, 1, False)], [5.0, 4.0]),
        (8, [(0.0, 8.0, 4, True)], [2.0]),
        # 4 and 2 cores wanted, 4 there: two each.
        (4, [(0.0, 8.0, 4, True), (0.0, 4.0, 2, True)], [3.0, 2.0]),
        # What the small one leaves goes to the large one.
        (4, [(0.0, 9.0, 4, True), (0.0, 3.0, 1, False)], [3.0, 3.0]),
    ],
    ids=["alone", "halves", "joined later", "wide", "shared evenly", "capped leaves the rest"],
)
def test_cores_are_shared(cores, runs, expected):
    assert ends(cores, *runs) == pytest.approx(expected)


def played(workload: Script, rules: PodRules, *, nodes: int = 1, cores: int = 1) -> Kubernetes:
    kubernetes = Kubernetes(workload, Cluster(nodes, cores, GIB), rules)
    kubernetes.run()
    return kubernetes


def waited(workload: Script) -> dict[str, float]:
    return {name: finish.timing.queue_seconds for name, finish in workload.answers.items()}


def line(name: str, *seconds: float):
    """Return one trajectory's actions; its number is that of its place in the script."""
    return [
        act(f"{name}{index}", each, trajectory=f"s0-{name}") for index, each in enumerate(seconds)
    ]


def test_a_small_copy_of_a_cluster_has_its_share_of_pods():
    """One node of 80 cores for five of 256: as many pods for each core, placed as many a second for each."""
    small = Cluster(1, 80, GIB, stands_for=LargerCluster(5, 1 / 16))

    rules = RULES["kubernetes(110)"].on(small)

    assert (rules.pods_per_node, rules.placed_per_second) == (round(110 * 5 / 16), 20 / 16)
    assert RULES["kubernetes"].on(small) == RULES["kubernetes"]
    assert RULES["kubernetes(110)"].on(Cluster(5, 256, GIB)) == RULES["kubernetes(110)"]


def test_a_pod_is_made_once_for_a_trajectory():
    workload = script(line("t0", 1.0, 3.0))

    kubernetes = played(workload, PLAIN)

    assert waited(workload) == {"t00": 2.0, "t01": 0.0}
    assert kubernetes.trainers.step_seconds == [6.0]


def test_a_pod_that_waits_too_long_is_given_up_and_asked_for_again():
    """One pod fits, for six seconds: the other one is given up at 3 s, asked for at 4, given up at 7, asked for at 9."""
    rules = PodRules(
        pods_per_node=1, create_seconds=0.0, exec_seconds=0.0, pending_seconds=3.0, again_seconds=1.0
    )  # fmt: skip
    workload = script(line("t0", 8.0), line("t1", 1.0))

    played(workload, rules)

    assert waited(workload) == {"t00": 0.0, "t10": 9.0}


def test_memory_of_environments_limits_pods():
    """Two environments of 600 MiB do not fit in a node of one GiB together."""
    rules = PodRules(create_seconds=0.0, exec_seconds=0.0, memory=True)
    large = 600 * 2**20
    workload = script(*(
        [act(f"t{n}0", 1.0, trajectory=f"s0-t{n}", memory_bytes=large)] for n in range(2)
    ))  # fmt: skip

    played(workload, rules, cores=4)

    assert waited(workload) == {"t00": 0.0, "t10": 1.0}


def test_pods_wait_until_what_they_ask_for_is_free():
    """Half a core each: the third pod waits until the first trajectory is over."""
    workload = script(
        line("t0", 1.0), [Think(0.5), *line("t1", 9.0)], [Think(1.0), *line("t2", 1.0)]
    )

    played(workload, PLAIN)

    # The first runs from 2, alone until 2.5, then at half speed until 3.5.
    assert waited(workload)["t20"] == pytest.approx(3.5 + 2.0 - 1.0)


def test_the_control_plane_places_pods_at_its_pace():
    workload = script(*(line(f"t{number}", 1.0) for number in range(3)))

    played(workload, PodRules(placed_per_second=2.0, exec_seconds=0.0), cores=8)

    assert sorted(waited(workload).values()) == pytest.approx([2.0, 2.5, 3.0])


def test_a_node_takes_no_more_pods_than_its_limit():
    workload = script(line("t0", 1.0), line("t1", 1.0))

    played(workload, PodRules(pods_per_node=1, exec_seconds=0.0), cores=8)

    assert sorted(waited(workload).values()) == [2.0, 5.0]


def test_a_command_pays_for_entering_its_pod():
    workload = script(line("t0", 1.0))

    played(workload, PodRules(exec_seconds=0.25))

    timing = workload.answers["t00"].timing
    assert (timing.overhead_seconds, timing.execution_seconds) == (0.25, 1.0)
    assert timing.act_seconds == 3.25


def test_used_cores_are_counted():
    tally = played(script(line("t0", 1.0), line("t1", 1.0)), PLAIN, cores=4).tally

    assert tally.held_core_seconds == pytest.approx(2.0)
    assert tally.useful_core_seconds == 2.0


def test_a_command_outside_a_trajectory_is_refused():
    with pytest.raises(InvalidRequest, match="command of a trajectory"):
        played(script([keep("a", 1.0, ttl_seconds=9.0)]), PLAIN)
