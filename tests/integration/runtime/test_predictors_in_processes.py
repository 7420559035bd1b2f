"""A predictor runs in a process of its own: whatever it does there, the last value stays, and the reason is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from domain.fleet_events import TrajectoryPredicted
from placement.features import Features, FinishedTrajectory, TrajectoryStep
from scheduler.runtime.fleets.fleet_predictor import FleetPredictor, PredictorTimes
from tests.unit.placement.trajectories import a_trajectory, features_after

pytestmark = pytest.mark.slow

#: A package whose predictor does what the group of a trajectory says.
ODD = """
import os, threading
from placement.facts import Prediction
from placement.history import History

ANSWERS = {"nan": float("nan"), "negative": -1.0, "endless": float("inf"), "text": "many"}

class Odd(History):
    name = "odd"
    fitted = False

    def predict(self, features, text=None):
        print("what a package prints is no answer")
        does = features.group
        if does == "raises":
            raise ValueError("no such token")
        if does == "dies":
            os._exit(3)
        if does == "hangs":
            threading.Event().wait()
        if does == "silent":
            return None
        return Prediction(ANSWERS.get(does, 500.0 + len(self._groups) + 1000 * self.fitted), 1.0, 0.1, "odd")

    def refit(self, seed):
        if any(group == "unfit" for _, group in self._groups):
            os._exit(4)
        return b"fit"

    def use(self, fitted):
        self.fitted = fitted == b"fit"
"""
TIMES = PredictorTimes(
    patience_seconds=0.05, hang_seconds=3.0, restart_seconds=0.05, fit_every=2, fit_pause_seconds=0.05
)  # fmt: skip


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the package for the processes that a test starts."""
    (tmp_path / "odd_predictor.py").write_text(ODD)
    facts = tmp_path / "odd_predictor-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-predictor\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[tangram.predictors]\nodd = odd_predictor:Odd\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


class Running:
    """A predictor that runs, and what it sent."""

    def __init__(self, name: str) -> None:
        self.sent: list[TrajectoryPredicted] = []
        self.predictor = FleetPredictor("m", name, self.sent.append, TIMES)
        self._seq = 0

    def ask(self, does: str, key: str = "t") -> None:
        self.predictor.step_ended(key, _features(does))

    def finish(self, finished: FinishedTrajectory) -> None:
        self._seq += 1
        self.predictor.over("x", finished, self._seq)

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.01)


def _features(does: str) -> Features:
    return features_after(FinishedTrajectory("grpo", (TrajectoryStep(5.0),), does), 1)


@asynccontextmanager
async def running(name: str = "odd") -> AsyncIterator[Running]:
    """Run a predictor whose first answer has arrived."""
    found = Running(name)
    task = asyncio.create_task(found.predictor.run())
    await found.until(lambda: found.predictor.starts)
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("nan", "not_a_number"),
        ("negative", "negative"),
        ("endless", "infinite"),
        ("text", "not_a_prediction"),
        ("raises", "raised"),
        ("silent", "silent"),
        ("dies", "died"),
        ("hangs", "hung"),
    ],
)
async def test_the_last_value_stays_and_the_reason_is_counted(does: str, reason: str) -> None:
    async with running() as odd:
        odd.ask("well")
        await odd.until(lambda: odd.sent)
        odd.ask(does)
        await odd.until(lambda: odd.predictor.unused().get(reason))
        assert [(each.tokens, each.source) for each in odd.sent] == [(500.0, "odd")]
        assert odd.predictor.problem.startswith("predictor odd ")

        starts = 2 if does in ("dies", "hangs") else 1
        await odd.until(lambda: odd.predictor.starts == starts)
        odd.ask("well", "after")
        await odd.until(lambda: odd.sent[-1].trajectory == "after" and odd.sent[-1].source == "odd")


async def test_history_stands_in_until_a_predictor_answers() -> None:
    async with running() as odd:
        odd.finish(a_trajectory(4, tokens=100, group="seen"))
        odd.ask("hangs")
        await odd.until(lambda: odd.sent)
        assert odd.sent[-1].source == "history"
        assert odd.sent[-1].tokens == pytest.approx(300)
        odd.predictor.went_on("t")

        await odd.until(lambda: odd.predictor.starts == 2)
        odd.ask("well", "new")  # the process after it knows what the one before was fed
        await odd.until(lambda: odd.sent[-1].source == "odd")
        assert odd.sent[-1].tokens == 501


async def test_a_fit_that_dies_costs_no_answer_and_a_later_one_is_used() -> None:
    async with running() as odd:
        odd.finish(a_trajectory(2, group="unfit"))
        odd.finish(a_trajectory(2, group="p-1"))
        await odd.until(lambda: "cannot be fitted" in odd.predictor.problem)
        odd.ask("well")
        await odd.until(lambda: any(each.source == "odd" for each in odd.sent))
        assert (odd.predictor.starts, odd.sent[-1].tokens) == (1, 502)
    async with running() as well:
        well.finish(a_trajectory(2, group="p-1"))
        well.finish(a_trajectory(2, group="p-2"))
        await well.until(lambda: well.predictor.fits)
        well.ask("well")
        await well.until(lambda: any(each.source == "odd" for each in well.sent))
        assert well.sent[-1].tokens == 1502


async def test_a_predictor_that_is_not_installed_is_named_and_history_predicts() -> None:
    async with running("mine") as lacking:
        lacking.finish(a_trajectory(4, tokens=100))
        lacking.ask("well")
        await lacking.until(lambda: lacking.sent)
        await lacking.until(lambda: "not installed" in lacking.predictor.problem)
        assert lacking.sent[-1].source == "history"
        assert "boosted, history, odd" in lacking.predictor.problem
