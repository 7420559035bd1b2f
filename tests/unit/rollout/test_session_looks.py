"""Looks at sessions: what they say about a command whose action ended unknown."""

from __future__ import annotations

from typing import Any

import pytest

from rollout.core.records import CALL, OBSERVATION, Facts, StoredCall
from rollout.core.session_looks import LOST_OUTPUT, NeverTaken, after_look, look_at
from rollout.ports import ActionEnd, Record

UNKNOWN = ActionEnd("act_9", "unknown", None, None, "the node worker died", 0.0, 1.0)


def call(name: str, session: str = "bash-1", **work: Any) -> StoredCall:
    given = {"command": ["make"], "session": session, "output": {"limit_bytes": 9}, **work}
    return StoredCall(name, "", "t", {"kind": "exec", "cost": {"cpu": 1}, "exec": given})


def seen(number: int | None, state: str = "idle", outcome: str = "completed") -> ActionEnd:
    result = {"session": state, "command_number": number, "exit_code": 3, "stdout": "rest"}
    return ActionEnd("act_10", outcome, result, None, "", 0.0, 2.0)


def facts(*numbers: int, session: str = "bash-1") -> Facts:
    """Return those of a log with commands of the session that ended so."""
    found = Facts()
    for number in numbers:
        before = call(f"c{number}", session)
        header = {"key": before.key, "digest": "", "trajectory": "t", "members": before.members}
        found.add(Record(CALL, header))
        end = {"id": "a", "outcome": "completed", "result": {"command_number": number},
               "reward": None, "detail": "", "queue_seconds": 0.0, "execution_seconds": 0.0}  # fmt: skip
        found.add(Record(OBSERVATION, {"key": before.key, "end": end}))
    return found


def test_a_look_gives_the_shell_no_command_and_may_be_repeated() -> None:
    look = look_at(call("c", expect={"input": True}))
    assert look == {
        "kind": "exec", "cost": {"cpu": 1}, "replay_safe": True,
        "exec": {"session": "bash-1", "output": {"limit_bytes": 9}, "expect": {"input": True},
                 "command": [], "stdin": ""},
    }  # fmt: skip


@pytest.mark.parametrize(
    "work", [{"session": None}, {"command": []}, {"expect": {"pattern": "done"}}]
)
def test_where_a_look_cannot_tell_there_is_none(work: dict[str, Any]) -> None:
    assert look_at(call("c", **work)) is None


@pytest.mark.parametrize(("before", "number"), [((), 1), ((1, 2), 3)])
def test_the_number_of_the_command_says_that_it_ended(before: tuple[int, ...], number: int) -> None:
    found = after_look(facts(*before), call("c"), UNKNOWN, seen(number))
    assert (found.id, found.outcome) == ("act_9", "completed")
    assert found.result is not None
    assert (found.result["exit_code"], found.result["truncated"]) == (3, True)
    assert found.result["stdout"] == f"{LOST_OUTPUT}rest"


@pytest.mark.parametrize(("before", "number"), [((), None), ((1, 2), 2)])
def test_the_number_before_it_says_that_the_shell_never_got_it(
    before: tuple[int, ...], number: int | None
) -> None:
    with pytest.raises(NeverTaken):
        after_look(facts(*before), call("c"), UNKNOWN, seen(number))


@pytest.mark.parametrize(
    ("look", "outcome"),
    [(seen(None, "busy"), "completed"), (seen(None, "busy", "timeout"), "timeout")],
)
def test_what_a_shell_runs_that_waited_before_is_the_command(look: ActionEnd, outcome: str) -> None:
    found = after_look(facts(1), call("c"), UNKNOWN, look)
    assert found.outcome == outcome


@pytest.mark.parametrize(
    "look", [seen(5), seen(2, "idle", "infra_failed"), seen(2, ""), seen(1, "replaced")]
)
def test_anything_else_leaves_it_unknown(look: ActionEnd) -> None:
    assert after_look(facts(1), call("c"), UNKNOWN, look) is UNKNOWN


def test_commands_of_other_sessions_do_not_count() -> None:
    assert after_look(facts(1, 2, session="other"), call("c"), UNKNOWN, seen(1)) is not UNKNOWN
