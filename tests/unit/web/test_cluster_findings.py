"""Faults of a cluster are found from its facts; a healthy cluster has no finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from contract.machine_facts import (
    CgroupFacts,
    ClockDifference,
    DiskFacts,
    MachineFacts,
    clock_difference,
)
from contract.node_group_reports import InstanceReport, NodeGroupReport
from contract.responses import rfc3339
from domain.node_groups import NodeGroupSpec
from domain.protection import Protection, UidMode
from tangram_web.doctor.cluster_facts import ClusterFacts, ExaminedNode, ExaminedPart
from tangram_web.doctor.cluster_finding import ClusterFinding
from tangram_web.doctor.cluster_reading import findings_of
from tangram_web.lib.redis_replication import RedisReplication

NOW = 1_800_000_000.0
GIB = 2**30
PROTECTED = Protection("bwrap", UidMode.WORKER, seccomp=True, memory="limited by control groups")
MACHINE = MachineFacts(
    ClockDifference(-0.02, 0.001),
    (DiskFacts("/data", 80 * GIB, 100 * GIB, 2 * GIB),),
    cgroups=CgroupFacts(2, delegated=True),
)
NODE = ExaminedNode(
    name="n1", hostname="h1", version="1.4.2", isolation="bwrap", protection=PROTECTED,
    machine=MACHINE, door_problem="",
)  # fmt: skip
GROUP = NodeGroupReport(
    NodeGroupSpec("slurm", count=2),
    wanted=2,
    ready=2,
    instances=[InstanceReport(f"g-{n}", "running", f"j{n}", joined=True) for n in (1, 2)],
    launch_seconds=70.0,
)
HEALTHY = ClusterFacts(
    now=NOW,
    web_host="w1",
    web_clock=ClockDifference(0.01, 0.002),
    redis="Redis at r1:6379",
    leader=ExaminedPart(
        name="loop@l1:1:a", role="loop", version="1.4.0", clock=ClockDifference(0.0, 0.001)
    ),
    parts=[ExaminedPart(name="web@w1:2:b", role="web", version="1.4.1")],
    nodes=[NODE],
    groups={"g": GROUP},
)


def found(facts: ClusterFacts) -> list[tuple[str, str, str]]:
    return [(each.severity.value, each.kind, each.subject) for each in findings_of(facts)]


def only(facts: ClusterFacts) -> ClusterFinding:
    (finding,) = findings_of(facts)
    assert finding.cure
    return finding


def with_node(**changes: Any) -> ClusterFacts:
    return replace(HEALTHY, nodes=[replace(NODE, **changes)])


def test_a_standby_without_a_state_is_noted() -> None:
    standby = ExaminedPart(name="loop@l2:1:c", role="standby", version="1.4.0", cold="it differs")
    finding = only(replace(HEALTHY, parts=[standby]))
    assert (finding.severity, finding.subject) == ("note", standby.name)
    assert "it differs" in finding.sentence
    assert found(replace(HEALTHY, parts=[replace(standby, cold="")])) == []


def with_machine(**changes: Any) -> ClusterFacts:
    return with_node(machine=msgspec.structs.replace(MACHINE, **changes))


def with_group(**changes: Any) -> ClusterFacts:
    return replace(HEALTHY, groups={"g": msgspec.structs.replace(GROUP, **changes)})


def test_a_healthy_cluster_has_no_finding() -> None:
    assert findings_of(HEALTHY) == []


def test_an_installation_without_nodes_and_groups_has_no_finding() -> None:
    assert findings_of(replace(HEALTHY, nodes=[], groups={}, has_keeper=False)) == []


@pytest.mark.parametrize(
    ("seconds", "severity", "way"),
    [(93.2, "fault", "93 s ahead of"), (-2.5, "fault", "2.5 s behind"), (0.8, "note", "0.8 s ahead of")],
)  # fmt: skip
def test_the_clock_of_a_node_that_differs_is_found_with_its_seconds(
    seconds: float, severity: str, way: str
) -> None:
    finding = only(with_machine(clock=ClockDifference(seconds, 0.001)))
    assert (finding.severity, finding.kind, finding.subject) == (severity, "clock", "n1")
    assert f"node n1 (host h1) is {way} the loop's" in finding.sentence
    assert "NTP" in finding.cure


def test_a_difference_that_a_slow_answer_explains_is_none() -> None:
    assert findings_of(with_machine(clock=ClockDifference(3.0, 2.9))) == []


def test_the_clock_of_the_web_process_is_compared_with_the_loop() -> None:
    finding = only(replace(HEALTHY, web_clock=ClockDifference(-40.0)))
    assert (finding.severity, finding.subject) == ("fault", "web@w1")
    assert "web process on w1 is 40 s behind the loop's" in finding.sentence


def test_a_loop_whose_clock_is_wrong_is_not_blamed_on_others_alone() -> None:
    leader = replace(HEALTHY.leader, clock=ClockDifference(30.0))  # type: ignore[type-var]
    assert found(replace(HEALTHY, leader=leader)) == [
        ("fault", "clock", "n1"), ("fault", "clock", "redis"), ("fault", "clock", "web@w1"),
    ]  # fmt: skip


def test_without_the_clock_of_the_loop_that_of_redis_is_the_measure() -> None:
    leader = replace(HEALTHY.leader, clock=None)  # type: ignore[type-var]
    facts = replace(with_machine(clock=ClockDifference(9.0)), leader=leader)
    fault, unknown = findings_of(facts)
    assert "9.0 s ahead of that of Redis" in fault.sentence
    assert (unknown.severity, unknown.subject) == ("unknown", "loop")


def test_a_clock_is_compared_at_the_middle_of_the_call() -> None:
    assert clock_difference(100.0, 100.4, (90, 200_000)) == ClockDifference(10.0, 0.2)


@pytest.mark.parametrize(
    ("version", "severity"),
    [("1.3.9", "note"), ("1.5.0", "note"), ("1.2.0", "fault"), ("0.4.0", "fault"), ("", "unknown")],
)
def test_versions_may_be_one_release_apart(version: str, severity: str) -> None:
    finding = only(with_node(version=version))
    assert (finding.severity, finding.kind, finding.subject) == (severity, "version", "n1")
    assert version in finding.sentence


def test_a_newer_node_has_the_loop_upgraded_first() -> None:
    assert only(with_node(version="1.6.0")).cure.startswith("upgrade the loop first")
    assert only(with_node(version="1.2.0")).cure.startswith("upgrade it")


def test_parts_of_another_or_no_version_are_found() -> None:
    parts = [
        ExaminedPart(name="jobs@h:1:a", role="jobs", version="1.1.0"),
        ExaminedPart(name="projector@h:1:a", role="projector"),
    ]
    assert found(replace(HEALTHY, parts=parts)) == [
        ("fault", "version", "jobs@h:1:a"), ("unknown", "version", "projector"),
    ]  # fmt: skip


def test_a_loop_without_a_version_is_not_known_and_a_cluster_without_a_loop_is_a_fault() -> None:
    leader = replace(HEALTHY.leader, version="")  # type: ignore[type-var]
    assert found(replace(HEALTHY, leader=leader)) == [("unknown", "version", "loop")]
    assert found(replace(HEALTHY, leader=None)) == [("fault", "part_dead", "loop")]


def test_a_door_that_is_not_reached_is_a_fault_with_its_address() -> None:
    said = "node n1 (h1) cannot be reached at h1:7411: Connection refused"
    finding = only(with_node(door_problem=said))
    assert (finding.severity, finding.kind, finding.subject) == ("fault", "door", "n1")
    assert finding.sentence.startswith("Node n1 (h1) cannot be reached at h1:7411")
    assert "the web process on w1" in finding.sentence
    assert "TANGRAM_NODE_DOOR_ADDRESS" in finding.cure


def test_a_door_that_was_not_tried_in_time_is_no_finding_and_a_missing_one_is_not_known() -> None:
    assert findings_of(with_node(door_problem=None)) == []
    assert found(with_node(has_door=False, door_problem=None)) == [("unknown", "door", "n1")]


def test_a_silent_node_is_one_fault_whatever_it_reported_before() -> None:
    facts = with_node(is_silent=True, lost_at=NOW - 73, version="0.1.0", machine=None)
    finding = only(facts)
    assert (finding.severity, finding.kind) == ("fault", "node_lost")
    assert "no heartbeat has reached Redis for 73 s" in finding.sentence
    assert "Redis at r1:6379" in finding.cure


def test_a_silent_node_that_is_drained_is_a_note() -> None:
    assert found(with_node(is_silent=True, drained=True)) == [("note", "node_lost", "n1")]


def test_a_full_disk_is_a_fault_with_bytes_and_share() -> None:
    disk = DiskFacts("/data", GIB, 100 * GIB, 2 * GIB)
    refusal = "the disk of /data has 1024 of 102400 MiB free"
    finding = only(with_machine(disks=(disk,), disk_refusal=refusal))
    assert (finding.severity, finding.kind) == ("fault", "disk_short")
    assert refusal in finding.sentence
    assert "1,073,741,824 bytes, 1.0%" in finding.sentence


def test_a_disk_that_is_nearly_full_is_a_note() -> None:
    disk = DiskFacts("/data", 3 * GIB, 100 * GIB, 2 * GIB)
    finding = only(with_machine(disks=(disk,)))
    assert (finding.severity, finding.kind) == ("note", "disk_short")
    assert "/data has 3,221,225,472 bytes, 3.0% free" in finding.sentence


WATCHED = Protection(
    "bwrap", UidMode.WORKER, memory="watched, without control groups: Permission denied"
)


@pytest.mark.parametrize(
    ("cgroups", "severity", "words", "cure"),
    [
        (CgroupFacts(1), "fault", "of version 1", "systemd.unified_cgroup_hierarchy=1"),
        (CgroupFacts(2), "fault", "of version 2", "Delegate=memory pids"),
        (CgroupFacts(0), "fault", "no control groups are mounted", "/sys/fs/cgroup"),
        (CgroupFacts(2, contained=True), "note", "its container limits", "writable control groups"),
    ],
    ids=["version 1", "not delegated", "none", "in a container"],
)  # fmt: skip
def test_control_groups_that_the_isolation_cannot_use_are_found(
    cgroups: CgroupFacts, severity: str, words: str, cure: str
) -> None:
    machine = msgspec.structs.replace(MACHINE, cgroups=cgroups)
    finding = only(with_node(protection=WATCHED, machine=machine))
    assert (finding.severity, finding.kind, finding.subject) == (severity, "cgroups", "n1")
    assert words in finding.sentence
    assert cure in finding.cure


def test_version_1_that_limits_memory_and_a_job_of_slurm_are_no_finding() -> None:
    assert findings_of(with_machine(cgroups=CgroupFacts(1, delegated=True))) == []
    machine = msgspec.structs.replace(MACHINE, cgroups=CgroupFacts(job="17"))
    assert findings_of(with_node(protection=WATCHED, machine=machine)) == []


FORBIDDEN = "/proc/sys/user/max_user_namespaces is 0: set user.max_user_namespaces=15000"


def test_user_namespaces_that_are_forbidden_are_a_fault_where_the_isolation_needs_them() -> None:
    finding = only(with_machine(no_user_namespaces=FORBIDDEN))
    assert (finding.severity, finding.kind) == ("fault", "sandbox")
    assert FORBIDDEN in finding.sentence
    docker = Protection("docker-api", UidMode.IMAGE)
    machine = msgspec.structs.replace(MACHINE, no_user_namespaces=FORBIDDEN)
    assert findings_of(with_node(isolation="docker", protection=docker, machine=machine)) == []


def test_a_node_without_a_sandbox_is_a_fault_where_its_pool_requires_one() -> None:
    plain = Protection("process", missing="bubblewrap does not work here")
    finding = only(with_node(isolation="process", protection=plain))
    assert "gets no actions, as pool default requires a sandbox" in finding.sentence
    assert "bubblewrap does not work here" in finding.sentence
    assert findings_of(with_node(isolation="process", protection=plain, needs_sandbox=False)) == []


def test_facts_that_an_earlier_worker_lacks_are_not_known_and_no_fault() -> None:
    assert found(with_node(machine=None)) == [("unknown", "machine", "n1")]
    assert found(with_node(machine=MachineFacts())) == []


def test_what_an_engine_lacks_is_a_fault_in_the_words_of_its_launcher() -> None:
    problem = "no machine of the cluster is up: scontrol update NodeName=NAME State=RESUME"
    finding = only(with_group(problems=[problem]))
    assert (finding.severity, finding.kind, finding.subject) == ("fault", "engine", "g")
    assert finding.sentence == f"Engine slurm of node group g: {problem}."


def test_an_engine_that_does_not_answer_is_one_fault() -> None:
    error = "there is no program sinfo: install it"
    assert found(with_group(error=error, problems=[error])) == [("fault", "engine", "g")]


WAITING = [
    InstanceReport("g-1", "running", "j1", joined=True),
    InstanceReport("g-2", "pending", "j2", reason="Resources"),
]


@pytest.mark.parametrize(
    ("launch_seconds", "since", "is_found"),
    [(70.0, 139, False), (70.0, 141, True), (5.0, 119, False), (5.0, 121, True), (0.0, 599, False), (0.0, 601, True)],
)  # fmt: skip
def test_a_group_below_its_count_is_a_fault_once_launches_should_have_ended(
    launch_seconds: float, since: float, is_found: bool
) -> None:
    facts = with_group(
        instances=WAITING, ready=1, below_since=rfc3339(NOW - since), launch_seconds=launch_seconds
    )
    assert found(facts) == ([("fault", "node_group", "g")] if is_found else [])


def test_a_group_below_its_count_says_why_its_instances_wait() -> None:
    facts = with_group(instances=WAITING, ready=1, below_since=rfc3339(NOW - 900))
    finding = only(facts)
    assert "has 1 of 2 nodes for 15 min 0 s, and its longest launch took 70 s" in finding.sentence
    assert "g-2 is pending (Resources) and has not joined" in finding.sentence


def test_groups_that_no_process_keeps_are_a_fault() -> None:
    assert found(replace(HEALTHY, has_keeper=False)) == [("fault", "node_group_keeper", "keeper")]
    assert found(replace(HEALTHY, groups={"g": None})) == [("unknown", "node_group", "g")]


def test_faults_come_before_notes_and_notes_before_what_is_not_known() -> None:
    nodes = [
        replace(NODE, name="a", machine=None),
        replace(NODE, name="b", version="1.3.0"),
        replace(NODE, name="c", is_silent=True),
    ]
    severities = [each.severity.value for each in findings_of(replace(HEALTHY, nodes=nodes))]
    assert severities == ["fault", "note", "unknown"]


@pytest.mark.parametrize(
    ("replicated", "wait", "expected"),
    [
        (RedisReplication(2, needs_replicas=True, has_sentinel=True), 1, []),
        (RedisReplication(0), 0, []),
        (RedisReplication(2, needs_replicas=False, has_sentinel=True), 0, ["fault", "note"]),
        (RedisReplication(2, needs_replicas=False, has_sentinel=True), 1, ["note"]),
        (RedisReplication(2, needs_replicas=True, has_sentinel=True), 0, ["note"]),
        (None, 1, []),
    ],
)
def test_what_a_promotion_would_lose_is_found(
    replicated: RedisReplication | None, wait: int, expected: list[str]
) -> None:
    facts = replace(HEALTHY, replication=replicated, wait_replicas=wait)
    assert found(facts) == [(each, "redis_failover", "redis") for each in expected]


def test_a_replica_that_must_confirm_and_is_missing_is_a_fault() -> None:
    finding = only(replace(HEALTHY, replication=RedisReplication(1), wait_replicas=2))
    assert (finding.severity, finding.kind) == ("fault", "redis_replicas")
    assert finding.sentence.startswith("1 of the 2 replicas")
