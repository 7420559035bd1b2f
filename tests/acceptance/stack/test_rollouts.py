"""Rollouts on a whole Tangram: accepted over HTTP, run by handlers in processes of their own, listed and acknowledged."""

from __future__ import annotations

import pytest

from tangram_client import Client
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_no_op_rollouts_run_on_a_fresh_installation(tangram: Tangram) -> None:
    with Client(tangram.access["url"], tangram.access["token"]) as client:
        start = client.rollouts.completions("now").next
        made = client.rollouts.submit(
            "t", "noop", [{"id": "a"}], samples=4, options={"reward": 0.5}
        )
        found = [client.rollouts.wait(each) for each in made]
        page = client.rollouts.completions(start, limit=4, wait_seconds=30)
        rows = {each.id for each in page.items}
        while rows < set(made):
            page = client.rollouts.completions(page.next, limit=4, wait_seconds=30)
            rows |= {each.id for each in page.items}
        acknowledged = client.rollouts.acknowledge(made)
        after = client.rollouts.get(made[0])
    assert [(each.outcome, each.reward) for each in found] == [("completed", 0.5)] * 4
    assert [stage["stage"] for stage in found[0].body["times"]] == ["init", "run", "eval"]
    assert rows == set(made)
    assert acknowledged == made
    assert (after.reward, after.segments) == (0.5, None)
