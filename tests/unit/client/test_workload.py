"""The generator: the same seed, the same trajectories; the stated mixture."""

from __future__ import annotations

from itertools import islice
from statistics import median

from tangram_client.traces.generator import FAMILIES, generate
from tangram_client.traces.recording import parse_recording


def test_same_seed_gives_the_same_trajectories() -> None:
    assert list(generate(5, seed=7)) == list(generate(5, seed=7))


def test_another_seed_gives_others() -> None:
    assert list(generate(5, seed=7)) != list(generate(5, seed=8))


def test_first_ones_do_not_depend_on_how_many_are_asked_for() -> None:
    assert list(generate(2, seed=7)) == list(islice(generate(None, seed=7), 2))


def test_everything_generated_is_a_valid_recording() -> None:
    for body in generate(20, seed=1):
        recording = parse_recording(body, "generated")
        assert 3 <= len(recording.steps) <= 200
        assert recording.steps[0].think_seconds == 0.0


def test_mixture_is_the_stated_one() -> None:
    steps = [step for body in generate(60, seed=3) for step in body["steps"]]

    for family in FAMILIES:
        own = [step for step in steps if step["family"] == family.name]
        assert abs(len(own) / len(steps) - family.share) < 0.03
        assert 0.6 < median(step["dur_s"] for step in own) / family.seconds.median < 1.6
    bursts = [step for step in steps if step["cpu_pct_mean"] > 50]
    assert 0.01 < len(bursts) / len(steps) < 0.05


def test_shares_add_up() -> None:
    assert abs(sum(family.share for family in FAMILIES) - 1.0) < 1e-9
