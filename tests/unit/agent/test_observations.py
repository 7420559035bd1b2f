"""Observations are what a terminal shows, cut in the middle, in linear time."""

from __future__ import annotations

import pytest

from rollout.agent.observations import cut_observation, terminal_text


def test_a_long_observation_keeps_its_beginning_and_its_end() -> None:
    text = "a" * 600 + "é" * 600

    cut = cut_observation(text, 100)

    assert cut == "a" * 50 + "\n[1100 of 1200 characters are left out here]\n" + "é" * 50
    assert cut_observation(text, 1200) == text
    assert cut_observation("abc", 1) == "\n[2 of 3 characters are left out here]\nc"


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("a\r\nb\r\n", "a\nb\n"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07$ \x1b]8;;http://x\x1b\\link", "$ link"),
        ("10 %\r50 %\r100 %\r\ndone", "100 %\ndone"),
        ("N\bNA\bAME", "NAME"),
        ("\b\ba\x00\x07b\tc", "ab\tc"),
        ("\x1b[", ""),
        ("\x1b]never ended", ""),
        ("é�", "é�"),
    ],
)
def test_what_a_terminal_shows_is_kept(output: str, shown: str) -> None:
    assert terminal_text(output) == shown


@pytest.mark.parametrize("piece", ["\x1b]", "\x1b[0", "\x1b", "a", "\r", "\b", "a\b", "0;"])
def test_no_output_takes_long(piece: str) -> None:
    """A program may print what makes a pattern try again from each of its characters; the CPU time of a test is limited."""
    terminal_text(piece * (300_000 // len(piece)))
