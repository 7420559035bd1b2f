"""The card of an engine: what follows from moments of tokens, what is refused, and all parts against the modelled engine's HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import rollout_card, rollout_card_parts
from benchmarks.rollout_card_engine import TimedStream, Unmeasured, vllm_kv_tokens
from benchmarks.rollout_card_parts import Grid, completed, fitting, order_share, token_seconds
from domain.fleets import FleetSpec, check_fleet
from domain.manifest import read
from managers.llm.fake.engine_model import EngineModel
from managers.llm.fake.engine_server import Behaviour, EngineServer
from managers.llm.fake.engine_spec import MODELLED
from managers.llm.fake.paced_engine import PacedEngine
from tests.scripted_backends import serving


def a_stream(*moments: tuple[float, int]) -> TimedStream:
    return TimedStream(0.0, list(moments))


def test_time_counts_while_all_streams_generate() -> None:
    first = a_stream((1.0, 1), (2.0, 11), (5.0, 71))
    second = a_stream((2.0, 1), (4.0, 21))

    # From 2 to 4 s: 40 tokens of the one, which is faster once it is alone, and 20 of the other.
    assert token_seconds([first, second]) == pytest.approx(2.0 / 30)
    assert token_seconds([first]) == pytest.approx(4.0 / 70)
    assert token_seconds([a_stream((1.0, 1), (2.0, 9)), a_stream((3.0, 1), (4.0, 9))]) is None


def test_points_that_do_not_fit_are_left_out_or_continued() -> None:
    grid = Grid((1, 8, 64), (512, 8192), (512, 90_000), 100)

    assert fitting(grid, 16, 20_000.0) == Grid((1, 8), (512, 8192), (512,), 100)
    with pytest.raises(Unmeasured, match="300 tokens of cache have room for no point"):
        fitting(grid, 16, 300.0)
    rows, filled = completed((1, 2, 4), [[1.0, 2.0, 4.0], [2.0, 3.0], [5.0]])
    assert (rows, filled) == ([[1.0, 2.0, 4.0], [2.0, 3.0, 5.0]], 1)


def test_an_engine_that_does_not_rank_serves_half_of_the_pairs_in_order() -> None:
    assert order_share([1.0, 2.0], [3.0, 4.0]) == 1.0
    assert order_share([1.0, 4.0], [2.0, 3.0]) == 0.5


def test_the_cache_of_vllm_is_in_its_metrics() -> None:
    line = 'vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="2000"} 1.0\n'

    assert vllm_kv_tokens("a 1\n" + line) == 32_000.0
    assert vllm_kv_tokens("a 1\n") is None


@pytest.mark.parametrize(
    ("words", "count", "engines", "said"),
    [
        ([], 1, ["vllm"], "give --model"),
        (["--model", "m"], 0, ["vllm"], "no NVIDIA GPU"),
        (["--model", "m"], 1, ["sglang"], "vllm is not installed"),
        (["--model", "m", "--degrees", "1", "4"], 2, ["vllm"], "degree 4 needs as many GPUs"),
        (["--url", "http://h:1"], 0, [], "give --slots"),
        (["--url", "http://h:1", "--slots", "4"], 0, [], ""),
    ],
)
def test_what_is_missing_is_said(
    words: list[str], count: int, engines: list[str], said: str
) -> None:
    why = rollout_card.missing(rollout_card.read_options(words), count, engines)

    assert said in why if said else not why


def test_nothing_is_measured_without_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert rollout_card.main([]) == 2
    assert "nothing can be measured: give --model" in capsys.readouterr().err


def an_engine(dialect: str, **behaviour: Any) -> EngineServer:
    engine = PacedEngine(EngineModel(MODELLED["8B"], 1, 4), 20.0)
    return EngineServer(engine, Behaviour(dialect, **behaviour))


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_all_parts_are_measured_over_http(
    tmp_path: Path, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_card_parts, "_ROUNDS", 1)
    store = {"store": "file"} if dialect == "sglang" else {}
    async with (
        serving(an_engine(dialect, **store)) as first,
        serving(an_engine(dialect, **store)) as second,
    ):
        words = [
            "--url", f"{first}/v1", "--url", second, "--engine", dialect, "--slots", "4",
            "--name", "card", "--batches", "1", "2", "--contexts", "64", "512", "--prefills", "512",
            "--tokens", "256", "--moved-tokens", "2048", "--order-tokens", "2048",
        ]  # fmt: skip
        card = rollout_card.Card(rollout_card.read_options(words), tmp_path)
        await rollout_card.run(card)
        card.store_fleet()

    assert card.left_out == []
    stored = json.loads((tmp_path / "rollout_card-card.json").read_text())
    assert stored["order"]["urgent_first_share"] == 1.0
    assert stored["fold"]["same_answer"] is True
    assert stored["move"]["adapter"] == ("shared" if dialect == "sglang" else "none")
    document = json.loads((tmp_path / "rollout_card-card-fleet.json").read_text())
    spec = read(FleetSpec, document["spec"])
    check_fleet("card", spec)
    assert spec.profile is not None
    [degree] = spec.profile.degrees
    assert (degree.batches, degree.contexts) == ((1, 2), (64, 512))
    assert degree.wake_seconds is not None


@pytest.mark.slow
async def test_a_part_that_an_engine_cannot_do_is_left_out_and_named(tmp_path: Path) -> None:
    engine = an_engine("vllm", priorities="refused")
    async with serving(engine) as url:
        words = ["--url", url, "--slots", "2", "--batches", "1", "--contexts", "64", "--prefills",
                 "64", "--tokens", "64", "--no-store"]  # fmt: skip
        card = rollout_card.Card(rollout_card.read_options(words), tmp_path)
        await rollout_card.run(card)

    assert card.left_out == ["order", "move"]
    assert "Priority scheduling is not enabled" in card.found["order"]["left_out"]
    assert "give --url twice" in card.found["move"]["left_out"]
    assert list(tmp_path.iterdir()) == []
