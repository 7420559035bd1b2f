"""Sweeps of a headline over two knobs: which cases each cell has, and the map that follows from their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.evaluation.cases import Case, Scale
from benchmarks.evaluation.maps import Axis, RatioMap
from benchmarks.evaluation.plans import Context, Measure
from simulator.workloads.calibrated import CALIBRATIONS

POLICY: Final = "paper"
#: Cores of a node (ARL-Tangram §6.1).
NODE_CORES: Final = 256


@dataclass(frozen=True)
class Knob:
    """An axis, and what of a case its values are."""

    axis: Axis
    #: A declared parameter of the calibrated workload; else a field of the case, or ``pods``.
    parameter: str = ""
    field: str = ""

    def applied(self, case: dict[str, Any], value: float) -> dict[str, Any]:
        """Return the fields of a case with ``value``."""
        if self.parameter:
            return {**case, "calibration": (*case["calibration"], (self.parameter, value))}
        if self.field == "nodes":
            return {**case, "nodes": round(value / NODE_CORES)}
        if self.field == "pods":
            return {**case, "rival": case["rival"].format(pods=f"{value:g} pods")}
        return {**case, self.field: round(value)}

    def smaller(self) -> Knob:
        """Return it with every second value, the first and the last among them."""
        values = self.axis.values
        kept = tuple(sorted({*values[::2], values[-1]}))
        return replace(self, axis=replace(self.axis, values=kept))


@dataclass(frozen=True)
class Sweep:
    """A headline, and the two knobs that it depends on."""

    id: str
    title: str
    #: What the paper prints.
    paper: float
    workload: str
    batch: int
    #: ``{pods}`` stands for the value of a knob.
    rival: str
    measure: Measure
    x: Knob
    y: Knob
    #: Fields of all of its cases, and those of the rival's alone, which knobs do not change.
    fields: tuple[tuple[str, Any], ...] = ()
    rival_fields: tuple[tuple[str, Any], ...] = ()

    def cases(self, scale: Scale, x: float, y: float) -> tuple[list[Case], list[Case]]:
        """Return the rival's cases of one cell and Tangram's, one for each seed."""
        fields: dict[str, Any] = {"batch": self.batch, "rival": self.rival, "calibration": ()}
        fields = self.y.applied(self.x.applied(fields | dict(self.fields), x), y)
        rival, batch = fields.pop("rival"), fields.pop("batch")
        fields["workload"] = self.workload
        rivals = fields | dict(self.rival_fields)
        return scale.case(rival, batch, **rivals), scale.case(POLICY, batch, **fields)

    def places(self) -> list[tuple[float, float]]:
        """Return the cells."""
        return [(x, y) for y in self.y.axis.values for x in self.x.axis.values]

    def all_cases(self, scale: Scale) -> list[Case]:
        """Return everything that must be simulated."""
        return [
            case for place in self.places() for side in self.cases(scale, *place) for case in side
        ]

    def map(self, context: Context) -> RatioMap:
        """Return the map, from the results of its cases."""
        cells = {
            place: context.ratio(*self.cases(context.scale, *place), self.measure)
            for place in self.places()
        }
        return RatioMap(self.title, self.paper, self.x.axis, self.y.axis, cells)

    def smaller(self) -> Sweep:
        """Return it on a small grid."""
        return replace(self, x=self.x.smaller(), y=self.y.smaller())


def declared(
    workload: str, name: str, title: str, values: Sequence[float], *, printed: bool
) -> Knob:
    """Return the knob of a declared parameter; ``printed``: its value is named by the print."""
    parameter = CALIBRATIONS[workload].parameter(name)
    value = parameter.value if printed else None
    return Knob(Axis(title, tuple(values), parameter.low, parameter.high, value), parameter=name)
