"""DeepSearch: searches and readings under limits, one judgement at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from domain.resources import MILLI
from simulator.cluster import GIB, Cluster
from simulator.compare import Scene, run
from simulator.engine import ClusterSimulation
from simulator.llm_trace import make_requests, read_requests
from simulator.workloads.deep_search import DeepSearch
from tangram_client.traces.recording import TraceError
from tests.unit.simulator.scripts import checked

HEADER = "t_ms,input_tokens,output_tokens,prefix_blocks_512\n"
WORKLOAD = DeepSearch(make_requests(50, 0), batch=12, group_size=4, median_turns=4.0)
LIMITS = {"api:search": 3, "api:pdf": 2, "api:judge": 1}


def test_every_trajectory_ends_with_one_judgement():
    scene = Scene(WORKLOAD, Cluster(1, 1, GIB, LIMITS))

    result = run(scene, "minimum").result

    assert result.rewards is not None
    assert result.rewards.actions == 12
    assert result.whole.actions == WORKLOAD.actions
    assert result.outcomes == {"completed": WORKLOAD.actions}


def test_no_more_calls_are_open_than_the_limits_say():
    most = dict.fromkeys(LIMITS, 0)

    def watch(machine, events, decisions):
        checked(machine, events, decisions)
        for name in most:
            ledger = machine.state.supply.ledgers[name]
            most[name] = max(most[name], (ledger.capacity - ledger.free) // MILLI)

    ClusterSimulation(WORKLOAD, Cluster(1, 1, GIB, LIMITS), watch=watch).run()

    assert most == LIMITS


def test_granted_shares_are_reported_by_resource():
    granted = run(Scene(WORKLOAD, Cluster(1, 1, GIB, LIMITS)), "minimum").result.granted

    assert granted.keys() == {"cpu", *LIMITS}
    assert granted["cpu"] == 0
    assert 0 < granted["api:judge"] < 1


def test_recorded_requests_are_read(tmp_path: Path):
    path = tmp_path / "requests.csv"
    path.write_text(HEADER + "0,10,20,1\n\n1500,11,21,0\n")

    requests = read_requests(path)

    assert [request.at_seconds for request in requests] == [0.0, 1.5]
    assert requests[1].output_tokens == 21


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", ":1: the first columns must be t_ms,"),
        ("t_ms,tokens\n0,1\n", ":1: the first columns must be t_ms,"),
        (HEADER, ":1: holds no request"),
        (HEADER + "0,1,2,3\n5,1\n", ":3: 2 fields, not 4; cut off?"),
        (HEADER + "0,1,nan,3\n", ":2: output_tokens must be a number ≥ 0, not 'nan'"),
        (HEADER + "0,-1,2,3\n", ":2: input_tokens must be a number ≥ 0, not '-1'"),
        (HEADER + "0,x,2,3\n", ":2: input_tokens must be a number ≥ 0, not 'x'"),
        (HEADER + "9,1,2,3\n8,1,2,3\n", ":3: 8 ms comes before the line above it"),
        (HEADER + "-9,1,2,3\n", ":2: t_ms must be a number ≥ 0, not '-9'"),
        (HEADER + "0,1,2,3\n5,10,20,31", ":3: the last line has no end; cut off?"),
        (HEADER + "0,1.5,2,3\n", ":2: tokens are counted in whole numbers"),
        (HEADER + "0,1e300,2,3\n", ":2: tokens are counted in whole numbers"),
        (HEADER + "0,1,2,3\n5,\udcff,2,3\n", ":3: not UTF-8"),
    ],
    ids="empty|columns|rows|cut|nan|negative|text|unsorted|negative time|no end|part|huge|bytes".split(
        "|"
    ),
)
def test_a_bad_line_is_named(tmp_path: Path, content: str, said: str):
    path = tmp_path / "requests.csv"
    path.write_bytes(content.encode(errors="surrogateescape"))

    with pytest.raises(TraceError) as caught:
        read_requests(path)

    assert str(caught.value).startswith(f"{path}{said}")
