"""Maps of headlines say where a printed ratio holds, and only of what the print allows."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.evaluation.cases import STANDARD
from benchmarks.evaluation.headline_sweeps import SWEEPS, chosen
from benchmarks.evaluation.heatmap import BELOW, REACHED, heatmap, place, tint
from benchmarks.evaluation.maps import Axis, RatioMap, conclusion
from benchmarks.evaluation.stored_maps import stored
from benchmarks.evaluation.sweeps import merged
from domain.errors import InvalidRequest
from simulator.compare import check_policies
from simulator.figures import interval
from simulator.workloads.calibrated import CALIBRATIONS

X = Axis("share", (0.25, 0.5, 1.0), 0.25, 0.5, 0.5)
Y = Axis("cores", (128.0, 1280.0), 128.0, 1280.0, 400.0)


def a_map(*ratios: float, x: Axis = X, y: Axis = Y) -> RatioMap:
    places = [(across, up) for up in y.values for across in x.values]
    cells = {at: interval([ratio]) for at, ratio in zip(places, ratios, strict=True)}
    return RatioMap("ACT <of> coding", 4.3, x, y, cells)


def test_a_number_holds_where_a_cell_of_the_print_has_it():
    """Four cells lie in the print, two of them reach 4.3; the 5.0 is the nearer one."""
    said = conclusion(a_map(1.0, 5.0, 99.0, 2.0, 6.0, 99.0))

    assert said == (
        "4.3 holds at share 0.5 and cores 128, where the ratio is 5; "
        "it holds in 2 of the 4 cells that the print allows."
    )


def test_what_the_print_rules_out_reaches_nothing():
    said = conclusion(a_map(1.0, 2.0, 99.0, 3.0, 2.5, 99.0))

    assert said == (
        "4.3 is not reached in the range that the print allows; "
        "the largest is 3 at share 0.25 and cores 1,280."
    )


def test_without_a_cell_in_the_print_nothing_is_said_of_the_number():
    nowhere = Axis("share", (0.25, 0.5, 1.0), 2.0, 3.0)

    said = conclusion(a_map(*[9.0] * 6, x=nowhere))

    assert said == "No simulated cell lies in the range that the print allows for 4.3."


@given(st.lists(st.floats(0.01, 1000.0), min_size=6, max_size=6))
def test_a_number_is_reached_exactly_where_the_largest_allowed_ratio_is_not_below_it(ratios):
    drawn = a_map(*ratios)
    largest = max(each.mean for each in drawn.allowed().values())

    assert (" holds at " in conclusion(drawn)) == (largest >= 4.3)


class _Shapes(HTMLParser):
    """Counts elements and checks that what is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.append((tag, dict(attrs)))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_map_has_a_border_where_the_print_allows_and_a_ring_at_its_point():
    shapes = _Shapes()
    shapes.feed(heatmap(a_map(1.0, 5.0, 99.0, 2.0, 6.0, 99.0)))
    cells = [attributes for tag, attributes in shapes.seen if tag == "rect"]
    rings = [attributes for tag, attributes in shapes.seen if tag == "circle"]

    assert shapes.open == []
    assert len(cells) == 6
    assert sum("stroke" in each for each in cells) == 4
    assert len(rings) == 1


def test_a_map_without_a_printed_point_has_no_ring():
    drawn = a_map(*[1.0] * 6, y=Axis("cores", (128.0, 1280.0), 128.0, 1280.0))

    assert "<circle" not in heatmap(drawn)
    assert heatmap(drawn).count("stroke-dasharray") == 1


@pytest.mark.parametrize(
    ("value", "where"), [(0.25, 0.5), (0.5, 1.5), (1.0, 2.5), (0.5**0.5, 2.0), (0.1, None)]
)
def test_a_value_lies_between_the_cells_on_a_logarithmic_scale(value, where):
    assert place(X, value) == (None if where is None else pytest.approx(where))


@given(st.floats(0.0, 1e6))
def test_the_colour_says_whether_a_ratio_reaches_the_printed_one(ratio):
    colour, strength = tint(ratio, 4.3)

    assert colour == (REACHED if ratio >= 4.3 else BELOW)
    assert 0.1 <= strength <= 0.7


@pytest.mark.parametrize("sweep", SWEEPS, ids=[each.id for each in SWEEPS])
def test_both_sides_of_a_cell_meet_the_same_workload(sweep):
    for x, y in sweep.places():
        rivals, ours = sweep.cases(STANDARD, x, y)

        for rival, own in zip(rivals, ours, strict=True):
            check_policies([rival.policy])
            assert rival.policy != own.policy
            assert own.policy == "paper"
            assert (rival.batch, rival.calibration) == (own.batch, own.calibration)
            assert (rival.seed, rival.larger_nodes) == (own.seed, own.larger_nodes)
            assert own.workload in CALIBRATIONS


def test_cells_of_a_sweep_differ_in_what_its_axes_vary():
    for sweep in SWEEPS:
        cases = [sweep.cases(STANDARD, *each) for each in sweep.places()]

        assert len({(tuple(rivals), tuple(ours)) for rivals, ours in cases}) == len(cases)


def test_a_small_grid_keeps_the_ends_of_each_axis():
    for small, whole in zip(chosen([], small=True), SWEEPS, strict=True):
        for part, all_of_it in ((small.x.axis, whole.x.axis), (small.y.axis, whole.y.axis)):
            assert (part.values[0], part.values[-1]) == (all_of_it.values[0], all_of_it.values[-1])
            assert set(part.values) < set(all_of_it.values)


def test_an_unknown_sweep_is_named():
    with pytest.raises(InvalidRequest, match="there is no sweep 'x'; there are coding-rewards"):
        chosen(["x"], small=False)


def test_what_is_stored_has_every_cell_and_the_sentence():
    drawn = a_map(1.0, 5.0, 99.0, 2.0, 6.0, 99.0)
    body = stored({"coding": drawn})["coding"]

    assert body["conclusion"] == conclusion(drawn)
    assert body["cells"][1] == [0.5, 128.0, 5.0, 5.0, 5.0]
    assert len(body["cells"]) == 6


def test_sweeps_that_are_not_run_again_stay_stored_with_their_time():
    before = {
        "measured_at": "2026-01-01T00:00:00Z",
        "maps": {"old": {"x": "a"}, "again": {"x": "b"}},
    }

    found = merged(before, {"again": {"x": "c"}})

    assert found["old"] == {"x": "a", "stored_at": "2026-01-01T00:00:00Z"}
    assert found["again"]["x"] == "c"
    assert found["again"]["stored_at"] > "2026-01-01T00:00:00Z"
