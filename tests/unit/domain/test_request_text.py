"""The request of an action as people see it: without secrets, with its files, and whether it can be submitted again."""

from __future__ import annotations

from typing import Any

import pytest

from domain.command_text import MASK
from domain.request_text import DeclaredFile, masked_members, request_details

SECRET = "hf_abcdefgh12345678"


def spec(**members: Any) -> dict[str, Any]:
    return {"task": "t", "kind": "exec", "exec": {"command": ["true"], **members}}


def test_a_request_without_secrets_is_shown_as_it_was_and_can_be_repeated() -> None:
    found = request_details(spec(cwd="src"), "trainer")

    assert (found.body, found.masked, found.obstacle) == (spec(cwd="src"), [], None)
    assert (found.command, found.submitted_by) == ("true", "trainer")


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({"command": ["deploy", "--token", "abc"]}, "/exec/command/2"),
        ({"command": ["curl", "-H", "Authorization: Bearer abcdefgh1"]}, "/exec/command/2"),
        ({"command": ["sh", "-c", f"echo {SECRET}"]}, "/exec/command/2"),
        ({"env": {"API_KEY": "abc", "HOME": "work"}}, "/exec/env/API_KEY"),
        ({"stdin": "password: abc"}, "/exec/stdin"),
        ({"credentials": {"a/b": ["abc"]}}, "/exec/credentials/a~1b/0"),
    ],
)
def test_a_secret_is_masked_where_it_stands(given: dict[str, Any], pointer: str) -> None:
    found = request_details(spec(**given), None)

    assert found.masked == [pointer]
    assert found.body is not None
    assert masked_members(found.body) == [pointer]
    assert MASK in str(found.body)
    assert SECRET not in str(found.body)
    assert found.obstacle == f"its secrets are masked: {pointer}"


def test_words_that_only_look_like_secrets_stay() -> None:
    words = ["train", "--max-tokens", "4096", "test_tokens.py", "conf/token.txt"]

    assert request_details(spec(command=words), None).masked == []


def test_a_long_request_is_cut_and_a_stored_input_is_not_there() -> None:
    stored = {"sha256": "0", "bytes": 70_000}
    long = request_details(spec(stdin="x" * 5000), None)
    body = request_details({"kind": "call", "call": {"target": "a", "stored_body": stored}}, None)
    unknown = request_details({}, None)

    assert (long.body, unknown.body) == (None, None)
    assert "more than 4,096 are cut" in str(long.obstacle)
    assert body.obstacle == "its input of 70,000 bytes is kept apart from the request"
    assert body.files == [DeclaredFile("body of the call", "given", 70_000)]
    assert unknown.obstacle == "its request is not kept"


def test_its_files_are_named_with_their_sizes() -> None:
    reward = {"from": "junit", "path": "report.xml", "files": {"test_a.py": "\u00fc"}}
    environment = {"snapshot": "prepared"}
    found = request_details({**spec(stdin="abc"), "reward": reward, "environment": environment}, "")

    assert found.files == [
        DeclaredFile("snapshot prepared", "begins"),
        DeclaredFile("standard input", "given", 3),
        DeclaredFile("test_a.py", "given", 2),
        DeclaredFile("report.xml", "read"),
    ]
