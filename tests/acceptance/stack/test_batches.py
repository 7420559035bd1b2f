"""Batches on a whole Tangram: rollouts of a scripted model, pulled from the rollout worker by processes as ranks of a trainer run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dispatcher.batches import pull
from examples.rollouts.scripted_llm import Rule
from tangram_client import Client
from tests.acceptance.stack import test_rollout_tasks
from tests.acceptance.stack.test_rollout_tasks import model
from tests.architecture.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
client = test_rollout_tasks.client
_RANK = (
    "import json, sys; from dispatcher.batches import pull; found = pull(json.load(sys.stdin), int(sys.argv[1]));"
    " print(json.dumps([found['tokens'].tolist(), found['loss_mask'].tolist(), found['rewards'].tolist()]))"
)


def test_ranks_pull_a_group_from_its_worker_as_the_api_has_it(
    client: Client,
) -> None:
    sampling = {"custom_tokenizer": "tests/small", "max_tokens": 64}
    instances = [{"id": "q", "data": {"problem": "?", "answer": "4"}}]
    with model(client, "batch-tests", [Rule("", [r"\boxed{4}"])]):
        made = client.rollouts.submit(
            "batches", "math", instances, samples=3, group="batch-group", llm="batch-tests", sampling=sampling
        )  # fmt: skip
        found = {each: client.rollouts.wait(each) for each in made}
    assert [each.reward for each in found.values()] == [1.0] * 3, found
    manifest = client.batches.create(group="batch-group", layout={"ranks": 2})
    assert [worker["address"].split(":")[0] for worker in manifest["workers"]] == ["127.0.0.1"]
    programs = [
        subprocess.run(
            [sys.executable, "-c", _RANK, str(rank)], input=json.dumps(manifest), cwd=ROOT, text=True,
            capture_output=True, check=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for owner, program in zip(manifest["owners"], programs, strict=True):
        tokens, mask, rewards = json.loads(program.stdout)
        expected: list[int] = []
        masked: list[int] = []
        for number in owner["rows"]:
            row = manifest["rows"][number]
            segment = (found[row["rollout"]].segments or ())[row["segment"]]
            expected += [*segment["prompt_ids"], *segment["response_ids"]]
            masked += [0] * len(segment["prompt_ids"]) + segment["loss_mask"]
        assert (tokens, mask) == (expected, masked)
        assert rewards == [1.0] * len(owner["rows"])
    gateway_alone = {**manifest, "workers": []}
    assert pull(gateway_alone, 0)["tokens"].tolist() == json.loads(programs[0].stdout)[0]
    [shown] = [each for each in client.batches.list() if each["id"] == manifest["id"]]
    assert {each["worker"] for each in shown["pulls"]} == {"", manifest["workers"][0]["name"]}
    client.rollouts.acknowledge(made)
