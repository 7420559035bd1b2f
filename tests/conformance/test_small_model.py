"""The small model of the examples, under the Python that has torch: tokens, log-probabilities, and steps of the optimiser."""

from __future__ import annotations

import json
import math
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.stack import free_port
from examples.rollouts.train import SmallModel, advantages, sample_of

pytestmark = pytest.mark.slow

PROMPT = [5, 6, 7]
ANSWER = [40, 41, 2]


@pytest.fixture(scope="module")
def model() -> Iterator[SmallModel]:
    model = SmallModel(free_port(), threads=1)
    yield model
    model.close()


def generated(model: SmallModel, prompt: list[int], **members: Any) -> dict[str, Any]:
    body = {"prompt_ids": prompt, "max_tokens": 8, "temperature": 1.0, "seed": 3, **members}
    return model.post("/generate", body)


def test_a_response_ends_at_its_stop_or_its_length_with_a_log_probability_for_each_token(
    model: SmallModel,
) -> None:
    found = generated(model, PROMPT)
    assert 0 < len(found["response_ids"]) <= 8
    assert len(found["logprobs"]) == len(found["response_ids"])
    assert all(math.isfinite(each) and each <= 0 for each in found["logprobs"])
    assert generated(model, PROMPT) == found, "the same seed gives the same response"


def test_imitation_makes_an_answer_likely_and_the_policy_gradient_an_unrewarded_one_less(
    model: SmallModel,
) -> None:
    model.post("/reset", {"seed": 1})
    sample = {"ids": PROMPT + ANSWER, "mask": [0, 0, 0, 1, 1, 1]}
    losses = [
        model.post("/imitate", {"samples": [sample] * 4, "rate": 3e-3})["loss"] for _ in range(40)
    ]
    assert losses[-1] < losses[0] / 10
    found = generated(model, PROMPT, temperature=0.001)
    assert found["response_ids"] == ANSWER
    before = sum(found["logprobs"])
    segment = {"prompt_ids": PROMPT, "response_ids": ANSWER, "loss_mask": [1, 1, 1], "logprobs": found["logprobs"]}  # fmt: skip
    learned = model.post("/learn", {"samples": [sample_of(segment, -1.0)], "rate": 1e-2})
    # The ratio of a first step is 1, so the loss is the advantage and no token is clipped.
    assert learned["loss"] == pytest.approx(1.0, abs=1e-3)
    assert learned["clipped"] == 0
    assert sum(generated(model, PROMPT, temperature=0.001)["logprobs"]) < before


def test_a_prompt_in_a_batch_of_others_has_the_probabilities_that_it_has_alone(
    model: SmallModel,
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    alone = generated(model, PROMPT)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(generated, model, list(range(9, 9 + 3 * n))) for n in range(1, 8)]
        together = pool.submit(generated, model, PROMPT).result()
        for each in asked:
            each.result()
    assert together["response_ids"] == alone["response_ids"]
    assert together["logprobs"] == pytest.approx(alone["logprobs"], abs=1e-4)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/generate", {"prompt_ids": []}, "prompt_ids"),
        ("/generate", {"prompt_ids": [99_999]}, "4095"),
        ("/generate", {"prompt_ids": [1] * 1024}, "maximum context length is 1024"),
        ("/learn", {"samples": [], "rate": 1.0}, "samples"),
        ("/elsewhere", {}, "/elsewhere"),
    ],
)
def test_a_wrong_request_is_refused_with_what_is_wrong(
    model: SmallModel, path: str, body: dict[str, Any], said: str
) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        model.post(path, body)
    assert caught.value.code in (400, 404)
    assert said in json.load(caught.value)["detail"]


def test_advantages_are_distances_from_the_mean_in_standard_deviations() -> None:
    assert advantages([1.0, 0.0, 0.0, 1.0]) == [1.0, -1.0, -1.0, 1.0]
