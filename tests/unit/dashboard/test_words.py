"""Texts of durations, in the unit that fits."""

from __future__ import annotations

import pytest
from django.utils.html import conditional_escape

from contract.responses import WaitDetails
from tangram_web.dashboard.templatetags.console import duration, plain, reason


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "–"), (0.00001, "<0.1 ms"), (0.0123, "12 ms"), (1.24, "1.2 s"), (59.94, "60 s"),
     (59.96, "1m 00s"), (125.4, "2m 05s"), (3599.7, "1h 00m"), (7260.0, "2h 01m")],
)  # fmt: skip
def test_a_duration_is_rounded_and_never_reads_zero_minutes(
    seconds: float | None, words: str
) -> None:
    assert duration(seconds) == words


def test_actions_in_a_reason_are_links_and_the_rest_is_text():
    why = WaitDetails("behind", "act_0123456789 came before it <b>", blocked_by="act_0123456789")

    reported = conditional_escape(reason(why))

    assert reported == (
        '<a class="mono" href="/actions/act_0123456789/" title="act_0123456789">…23456789</a>'
        " came before it &lt;b&gt;"
    )


def test_a_reason_without_actions_is_text():
    for why in (
        WaitDetails("short_of", "waits for 2 of <cpu>"),
        WaitDetails("x", "2 of <cpu>", blocked_by="a"),
    ):
        assert conditional_escape(reason(why)).endswith("2 of &lt;cpu&gt;")


def test_members_of_the_configuration_read_as_they_are_written():
    assert plain("process") == "process"
    assert plain(({"units": 40},)) == '[{"units":40}]'
    assert plain(("python3", "{port}")) == '["python3","{port}"]'
