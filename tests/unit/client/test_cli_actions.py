"""`tangram submit | get | describe | cancel`: data on stdout, talk on stderr, stated exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import yaml

from tangram_client import Client, exec_action
from tangram_client.cli.describe import described
from tangram_client.models import ActionView
from tangram_client.testing import HOLD, FakeServer, Hold, Ran
from tests.unit.client.cli_runner import tangram

ACTION = exec_action("swe", "pytest -q", cpu=[1, 2], reward="exit_code", trajectory="trj-1")


@pytest.fixture
def finished(server: FakeServer, client: Client) -> str:
    return client.run(ACTION).id


def test_submit_sends_what_the_options_say(server: FakeServer) -> None:
    result = tangram(
        server, "submit", "--task", "swe", "--cpu", "1,2,4", "--trajectory", "trj-1",
        "--timeout", "60", "--env", "A=b=c", "--reward", "json:score.total", "--", "pytest", "-q",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    assert server.world.payloads["act_000001"] == {
        "task": "swe",
        "kind": "exec",
        "cost": {"cpu": [1, 2, 4]},
        "exec": {"command": ["pytest", "-q"], "env": {"A": "b=c"}},
        "reward": {"from": "json", "path": "score.total"},
        "trajectory": "trj-1",
        "timeout_seconds": 60.0,
    }


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("exit_code", {"from": "exit_code"}),
        ("pytest", {"from": "exit_code", "runner": "pytest"}),
        ("junit:out/report.xml", {"from": "junit", "path": "out/report.xml"}),
    ],
)
def test_submit_writes_out_short_rewards(
    server: FakeServer, text: str, rule: dict[str, str]
) -> None:
    tangram(server, "submit", "--reward", text, "--", "pytest", "-q")
    assert server.world.payloads["act_000001"]["reward"] == rule


def test_submit_of_one_word_with_spaces_goes_through_sh(server: FakeServer) -> None:
    tangram(server, "submit", "--cpu", "0.1", "ls | wc -l")

    payload = server.world.payloads["act_000001"]
    assert payload["exec"]["command"] == ["sh", "-c", "ls | wc -l"]
    assert payload["cost"] == {"cpu": 0.1}


def test_submit_wait_shows_the_end(server: FakeServer) -> None:
    result = tangram(server, "submit", "--wait", "-o", "json", "--", "true")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["outcome"] == "completed"
    assert "waiting" in result.stderr


@pytest.mark.parametrize("ran", [Ran(exit_code=2), Ran(outcome="timeout")], ids=["exit", "timeout"])
def test_submit_wait_fails_unless_it_went_well(ran: Ran) -> None:
    server = FakeServer(run=lambda payload: ran)

    assert tangram(server, "submit", "--wait", "--", "false").exit_code == 1


def test_submit_reads_an_action_from_a_file(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "payload.json"
    path.write_text(json.dumps(ACTION))

    result = tangram(server, "submit", "--file", str(path), "-o", "name")

    assert result.stdout == "act_000001\n"
    assert server.world.payloads["act_000001"] == ACTION


def test_submit_of_a_list_says_which_item_was_refused(server: FakeServer) -> None:
    huge = exec_action("swe", "true", cpu=64)

    result = tangram(
        server, "submit", "--file", "-", "-o", "name", stdin=json.dumps([ACTION, huge])
    )

    assert result.exit_code == 1
    assert result.stdout == "act_000001\n"
    assert "item 1:" in result.stderr
    assert "never fit" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["submit"],
        ["submit", "--cpu", "many", "true"],
        ["submit", "--env", "A", "true"],
        ["submit", "--file", "-"],
        ["--url", "nowhere", "get"],
        ["replay"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2(server: FakeServer, arguments: list[str]) -> None:
    result = tangram(server, *arguments, stdin="no json")

    assert result.exit_code == 2
    assert result.stdout == ""
    assert server.sent == []


def test_get_shows_a_table(server: FakeServer, finished: str) -> None:
    heading, row = tangram(server, "get", finished).stdout.splitlines()

    assert heading.split() == [
        "ID",
        "STATE",
        "OUTCOME",
        "EXIT",
        "TASK",
        "TRAJECTORY",
        "UNITS",
        "ACT",
    ]
    assert row.split() == [
        finished,
        "finished",
        "completed",
        "0",
        "swe",
        "trj-1",
        "cpu=1",
        "10",
        "ms",
    ]


def test_get_wide_shows_more(server: FakeServer, finished: str) -> None:
    heading, row = tangram(server, "get", finished, "-o", "wide").stdout.splitlines()

    assert {"NODE", "QUEUE", "EXECUTION", "REWARD"} <= set(heading.split())
    assert "n1" in row.split()


def test_get_json_is_the_action_as_the_server_sent_it(server: FakeServer, finished: str) -> None:
    result = tangram(server, "-o", "json", "get", finished)

    assert json.loads(result.stdout) == server.world.actions[finished]


def test_get_json_of_several_is_a_list(server: FakeServer, finished: str) -> None:
    result = tangram(server, "get", finished, finished, "-o", "json")

    assert [action["id"] for action in json.loads(result.stdout)] == [finished, finished]


def test_get_yaml_is_the_same_as_json(server: FakeServer, finished: str) -> None:
    result = tangram(server, "get", finished, "-o", "yaml")

    assert yaml.safe_load(result.stdout) == server.world.actions[finished]


def test_get_name_is_the_id_alone(server: FakeServer, finished: str) -> None:
    assert tangram(server, "get", finished, "-o", "name").stdout == f"{finished}\n"


def test_get_without_id_lists_the_latest_first(server: FakeServer, client: Client) -> None:
    ids = [client.submit(ACTION).id for _ in range(3)]

    assert tangram(server, "get", "-o", "name").stdout.split() == ids[::-1]


def test_get_of_nothing_says_what_to_do(server: FakeServer) -> None:
    result = tangram(server, "get", "-o", "json")

    assert json.loads(result.stdout) == []
    assert "tangram submit" in result.stderr


def test_get_wait_returns_what_there_is_when_patience_ends() -> None:
    server = FakeServer(run=lambda payload: HOLD)
    tangram(server, "submit", "true")

    result = tangram(server, "get", "act_000001", "--wait", "5", "-o", "json")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["state"] == "running"
    assert "still running" in result.stderr


def test_long_output_in_a_pipe_is_not_cut(server: FakeServer, client: Client) -> None:
    name = "t" * 120
    client.run({**ACTION, "trajectory": name})

    assert name in tangram(server, "get").stdout


def test_describe_shows_the_times_of_an_action() -> None:
    server = FakeServer(run=lambda payload: Ran(exit_code=1, stdout="1 failed", seconds=2.5))
    tangram(server, "submit", "--reward", "exit_code", "--", "pytest")

    text = tangram(server, "describe", "act_000001").stdout

    for words in (
        "finished, completed",
        "exit code   1",
        "reward      0.0",
        "node        n1",
        "command     pytest",
    ):
        assert words in text
    assert "finished    + 2.5 s" in text
    assert "ACT 2.5 s = queue 0 ms + overhead 0 ms + execution 2.5 s" in text
    assert text.endswith("stdout:\n  1 failed\n")


def test_describe_says_how_much_a_command_wrote() -> None:
    result = {
        "stdout": "a\nb",
        "stderr": "",
        "truncated": True,
        "stdout_bytes": 9,
        "stderr_bytes": 0,
    }
    action = ActionView.of({"id": "act_1", "state": "finished", "result": result})

    assert list(described(action))[-1] == "truncated: it wrote 9 bytes to stdout, 0 to stderr"


def test_describe_says_why_an_action_waits() -> None:
    server = FakeServer(run=lambda payload: Hold("queued", "short of cpu: 1 free, 2 needed"))
    tangram(server, "submit", "true")

    assert (
        "waits: short of cpu: 1 free, 2 needed" in tangram(server, "describe", "act_000001").stdout
    )


def test_cancel_ends_actions_and_shows_them() -> None:
    server = FakeServer(run=lambda payload: HOLD)
    tangram(server, "submit", "true")

    result = tangram(server, "cancel", "act_000001", "--reason", "enough", "-o", "json")

    assert json.loads(result.stdout)["detail"] == "enough"


def test_cancel_of_several_ends_the_known_ones(server: FakeServer, finished: str) -> None:
    result = tangram(server, "cancel", "act_nope", finished, "-o", "name")

    assert result.exit_code == 3
    assert result.stdout == f"{finished}\n"


def test_cancel_of_unknown_actions_alone_prints_no_table(server: FakeServer) -> None:
    result = tangram(server, "cancel", "act_nope")

    assert (result.exit_code, result.stdout) == (3, "")


def test_submit_wait_shows_output_and_exit_code() -> None:
    ran = Ran(exit_code=3, stdout="out\n", stderr="err\n", detail="no reward: exit code 3")
    result = tangram(FakeServer(run=lambda payload: ran), "submit", "--wait", "--", "make")

    heading, row, *output = result.stdout.splitlines()
    assert row.split()[heading.split().index("EXIT")] == "3"
    assert output == ["stdout:", "  out", "stderr:", "  err"]
    assert "no reward: exit code 3" in result.stderr
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("form", "include"), [("table", None), ("wide", "waiting"), ("json", "result,waiting")]
)
def test_get_asks_for_what_the_rows_show(
    server: FakeServer, form: str, include: str | None
) -> None:
    tangram(server, "get", "-o", form)

    assert server.sent[-1].params.get("include") == include


def test_actions_are_listed_by_door(server: FakeServer) -> None:
    tangram(server, "get", "--door", "e2b")

    assert server.sent[-1].params["door"] == "e2b"


def test_the_description_of_an_action_names_its_door() -> None:
    through = ActionView.of({"id": "act_1", "state": "queued", "door": "swerex"})

    assert "  door        swerex" in list(described(through))
    assert not any("door" in line for line in described(ActionView("act_2", "queued")))


def test_an_error_that_names_its_member_is_printed_once(server: FakeServer) -> None:
    problem = {
        "title": "Unprocessable", "status": 422, "code": "invalid",
        "detail": "state: bogus is not one of the available choices.",
        "errors": [{"pointer": "?state", "detail": "bogus is not one of the available choices."}],
    }  # fmt: skip
    server._faults.append(lambda request: httpx.Response(422, json=problem))

    result = tangram(server, "get", "--state", "bogus")

    assert result.stderr.count("bogus is not one of") == 1


def test_unknown_id_ends_with_3(server: FakeServer) -> None:
    result = tangram(server, "get", "act_nope")

    assert (result.exit_code, result.stdout) == (3, "")
    assert "no action act_nope" in result.stderr


def test_conflict_ends_with_4(server: FakeServer) -> None:
    server.be_busy(status=409, retry_after=None)

    assert tangram(server, "cancel", "act_1").exit_code == 4


def test_unreachable_ends_with_5_and_says_what_helps(server: FakeServer) -> None:
    server.lose_requests(10)

    result = tangram(server, "get")

    assert result.exit_code == 5
    assert "./tangram up" in result.stderr


def test_unknown_token_ends_with_1_and_says_what_helps(server: FakeServer) -> None:
    result = tangram(server, "get", token="tgm_wrong")

    assert result.exit_code == 1
    assert "TANGRAM_TOKEN" in result.stderr


def test_project_option_reaches_what_is_created(server: FakeServer) -> None:
    tangram(server, "submit", "--project", "nlp", "true")

    assert server.world.payloads["act_000001"]["project"] == "nlp"


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit", "--timeout", "nan", "--", "true"),
        ("submit", "--queue-timeout", "inf", "--", "true"),
        ("submit", "--cpu", "nan", "--", "true"),
        ("submit", "--cpu", "1,inf", "--", "true"),
        ("replay", "--generate", "--speed", "nan"),
        ("replay", "--generate", "--cost-cpu", "nan"),
        ("replay", "--generate", "--cost-cpu=-1"),
        ("top", "--interval", "nan"),
    ],
    ids=" ".join,
)
def test_a_number_that_is_none_is_a_usage_error(
    server: FakeServer, arguments: tuple[str, ...]
) -> None:
    result = tangram(server, *arguments)

    assert result.exit_code == 2, result.output
    assert "Usage: " in result.stderr
    assert server.sent == []


def test_a_file_with_what_json_does_not_have_is_refused_before_it_is_sent(
    server: FakeServer,
) -> None:
    result = tangram(server, "submit", "--file", "-", stdin='{"task": "t", "priority": NaN}')

    assert (result.exit_code, server.sent) == (1, [])
    assert "this cannot be sent" in result.stderr


def test_logs_print_both_streams_apart() -> None:
    server = FakeServer(run=lambda _: Ran(stdout="result\n", stderr="warning\n"))
    tangram(server, "submit", "--", "make")
    action_id = "act_000001"

    result = tangram(server, "logs", "--follow", action_id)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "result\n", "warning\n")
    lines = tangram(server, "logs", "-o", "json", action_id).stdout.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["stdout", "stderr", "end"]
    assert tangram(server, "logs", "act_none").exit_code == 3


def test_submit_follows_its_output() -> None:
    server = FakeServer(run=lambda _: Ran(stdout="result\n"))

    result = tangram(server, "submit", "--wait", "--follow", "--", "make")

    assert result.exit_code == 0
    assert result.stdout.startswith("result\n")
    assert tangram(server, "submit", "--follow", "--", "make").exit_code == 2


def test_rerun_submits_the_same_request_in_another_trajectory(
    server: FakeServer, finished: str
) -> None:
    again = tangram(server, "rerun", finished, "--wait", "-o", "json")
    chosen = tangram(server, "rerun", finished, "--trajectory", "trj-2")
    printed = tangram(server, "rerun", finished, "--print")

    assert (again.exit_code, chosen.exit_code, printed.exit_code) == (0, 0, 0), again.output
    first, second, third = server.world.payloads.values()
    assert second["trajectory"].startswith("trj-1-again-")
    assert third["trajectory"] == "trj-2"
    assert {**second, "trajectory": "trj-1"} == {**third, "trajectory": "trj-1"} == first
    assert json.loads(printed.stdout)["exec"] == first["exec"]
    assert len(server.world.payloads) == 3


def test_rerun_of_a_request_that_is_not_whole_submits_nothing(
    server: FakeServer, finished: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = {"body": {"task": "swe"}, "obstacle": "its secrets are masked: /exec/env/KEY"}
    view = ActionView.of({"id": finished, "state": "finished", "request": request})
    monkeypatch.setattr(Client, "get", lambda *_, **__: view)

    refused = tangram(server, "rerun", finished)
    printed = tangram(server, "rerun", finished, "--print")

    assert (refused.exit_code, printed.exit_code) == (4, 0)
    assert "its secrets are masked: /exec/env/KEY" in refused.stderr
    assert json.loads(printed.stdout) == {"task": "swe"}
    assert len(server.world.payloads) == 1
