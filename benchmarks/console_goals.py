"""Goals of the console: what the parts of its benchmarks measured in, what is missed out.

live      a page at 10,000 actions/s: main thread for each message, traffic to one browser
paint     first paint of each page with a million actions
trace     the Trace page of an hour of actions, from the navigation until it answers a key
effects   the simulated effect of each verb
figures   numbers that two pages show of the same thing, after the load has stopped
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MAIN_THREAD_MS: Final = 4.0
KILOBYTES_PER_SECOND: Final = 200.0
PAINT_MS: Final = 500
TRACE_MS: Final = 1000
EFFECT_MS: Final = 3000


def missed(part: str, found: Mapping[str, Any]) -> list[str]:
    """Return the goals that the figures of a part miss, each with its page or verb."""
    checks = {
        "live": _live,
        "paint": _paint,
        "trace": _trace,
        "effects": _effects,
        "figures": _figures,
    }
    return [f"{part}: {each}" for each in checks[part](found)]


def _live(found: Mapping[str, Any]) -> list[str]:
    problems = []
    for page, cost in found.items():
        work, traffic = cost["main_thread_ms_per_message"], cost["kilobytes_per_second"]
        if not cost["messages"]:
            problems.append(f"{page} received no message")
        if work > MAIN_THREAD_MS:
            problems.append(
                f"{page}: {work} ms of main thread per message, goal {MAIN_THREAD_MS:g}"
            )
        if traffic > KILOBYTES_PER_SECOND:
            problems.append(f"{page}: {traffic} KB/s, goal {KILOBYTES_PER_SECOND:g}")
    return problems


def _paint(found: Mapping[str, Any]) -> list[str]:
    return [
        f"{page} is painted after {row['paint_ms']} ms, goal {PAINT_MS}"
        for page, row in found.items()
        if row["paint_ms"] > PAINT_MS
    ]


def _trace(found: Mapping[str, Any]) -> list[str]:
    taken = found["interactive_ms"]
    return [f"interactive after {taken} ms, goal {TRACE_MS}"] if taken > TRACE_MS else []


def _effects(found: Mapping[str, Any]) -> list[str]:
    return [
        f"{verb} shows its effect after {row['ms']} ms, goal {EFFECT_MS}"
        if row["simulated"]
        else f"{verb} shows no effect: {row['says']}"
        for verb, row in found.items()
        if not row["simulated"] or row["ms"] > EFFECT_MS
    ]


def _figures(found: Mapping[str, Any]) -> list[str]:
    if not found["compared"]:
        return ["no figure is on two pages"]
    return [f"{fact}: {places}" for fact, places in found["contradictions"].items()]
