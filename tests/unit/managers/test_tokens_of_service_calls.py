"""The tokens that the answer of a GPU service reports, from which selectors know contexts."""

from __future__ import annotations

import pytest

from domain.apis import CallResult
from domain.fleets import TokenUsage
from managers.gpu.service_call import tokens_of


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ('{"usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}}', (7, 5)),
        ('{"usage": {"prompt_tokens": 7, "completion_tokens": null}}', (7, 0)),
        ('{"usage": null}', None),
        ('{"usage": {"prompt_tokens": "many"}}', None),
        ('data: {"usage": {}}', None),
        ('{"score": 0.5}', None),
    ],
)
def test_tokens_are_read_from_answers_that_report_them(
    body: str, tokens: tuple[int, int] | None
) -> None:
    expected = None if tokens is None else TokenUsage(*tokens)

    assert tokens_of(CallResult(200, {}, body)) == expected


def test_an_answer_that_was_cut_reports_none() -> None:
    cut = CallResult(200, {}, '{"usage": {"prompt_tokens": 7}}', truncated=True)

    assert tokens_of(cut) is None
