"""Pages submit actions with the checks of the API: from their threads, in the name of an account, once for each form."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from domain.errors import Unavailable
from domain.principals import Principal, Scope
from tangram_web.lib.submissions import PageSubmission, SubmissionAnswer
from tangram_web.serving.console_submission import ConsoleSubmission
from tests.integration.runtime.rig import Rig

TRUE = {"task": "t", "kind": "exec", "cost": {"cpu": 1}, "exec": {"command": ["true"]}}
ACCOUNT = Principal("ada", "default", frozenset({Scope.READ, Scope.SUBMIT}))


def asked(key: str = "1", **members: Any) -> PageSubmission:
    return PageSubmission(msgspec.json.encode({**TRUE, **members}), ACCOUNT, f"rerun/{key}", "r-1")


async def answers(rig: Rig, *requests: PageSubmission) -> list[SubmissionAnswer]:
    async with rig.context() as context:
        submission = ConsoleSubmission(context)
        submission.start()
        return [await asyncio.to_thread(submission.submit, each) for each in requests]


async def test_a_page_submits_an_action_through_a_door_of_its_own(rig: Rig) -> None:
    async with rig.client() as client:  # it follows the journal before an action can end
        first, again, other = await answers(rig, asked(), asked(), asked("2"))
        action = (await client.get(f"/actions/{other.document['id']}?wait=60")).json()
    assert (action["outcome"], action["door"], action["project"]) == (
        "completed",
        "console",
        "default",
    )
    assert (first.status, first.accepted) == (202, True)
    assert again.document["id"] == first.document["id"] != other.document["id"]


async def test_a_refusal_names_the_field(rig: Rig) -> None:
    wide, elsewhere = await answers(rig, asked(cost={"cpu": 4000}), asked(project="other"))

    assert (wide.status, wide.accepted) == (422, False)
    assert wide.document["errors"][0]["pointer"].startswith("/cost")
    assert elsewhere.status == 404


async def test_a_process_that_is_starting_takes_no_submission(rig: Rig) -> None:
    async with rig.context() as context:
        with pytest.raises(Unavailable, match="is starting"):
            ConsoleSubmission(context).submit(asked())
