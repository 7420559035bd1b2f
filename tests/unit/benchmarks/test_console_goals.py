"""Goals of the console are missed by name, and figures of pages contradict each other only in their own scope."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.console_goals import missed
from benchmarks.figures import Fact, Shown, add, contradictions, number_in, shared

GOOD: dict[str, dict[str, Any]] = {
    "live": {"CPU": {"messages": 9, "main_thread_ms_per_message": 4.0, "kilobytes_per_second": 200}},
    "paint": {"GPU": {"paint_ms": 500}},
    "trace": {"interactive_ms": 1000},
    "effects": {"pool pause": {"ms": 3000, "simulated": True, "says": "sooner"}},
    "figures": {"compared": 1, "contradictions": {}},
}  # fmt: skip


@pytest.mark.parametrize("part", GOOD)
def test_a_goal_that_is_just_met_is_not_missed(part: str) -> None:
    assert missed(part, GOOD[part]) == []


@pytest.mark.parametrize(
    ("part", "found", "said"),
    [
        ("live", {"CPU": {**GOOD["live"]["CPU"], "main_thread_ms_per_message": 4.1}}, "CPU: 4.1 ms"),
        ("live", {"CPU": {**GOOD["live"]["CPU"], "kilobytes_per_second": 201}}, "CPU: 201 KB/s"),
        ("live", {"CPU": {**GOOD["live"]["CPU"], "messages": 0}}, "CPU received no message"),
        ("paint", {"GPU": {"paint_ms": 501}}, "GPU is painted after 501 ms"),
        ("trace", {"interactive_ms": 1001}, "interactive after 1001 ms"),
        ("effects", {"node drain": {"ms": 3001, "simulated": True, "says": ""}}, "node drain shows its effect after"),
        ("effects", {"node drain": {"ms": 9, "simulated": False, "says": "too long"}}, "node drain shows no effect: too long"),
        ("figures", {"compared": 0, "contradictions": {}}, "no figure is on two pages"),
        ("figures", {"compared": 1, "contradictions": {"waiting of system": {"a": 1, "b": 2}}}, "waiting of system"),
    ],
)  # fmt: skip
def test_a_missed_goal_is_named(part: str, found: dict[str, Any], said: str) -> None:
    (problem,) = missed(part, found)
    assert problem.startswith(f"{part}: ")
    assert said in problem


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 actions wait", 3), ("1,234 of 9", 1234), ("2.5 GiB", 2.5), ("none", None),
        ("10,000+ actions", None), ("", None),
    ],
)  # fmt: skip
def test_the_first_number_of_a_text_is_the_figure(text: str, number: float | None) -> None:
    assert number_in(text) == number


def element(figure: str, scope: str, text: str, link: str = "") -> dict[str, str]:
    return {"figure": figure, "scope": scope, "text": text, "link": link}


def test_numbers_of_one_fact_contradict_each_other_and_those_of_two_do_not() -> None:
    shown: Shown = {}
    add(shown, "Operate", [element("waiting", "pool/a", "3"), element("waiting", "pool/b", "7")])
    add(shown, "Overview", [element("waiting", "pool/a", "4"), element("running", "pool/a", "9")])
    add(shown, "Queues", [element("waiting", "pool/b", "7 actions")])

    assert contradictions(shown) == {Fact("waiting", "pool/a"): {"Operate": 3, "Overview": 4}}
    assert set(shared(shown)) == {Fact("waiting", "pool/a"), Fact("waiting", "pool/b")}


def test_a_page_can_contradict_itself_and_a_list_is_a_place_of_the_figure_that_links_to_it() -> (
    None
):
    shown: Shown = {}
    twice = [element("waiting", "system", "3"), element("waiting", "system", "4")]
    links = add(shown, "Overview", twice)
    links |= add(shown, "Operate", [element("running", "pool/a", "1", "/actions/?q=state:running")])
    add(shown, "Actions", [element("rows", "actions?", "5", "/actions/?q=")])

    assert list(contradictions(shown)) == [Fact("waiting", "system")]
    assert links == {Fact("running", "pool/a"): "/actions/?q=state:running"}
