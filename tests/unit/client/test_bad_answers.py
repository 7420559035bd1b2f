"""Responses that do not follow the API: the client's errors name them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tangram_client import BadAnswer, Client, ServerError


def answering(response: httpx.Response) -> Client:
    transport = httpx.MockTransport(lambda request: response)
    return Client("http://elsewhere.test", "t", transport=transport)


def test_html_with_status_200_is_a_bad_answer() -> None:
    with (
        answering(httpx.Response(200, html="<h1>Welcome</h1>")) as client,
        pytest.raises(BadAnswer, match=r"text/html.* is this the URL of a Tangram"),
    ):
        client.get("act_1")


def test_redirect_to_a_login_page_is_a_bad_answer() -> None:
    with (
        answering(httpx.Response(302, headers={"Location": "/login"})) as client,
        pytest.raises(BadAnswer, match="HTTP 302"),
    ):
        client.status()


@pytest.mark.parametrize("body", [{"hello": "world"}, [], "fine", 7, None, {"id": []}])
def test_json_of_another_shape_is_a_bad_answer(body: Any) -> None:
    with (
        answering(httpx.Response(200, content=json.dumps(body))) as client,
        pytest.raises(BadAnswer, match="incompatible versions"),
    ):
        client.get("act_1")


def test_failure_without_problem_details_keeps_its_status() -> None:
    with (
        answering(httpx.Response(500, text="boom")) as client,
        pytest.raises(ServerError, match="HTTP 500"),
    ):
        client.get("act_1")


def test_unknown_members_of_an_answer_are_ignored() -> None:
    body = {"id": "act_1", "state": "queued", "mood": "good", "waiting": {"code": "x", "new": 1}}
    with answering(httpx.Response(200, json=body)) as client:
        action = client.get("act_1")

    assert action.body["mood"] == "good"
    assert action.waiting is not None
