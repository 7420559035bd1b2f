"""One window, two declared clusters side by side: quotas, shares and GPU services tell. Simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from domain.decisions import Finish, Grant
from domain.errors import InvalidRequest
from domain.inventory import Config, PoolConfig, ProjectConfig
from domain.limits import Limits, Quota, Share
from domain.resources import MILLI
from domain.services import Degree, Engine, GpuService
from simulator import job
from simulator.cluster import GIB, Cluster
from simulator.compare import Scene, run
from simulator.overheads import NONE
from simulator.request import read_request
from simulator.result import Result
from simulator.workloads.program import Act, Think, Workload
from simulator.workloads.recorded import JournalWriter, read_journal
from simulator.workloads.services import Arrival, ServiceCalls, models
from tests.unit.simulator.scripts import act, script

NOW, THEN = "as it is", "as it would be"
API = "api:x"
CONFIG = Config(
    projects={name: ProjectConfig(name) for name in ("default", "other")},
    pools={"default": PoolConfig("default", "minimum")},
    resources={API: 2 * MILLI},
)


def window(folder: Path, workload: Workload, cluster: Cluster) -> Path:
    path = folder / "journal.jsonl"
    with path.open("wb") as file:
        run(Scene(workload, cluster, NONE), "minimum", watch=JournalWriter(file))
    return path


def calls(folder: Path, *projects: str) -> Path:
    """A window with one call of a second for each project, all at once, where all had room."""
    workload = script(*(
        [act(f"a{number}", 1.0, project=project, cost={API: 1})]
        for number, project in enumerate(projects)
    ))  # fmt: skip
    return window(folder, workload, Cluster(1, 1, GIB, apis={API: 100}))


def compared(
    trace: Path, now: Config, then: Config, asked: dict[str, Any] | None = None, **cluster: Any
) -> dict[str, Result]:
    """Play a window under both, as a page asks for it: through JSON."""
    return {each.policy: each.result for each in outcome(trace, now, then, asked, **cluster).runs}


def outcome(
    trace: Path, now: Config, then: Config, asked: dict[str, Any] | None = None, **cluster: Any
) -> job.JobResult:
    sizes = {"nodes": 1, "cores": 1, "memory_gib": 1, **cluster}
    request = read_request(msgspec.json.decode(msgspec.json.encode({
        "workload": "recorded", "policies": [NOW, THEN], **(asked or {}),
        "variants": {NOW: {"config": now, **sizes}, THEN: {"config": then, **sizes}},
    })))  # fmt: skip
    return job.play(request, trace, lambda *_: None)


def test_a_quota_holds_calls_back(tmp_path: Path):
    metered = msgspec.structs.replace(
        CONFIG, limits={API: Limits(quotas=(Quota(2 * MILLI, window_seconds=10.0),))}
    )

    results = compared(calls(tmp_path, *["default"] * 4), CONFIG, metered)

    assert results[NOW].whole.queue.most == pytest.approx(1.0, abs=0.2)
    assert results[THEN].whole.queue.most == pytest.approx(10.0, abs=0.2)


def share(nominal: int, borrow: int) -> Config:
    parts = {API: {"default": Share(nominal * MILLI, borrow=borrow * MILLI)}}
    return msgspec.structs.replace(CONFIG, shares=parts)


def test_a_share_bounds_what_its_project_takes(tmp_path: Path):
    results = compared(calls(tmp_path, *["default"] * 4), CONFIG, share(1, 0))

    assert results[NOW].whole.queue.most == pytest.approx(1.0, abs=0.2)
    assert results[THEN].whole.queue.most == pytest.approx(3.0, abs=0.2)


def test_actions_that_would_wait_for_ever_are_reported(tmp_path: Path):
    paused = PoolConfig("default", "minimum", paused=True)

    with pytest.raises(InvalidRequest, match="as it would be: some actions would wait for ever"):
        compared(
            calls(tmp_path, "default"),
            CONFIG,
            msgspec.structs.replace(CONFIG, pools={"default": paused}),
        )


def test_more_calls_at_once_end_the_wait_for_a_service(tmp_path: Path):
    arrivals = [Arrival(1.0, "m0") for _ in range(4)]
    served = models(("m0",), 2.0, 80 * GIB)
    trace = window(tmp_path, ServiceCalls(arrivals, 1.0), Cluster(1, 4, GIB, gpus=1, models=served))
    alone = GpuService(Engine.PROCESS, (Degree(1, GIB),), command=("serve",))
    batched = msgspec.structs.replace(alone, max_concurrency=4)
    now, then = (
        msgspec.structs.replace(CONFIG, services={"m0": each}) for each in (alone, batched)
    )

    results = compared(trace, now, then, gpus=1, restores={"m0": 3.0})

    assert results[NOW].restores == results[THEN].restores == 1
    assert results[NOW].whole.act.most > results[THEN].whole.act.most + 2.0
    assert results[THEN].whole.overhead.most == pytest.approx(3.0, abs=0.2)


def test_variants_are_of_recorded_windows(tmp_path: Path):
    request = read_request({"policies": [NOW], "variants": {NOW: {
        "config": {}, "nodes": 1, "cores": 1, "memory_gib": 1}}})  # fmt: skip

    with pytest.raises(InvalidRequest, match="recorded window"):
        job.play(request, None, lambda *_: None)


def limited(units: int) -> Config:
    return msgspec.structs.replace(CONFIG, resources={API: units * MILLI})


def early_and_late(folder: Path) -> Path:
    """A call of ten seconds from the beginning on, and one of a second after six."""
    early: list[Think | Act] = [act("early", 10.0, cost={API: 1})]
    late: list[Think | Act] = [Think(6.0), act("late", 1.0, cost={API: 1})]
    return window(folder, script(early, late), Cluster(1, 1, GIB, apis={API: 100}))


def test_actions_that_ran_before_the_window_hold_their_units_and_do_not_count(tmp_path: Path):
    trace = early_and_late(tmp_path)

    played = outcome(trace, limited(1), limited(2), {"counts_from": 5.0})

    assert (played.actions, played.before) == (1, 1)
    results = {each.policy: each.result for each in played.runs}
    assert [each.whole.actions for each in results.values()] == [1, 1]
    assert results[NOW].whole.queue.most == pytest.approx(4.0, abs=0.1)
    assert results[THEN].whole.queue.most == pytest.approx(0.0, abs=0.1)
    # Counted from the beginning of the window on: held for five of six seconds, then for another one.
    assert results[NOW].virtual_seconds == pytest.approx(6.0, abs=0.1)
    assert results[NOW].granted[API] == pytest.approx(1.0, abs=0.02)


def test_a_window_of_which_nothing_is_before_counts_it_all(tmp_path: Path):
    played = outcome(early_and_late(tmp_path), limited(1), limited(1), {"counts_from": 0.0})

    assert (played.actions, played.before) == (2, 0)


def test_a_window_after_the_end_of_the_journal_is_refused(tmp_path: Path):
    with pytest.raises(InvalidRequest, match="no action ran to its end in this window"):
        outcome(early_and_late(tmp_path), limited(1), limited(1), {"counts_from": 99.0})


def test_the_former_configuration_is_in_force_until_the_window_begins(tmp_path: Path):
    """What it granted counts against the quotas of the new one, as it does in production."""

    def of(units: int) -> Config:
        quota = Quota(units * MILLI, window_seconds=8.0)
        return msgspec.structs.replace(limited(9), limits={API: Limits(quotas=(quota,))})

    results = compared(early_and_late(tmp_path), of(2), of(1), {"counts_from": 5.0})

    # The early call was granted at 0 s, which counts for eight.
    assert results[NOW].whole.queue.most == pytest.approx(0.0, abs=0.1)
    assert results[THEN].whole.queue.most == pytest.approx(2.0, abs=0.1)


def test_a_quota_begins_with_what_was_used_before(tmp_path: Path):
    def of(units: int) -> Config:
        quota = Quota(units * MILLI, window_seconds=1000.0)
        return msgspec.structs.replace(limited(9), limits={API: Limits(quotas=(quota,))})

    trace = calls(tmp_path, *["default"] * 2)

    results = compared(trace, of(4), of(6), {"used": {API: [3 * MILLI]}})

    assert results[NOW].whole.queue.most == pytest.approx(1000.0, abs=1.0)
    assert results[THEN].whole.queue.most == pytest.approx(0.0, abs=0.1)


def machine(cores: int, **more: Any) -> dict[str, Any]:
    cpu = {"capacity": cores * MILLI, "groups": [list(range(cores))]}
    return {"cpu": cpu, "memory": {"capacity": GIB}, **more}


def test_nodes_are_as_large_as_they_are(tmp_path: Path):
    workload = script(*([act(f"a{number}", 1.0)] for number in range(8)))
    trace = window(tmp_path, workload, Cluster(1, 8, GIB))
    asked = {"machines": {"big": machine(4), "small": machine(1)}}
    drained = msgspec.structs.replace(CONFIG, drained_nodes=frozenset({"small"}))

    results = compared(trace, CONFIG, drained, asked, nodes=2, cores=4)

    # Five at once, then three; without the small one four and four.
    assert results[NOW].whole.queue.mean == pytest.approx(3 / 8, abs=0.05)
    assert results[THEN].whole.queue.mean == pytest.approx(4 / 8, abs=0.05)
    assert results[THEN].granted["cpu"] == pytest.approx(1.0, abs=0.05)


def test_a_node_that_is_drained_was_never_used(tmp_path: Path):
    """Else who had its environment there would wait for it until its time to live is over."""
    workload = script(
        [act("a", 2.0, trajectory="t1"), act("b", 1.0, trajectory="t1")],
        [act("c", 2.0, trajectory="t2"), Think(4.0), act("d", 1.0, trajectory="t2")],
    )
    trace = window(tmp_path, workload, Cluster(2, 1, GIB))
    asked = {"machines": {"n1": machine(1), "n2": machine(1)}, "counts_from": 3.0}
    drained = msgspec.structs.replace(CONFIG, drained_nodes=frozenset({"n2"}))

    results = compared(trace, CONFIG, drained, asked, nodes=2)

    assert results[THEN].whole.act.most < 60.0


def test_gpus_are_where_they_are(tmp_path: Path):
    served = models(("m0", "m1"), 2.0, 80 * GIB)
    calls_ = ServiceCalls([Arrival(1.0, name) for name in served], 1.0)
    trace = window(tmp_path, calls_, Cluster(1, 4, GIB, gpus=2, models=served))
    large = GpuService(Engine.PROCESS, (Degree(1, 60 * GIB),), command=("serve",))
    config = msgspec.structs.replace(CONFIG, services={"m0": large, "m1": large})
    gpu = {"capacity": MILLI, "groups": [[0]], "memory_bytes": 80 * GIB}
    asked = {"machines": {"n1": machine(1, gpu=gpu), "n2": machine(1, gpu=gpu)}}
    drained = msgspec.structs.replace(config, drained_nodes=frozenset({"n2"}))

    results = compared(trace, config, drained, asked, nodes=2, gpus=2)

    assert results[NOW].whole.queue.most < 0.5
    assert results[THEN].whole.queue.most > 1.0


def test_services_begin_in_memory_where_they_are(tmp_path: Path):
    """Both on one GPU, side by side: a node that joins would have room for the first of them alone."""
    served = models(("m0", "m1"), 2.0, 80 * GIB)
    calls_ = ServiceCalls([Arrival(at, name) for at, name in ((1.0, "m0"), (9.0, "m1"))], 1.0)
    trace = window(tmp_path, calls_, Cluster(1, 4, GIB, gpus=2, models=served))
    small = GpuService(Engine.PROCESS, (Degree(1, 30 * GIB),), command=("serve",))
    config = msgspec.structs.replace(CONFIG, services={"m0": small, "m1": small})

    def asked(*residents: str) -> dict[str, Any]:
        gpu = {"capacity": MILLI, "groups": [[0]], "memory_bytes": 80 * GIB,
               "residents": [[name, [0]] for name in residents]}  # fmt: skip
        return {"machines": {"n1": machine(1, gpu=gpu)}}

    def restores(*residents: str) -> list[int]:
        results = compared(trace, config, config, asked(*residents), gpus=1)
        return [results[name].restores for name in (NOW, THEN)]

    assert restores() == [2, 2]
    assert restores("m1") == [1, 1]
    assert restores("m0", "m1", "gone") == [0, 0]


def with_waiters(folder: Path, *costs: int) -> Path:
    """A window in which the first of some calls has ended, and the others have not been granted."""
    workload = script(*([act(f"a{n}", 1.0, cost={API: cost})] for n, cost in enumerate(costs)))
    whole = read_journal(window(folder, workload, Cluster(1, 1, GIB, apis={API: 100})))
    path = folder / "cut"
    with path.open("wb") as file:
        for entry in whole:
            kept = [each for each in entry.decisions
                    if not isinstance(each, (Grant, Finish)) or each.action_id == "a0"]  # fmt: skip
            file.write(msgspec.json.encode(msgspec.structs.replace(entry, decisions=kept)) + b"\n")
    return path


def test_waiting_actions_take_the_duration_of_similar_ones(tmp_path: Path):
    def of(units: int) -> Config:
        day = Quota(units * MILLI, window_seconds=86_400.0)
        return msgspec.structs.replace(limited(9), limits={API: Limits(quotas=(day,))})

    reported = outcome(with_waiters(tmp_path, 1, 1, 1), of(1), of(3))

    assert (reported.actions, reported.guessed, reported.left_out) == (3, 2, 0)
    results = {each.policy: each.result for each in reported.runs}
    assert results[NOW].whole.queue.most > 86_000
    assert results[THEN].whole.queue.most < 1.0
    assert results[THEN].whole.execution.mean == pytest.approx(1.0, abs=0.1)


def test_actions_without_a_similar_finished_one_are_left_out(tmp_path: Path):
    path = with_waiters(tmp_path, 1, 1)
    path.write_bytes(path.read_bytes().replace(b'"id":"a1"', b'"family":"other","id":"a1"'))

    reported = outcome(path, limited(2), limited(3))

    assert (reported.actions, reported.guessed, reported.left_out) == (1, 0, 1)


def test_each_run_and_the_measurement_have_one_row_for_each_action(tmp_path: Path):
    played = outcome(early_and_late(tmp_path), limited(1), limited(2), {"counts_from": 5.0})

    now, then = (each.rows for each in played.runs)
    assert now is not None
    assert then is not None
    assert played.measured is not None
    assert now.trajectory == then.trajectory == played.measured.trajectory
    assert [len(each.queue) for each in (now, then, played.measured)] == [1, 1, 1]
    assert now.queue[0] == pytest.approx(4.0, abs=0.1)
    assert then.queue[0] == pytest.approx(0.0, abs=0.1)
    assert played.measured.queue[0] == pytest.approx(0.0, abs=0.1)


def test_plots_of_configurations_say_so(tmp_path: Path):
    played = outcome(early_and_late(tmp_path), limited(1), limited(2), {"counts_from": 5.0})

    bars = played.plots[0].svg
    assert "mean seconds of an action by configuration" in bars
    assert "var(--queue" in bars


@pytest.mark.parametrize("cores", [0.5, 1, 2])
def test_efficiency_is_at_most_1_whatever_an_action_holds(tmp_path: Path, cores: float):
    """Work without elasticity takes T_ori on any part of a core, and on several."""
    trace = window(tmp_path, script([act("a", 2.0, cost={"cpu": cores})]), Cluster(1, 2, GIB))

    results = compared(trace, CONFIG, CONFIG, cores=2)

    assert results[NOW].efficiency == pytest.approx(min(1.0, 1 / cores), abs=0.02)
