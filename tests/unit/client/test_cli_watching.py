"""`tangram watch | top | status | doctor | completion`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from tangram_client import Client, exec_action
from tangram_client.cli.shell import Shell
from tangram_client.testing import HOLD, FakeServer
from tests.unit.client.cli_runner import tangram

ACTION = exec_action("swe", "true")


def test_watch_prints_one_line_for_each_event(server: FakeServer, client: Client) -> None:
    client.submit(ACTION)

    result = tangram(server, "watch", "--after", "0", "--limit", "2")

    granted, finished = result.stdout.splitlines()
    assert granted.split()[:3] == ["granted", "act_000001", "swe"]
    assert "completed" in finished


def test_watch_json_is_one_object_a_line(server: FakeServer, client: Client) -> None:
    client.submit(ACTION)

    result = tangram(server, "watch", "--after", "0", "--limit", "2", "-o", "json")

    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["event"], line["cursor"]) for line in lines] == [
        ("granted", "1"),
        ("finished", "2"),
    ]


def test_watch_of_one_action_ends_with_it() -> None:
    server = FakeServer(run=lambda payload: HOLD)
    tangram(server, "submit", "true")
    looks = iter(range(3))
    tick = server.world.tick

    def finish_at_the_third_look() -> None:
        tick()
        if next(looks, None) is None:
            server.finish("act_000001")

    server.world.tick = finish_at_the_third_look  # type: ignore[method-assign]

    result = tangram(server, "watch", "act_000001")

    assert [line.split()[0] for line in result.stdout.splitlines()] == ["running", "finished"]


def test_top_in_a_pipe_shows_pools_and_nodes_once() -> None:
    server = FakeServer(run=lambda payload: HOLD, cpu=8)
    tangram(server, "submit", "true")

    text = tangram(server, "top").stdout

    assert "1 running, 0 queued" in text
    assert "1 of 8 cores held" in text
    assert [line.split()[0] for line in text.splitlines() if line][1:] == [
        "POOL", "default", "NODE", "n1",
    ]  # fmt: skip


def test_top_json_is_the_status(server: FakeServer) -> None:
    assert json.loads(tangram(server, "top", "-o", "json").stdout)["leader"] == "loop-1"


PROBLEM = {
    "id": "node_lost:n1", "severity": "critical", "state": "new", "title": "Node n1 is lost",
    "since": "2026-01-01T07:00:00Z", "actions": 12, "owner": "platform", "detail": "It held 12.",
}  # fmt: skip


def test_status_lists_problems_and_checks_by_its_exit_code(server: FakeServer) -> None:
    healthy = tangram(server, "status", "--check")
    server.world.problems = [PROBLEM, {**PROBLEM, "id": "over", "state": "cleared"}]
    shown, checked = tangram(server, "status"), tangram(server, "status", "--check")

    assert (healthy.exit_code, healthy.stdout) == (0, "")
    assert "Everything works." in healthy.stderr
    assert (shown.exit_code, checked.exit_code) == (0, 1)
    (line,) = [line for line in shown.stdout.splitlines() if "n1" in line]
    assert line.split()[:2] == ["critical", "new"]
    assert "2026-01-01 07:00:00" in line
    assert tangram(server, "status", "-o", "name").stdout == "node_lost:n1\n"
    assert json.loads(tangram(server, "status", "-o", "json").stdout)["health"] == "critical"


REPORT = {
    "task": "swe", "project": "default", "actions": 3, "finished": 2, "read": 2,
    "phases": [{"phase": "act", "mean": 4.0, "p50": 3.0, "p95": 9.0, "p99": 9.5}],
    "families": [{"family": "test", "actions": 2, "failed": 1, "act_mean": 4.0, "act_p95": 9.0, "share": 1.0}],
    "granted": [{"resource": "cpu", "feasible": "1, 2, 4", "granted": 2.0, "actions": 2, "execution_mean": 3.0}],
    "outcomes": [], "steps": [], "comparison": None,
    "costs": [{"name": "Core-seconds", "granted": 8.0, "reserved": 32.0, "saving": 0.75}],
}  # fmt: skip


def test_a_report_shows_times_counts_and_savings_of_a_task(server: FakeServer) -> None:
    server.world.reports["swe"] = REPORT
    shown, missing = tangram(server, "report", "swe"), tangram(server, "report", "none")

    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["test", "2", "1", "4.0", "s", "100.0", "%"] in lines
    assert ["cpu", "1,", "2,", "4", "2", "2", "3.0", "s"] in lines
    assert ["Core-seconds", "8.0", "32.0", "75", "%"] in lines
    assert json.loads(tangram(server, "report", "swe", "-o", "json").stdout) == REPORT
    assert missing.exit_code == 3


def findings(server: FakeServer, **more: str) -> tuple[int, dict[str, dict[str, str]]]:
    result = tangram(server, "doctor", "-o", "json", **more)
    return result.exit_code, {found["check"]: found for found in json.loads(result.stdout)}


def states(found: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: finding["state"] for name, finding in found.items()}


def with_answers(server: FakeServer, **answers: httpx.Response) -> FakeServer:
    """Replace the answers of some paths (``livez=…``)."""
    handle = server.handle

    def answer(request: httpx.Request) -> httpx.Response:
        name = request.url.path.rpartition("/")[2]
        return answers[name] if name in answers else handle(request)

    server.transport = httpx.MockTransport(answer)
    return server


def alive(skew_seconds: float = 0.0) -> httpx.Response:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=skew_seconds), usegmt=True)
    return httpx.Response(200, json={"status": "ok"}, headers={"Date": date})


def test_doctor_finds_everything_in_order(server: FakeServer) -> None:
    code, found = findings(with_answers(server, livez=alive()))

    assert code == 0
    assert set(states(found).values()) == {"ok"}
    assert set(found) == {
        "url", "reach", "clock", "ready", "token", "lag", "version", "leader", "redis", "nodes",
    }  # fmt: skip


CHECKS = {
    "in_order": False,
    "findings": [
        {"check": "protection", "state": "fail", "detail": "n1: plain processes", "cure": "bwrap"},
        {"check": "redis", "state": "ok", "detail": "Valkey 9.1", "cure": ""},
    ],
}


def test_doctor_passes_on_what_the_server_finds(server: FakeServer) -> None:
    code, found = findings(with_answers(server, checks=httpx.Response(200, json=CHECKS)))

    assert code == 1
    assert found["protection"] == CHECKS["findings"][0]  # type: ignore[index]
    assert found["redis"]["state"] == "ok"


def test_doctor_says_that_a_token_of_one_project_sees_no_checks(server: FakeServer) -> None:
    refused = httpx.Response(403, json={"title": "no", "status": 403, "code": "missing_scope"})

    code, found = findings(with_answers(server, livez=alive(), checks=refused))

    assert (code, found["checks"]["state"]) == (0, "warn")
    assert "manage.py doctor" in found["checks"]["cure"]


def test_doctor_json_is_what_the_option_of_all_verbs_gives(server: FakeServer) -> None:
    with_answers(server, livez=alive())

    short = json.loads(tangram(server, "doctor", "--json").stdout)

    assert [each["check"] for each in short][:2] == ["url", "reach"]
    assert set(short[0]) == {"check", "state", "detail", "cure"}


def test_doctor_names_an_unknown_token_and_its_cure(server: FakeServer) -> None:
    code, found = findings(server, token="tgm_wrong")

    assert code == 1
    assert found["token"]["state"] == "fail"
    assert "TANGRAM_TOKEN" in found["token"]["cure"]


def test_doctor_of_an_unreachable_server_ends_with_5(server: FakeServer) -> None:
    server.lose_requests(10)

    code, found = findings(server)

    assert code == 5
    assert found["reach"]["state"] == "fail"


def test_doctor_says_which_part_is_not_ready(server: FakeServer) -> None:
    body = {"status": "not ready", "checks": {"redis": "ok", "node": "no node worker shows life"}}

    code, found = findings(with_answers(server, readyz=httpx.Response(503, json=body)))

    assert code == 1
    assert found["ready"]["detail"] == "node: no node worker shows life"


@pytest.mark.parametrize(
    ("change", "check", "state"),
    [
        ({"leader": None}, "leader", "fail"),
        ({"nodes": []}, "nodes", "fail"),
        ({"version": "9.0.0"}, "version", "warn"),
        (
            {"redis": {"standing": "outdated", "detail": "Redis 6.2.14: has …", "cure": "upgrade"}},
            "redis",
            "warn",
        ),
    ],
    ids=["no leader", "no nodes", "other version", "Redis with holes"],
)
def test_doctor_sees_what_the_status_says(
    server: FakeServer, client: Client, change: dict[str, object], check: str, state: str
) -> None:
    body = {**client.status(), **change}

    _, found = findings(with_answers(server, status=httpx.Response(200, json=body)))

    assert found[check]["state"] == state
    assert found[check]["cure"]


def test_doctor_sees_a_lost_node_beside_a_live_one(server: FakeServer, client: Client) -> None:
    body = client.status()
    body["nodes"].append({"name": "n2", "pool": "default", "state": "lost"})

    _, found = findings(with_answers(server, status=httpx.Response(200, json=body)))

    assert (found["nodes"]["state"], "n2" in found["nodes"]["detail"]) == ("warn", True)


def test_doctor_states_the_cores_that_nodes_keep_for_tangram(
    server: FakeServer, client: Client
) -> None:
    body = client.status()
    body["nodes"][0]["resources"]["cpu"] = {"capacity": 7, "free": 7, "kept": 1}
    _, found = findings(with_answers(server, status=httpx.Response(200, json=body)))
    assert found["nodes"]["detail"] == "1 alive, 7 cores and 1 kept for Tangram"


def test_doctor_sees_a_clock_that_is_wrong(server: FakeServer) -> None:
    code, found = findings(with_answers(server, livez=alive(skew_seconds=90.0)))

    assert (code, found["clock"]["state"]) == (0, "warn")
    assert "NTP" in found["clock"]["cure"]


def test_doctor_for_people_puts_the_cure_below_the_finding(server: FakeServer) -> None:
    server.lose_requests(10)

    text = tangram(server, "doctor").stdout

    assert "FAIL" in text
    assert "→ start it with ./tangram up" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(server: FakeServer, shell: str) -> None:
    assert "_TANGRAM_COMPLETE" in tangram(server, "completion", shell).stdout


def test_options_of_the_verb_win_over_those_before_it(server: FakeServer) -> None:
    result = tangram(server, "-o", "table", "top", "-o", "json")

    assert json.loads(result.stdout)["leader"] == "loop-1"
    assert Shell().format == "table"
