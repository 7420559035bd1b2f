"""The address and token of a client: given, from the environment, or from the file of `tangram up`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tangram_client.context import DEFAULT_URL, find_context, is_loopback


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    content = {"url": "http://stored:8000", "token": "tgm_stored"}
    (tmp_path / "client.json").write_text(json.dumps(content))
    return {"TANGRAM_HOME": str(tmp_path)}


def test_file_is_taken_when_nothing_else_says_where(env: dict[str, str]) -> None:
    context = find_context(environ=env)

    assert (context.url, context.token) == ("http://stored:8000", "tgm_stored")
    assert context.source.endswith("client.json")


def test_environment_wins_over_the_file(env: dict[str, str]) -> None:
    env |= {"TANGRAM_URL": "https://there/", "TANGRAM_TOKEN": "tgm_env"}

    context = find_context(environ=env)

    assert (context.url, context.token) == ("https://there", "tgm_env")


def test_given_wins_over_all(env: dict[str, str]) -> None:
    env |= {"TANGRAM_URL": "http://there", "TANGRAM_TOKEN": "tgm_env"}

    context = find_context("http://here", "tgm_given", environ=env)

    assert (context.url, context.token, context.source) == ("http://here", "tgm_given", "given")


def test_a_line_break_behind_a_token_is_no_part_of_it(env: dict[str, str]) -> None:
    assert find_context(environ=env | {"TANGRAM_TOKEN": "tgm_env\n"}).token == "tgm_env"


def test_an_empty_variable_is_no_token(env: dict[str, str]) -> None:
    assert find_context(environ=env | {"TANGRAM_TOKEN": ""}).token == "tgm_stored"


@pytest.mark.parametrize("token", ["tgm_ä", "tgm_a\nb", "tgm_\x00"])
def test_token_that_no_header_can_carry_is_refused(env: dict[str, str], token: str) -> None:
    with pytest.raises(ValueError, match="the token has characters"):
        find_context(environ=env | {"TANGRAM_TOKEN": token})


def test_token_of_the_file_does_not_go_to_another_url(env: dict[str, str]) -> None:
    assert find_context("http://elsewhere", environ=env).token is None
    assert find_context("http://stored:8000/", environ=env).token == "tgm_stored"


def test_without_anything_it_is_this_machine(tmp_path: Path) -> None:
    assert find_context(environ={"TANGRAM_HOME": str(tmp_path)}).url == DEFAULT_URL


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "x"])
def test_url_that_cannot_be_meant_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValueError, match="is not a URL"):
        find_context(url, environ={"TANGRAM_HOME": str(tmp_path)})


def test_file_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "client.json").write_text("{")

    with pytest.raises(ValueError, match=r"client\.json cannot be read"):
        find_context(environ={"TANGRAM_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("url", "expected"),
    [("http://127.0.0.1:1", True), ("http://localhost", True), ("http://[::1]:8000", True),
     ("http://127.evil.test", False), ("http://tangram.test", False)],
)  # fmt: skip
def test_loopback_needs_no_proxy(url: str, expected: bool) -> None:
    assert is_loopback(url) is expected
