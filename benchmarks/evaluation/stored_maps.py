"""Maps of headlines as JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.evaluation.maps import Axis, RatioMap, conclusion
from simulator.figures import Interval

#: One map, as JSON has it: numbers, texts, and lists of them.
StoredMap = dict[str, Any]


def stored(drawn: Mapping[str, RatioMap]) -> dict[str, StoredMap]:
    """Return maps as they are stored, each cell as [x, y, mean, low, high]."""
    return {
        name: {
            "title": each.title,
            "paper": each.paper,
            "conclusion": conclusion(each),
            "x": each.x.title,
            "y": each.y.title,
            "allowed": [[each.x.low, each.x.high], [each.y.low, each.y.high]],
            "printed": [each.x.printed, each.y.printed],
            "cells": [
                [x, y, *(float(f"{value:.4g}") for value in (ratio.mean, ratio.low, ratio.high))]
                for (x, y), ratio in each.cells.items()
            ],
        }
        for name, each in drawn.items()
    }


def read_map(found: StoredMap) -> RatioMap:
    """Return a stored map. Maps of earlier versions have no ``printed``."""
    across, up = found.get("printed", (None, None))
    cells = {(x, y): Interval(mean, low, high) for x, y, mean, low, high in found["cells"]}
    columns, rows = sorted({x for x, _ in cells}), sorted({y for _, y in cells})
    (left, right), (bottom, top) = found["allowed"]
    return RatioMap(
        found["title"], found["paper"],
        Axis(found["x"], tuple(columns), left, right, across),
        Axis(found["y"], tuple(rows), bottom, top, up),
        cells,
    )  # fmt: skip
