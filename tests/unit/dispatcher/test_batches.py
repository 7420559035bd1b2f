"""The puller of batches against scripted servers: which addresses it asks, what it takes, and what it raises."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from dispatcher import batches
from dispatcher.batches import BatchExpired, RowsGone, RowsUnreachable, layout_of, pull
from dispatcher.errors import PlanError
from dispatcher.layout import Layout, Mesh, Ragged, TensorSpec
from dispatcher.plan import plan_transfer
from rollout.tokens.row_frames import end_frame, refusal_frame, row_facts, row_frame, turn_lengths
from rollout.tokens.sampled import SampledTokens
from rollout.tokens.segments import SampledTurn
from rollout.tokens.turn_records import turn_record
from tests.architecture.tree import ROOT
from tests.torch_workers import PYTHON

Pieces = dict[int, bytes]


def frame_of(row: int) -> tuple[dict[str, Any], bytes]:
    """Return a row of a manifest and its frame: two turns with a context between them."""
    records = [
        turn_record(
            SampledTurn(
                context=np.arange(4 + number, dtype=np.int32),
                tokens=SampledTokens(
                    np.full(3, 10 * row + number, np.int32), np.full(3, -0.25 * row, np.float32)
                ),
                weights_version=number,
                follows=number - 1 if number else None,
            )
        )
        for number in range(2)
    ]
    facts = row_facts(
        [turn_lengths(r.header, {k: len(v) for k, v in r.arrays.items()}) for r in records]
    )
    described = {
        "row": row, "prompt_tokens": facts.prompt_tokens, "response_tokens": facts.response_tokens,
        "sampled_tokens": facts.sampled_tokens, "bytes": facts.frame_bytes, "reward": float(row),
        "worker": "a",
    }  # fmt: skip
    return described, b"".join(row_frame(row, records))


ROWS = [frame_of(row) for row in range(4)]
GOOD: Pieces = {row: frame for row, (_, frame) in enumerate(ROWS)}


@contextmanager
def server(
    frames: Pieces, *, status: int = 200, body: bytes = b""
) -> Iterator[tuple[str, list[str]]]:
    """Serve frames by their rows; yield the address and the queries."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            rows = parse_qs(urlsplit(self.path).query)["rows"][0]
            asked.append(rows)
            numbers = [int(each) for part in rows.split(",") for each in _range(part)]
            self.send_response(status)
            self.end_headers()
            for number in numbers if status == 200 else ():
                if number not in frames:
                    return
                self.wfile.write(frames[number])
            self.wfile.write(end_frame(len(numbers)) if status == 200 else body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{serving.server_port}", asked
    finally:
        serving.shutdown()
        thread.join()
        serving.server_close()


def _range(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


def manifest(*addresses: str) -> dict[str, Any]:
    """Return a manifest of one rank, whose workers are a, b …"""
    return {
        "id": "bat_1",
        "rows": [described for described, _ in ROWS],
        "owners": [{"rank": 0, "rows": [0, 1, 2, 3], "token": "tgb_x"}],
        "workers": [{"name": "abc"[at], "address": each} for at, each in enumerate(addresses)],
    }


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PAUSE_SECONDS", 0.01)


def test_rows_are_flat_and_aligned() -> None:
    with server(GOOD) as (address, asked):
        found = pull(manifest(address), 0, connections=1)
    assert asked == ["0-3"]
    assert found["lengths"].tolist() == [15] * 4
    assert found["prompt_lengths"].tolist() == [4] * 4
    row = slice(15, 30)
    assert found["tokens"][row].tolist() == [0, 1, 2, 3, 10, 10, 10, 0, 1, 2, 3, 4, 11, 11, 11]
    assert found["loss_mask"][row].tolist() == [0] * 4 + [1] * 3 + [0] * 5 + [1] * 3
    assert found["weights_versions"][row].tolist() == [-1] * 4 + [0] * 3 + [-1] * 5 + [1] * 3
    assert found["logprobs"][row].tolist() == [0] * 4 + [-0.25] * 3 + [0] * 5 + [-0.25] * 3
    assert found["rewards"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "damaged",
    [
        {**GOOD, 2: GOOD[2][:-1] + b"\xff"},  # a checksum
        {**GOOD, 2: GOOD[2][:9] + b"\x09" + GOOD[2][10:]},  # a length
        {**GOOD, 2: GOOD[3]},  # another row
        {row: GOOD[row] for row in (0, 1)},  # a connection that is lost
    ],
)
def test_a_damaged_or_missing_row_is_pulled_elsewhere_and_no_whole_one_again(
    damaged: Pieces,
) -> None:
    with server(GOOD) as (good, all_), server(damaged) as (bad, _), server(GOOD) as (other, rest):
        expected = pull(manifest(good), 0, connections=1)
        found = pull(manifest(bad, other), 0, connections=1)
    assert (all_, rest) == (["0-3"], ["2-3"])
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_the_gateway_is_asked_last_below_its_path() -> None:
    with server({}) as (empty, _), server(GOOD) as (gateway, asked):
        found = pull(manifest(empty), 0, gateway=f"http://{gateway}", connections=1)
    assert asked == ["0-3"]
    assert found["rewards"].tolist() == [0, 1, 2, 3]


def test_where_no_address_has_the_rows_the_error_names_each() -> None:
    with (
        server({}) as (first, _),
        server(GOOD, status=503) as (second, tries),
        pytest.raises(RowsUnreachable) as caught,
    ):
        pull(manifest(first, second), 0, patience_seconds=0.05)
    assert f"a at {first}: the connection was lost" in str(caught.value)
    assert f"b at {second}: HTTP 503" in str(caught.value)
    assert tries


def test_what_no_other_address_changes_is_raised_at_once() -> None:
    gone = {**GOOD, 1: refusal_frame("rollout_acknowledged", "gone", "rol_1")}
    with (
        server(gone) as (address, _),
        server(GOOD) as (other, asked),
        pytest.raises(RowsGone) as caught,
    ):
        pull(manifest(address, other), 0)
    assert (caught.value.rollout, asked) == ("rol_1", [])
    over = server(GOOD, status=410, body=b'{"detail": "over"}')
    with over as (address, _), pytest.raises(BatchExpired, match="over"):
        pull(manifest(address), 0)


def test_servers_that_start_again_within_the_patience_are_asked_again() -> None:
    frames: Pieces = {}
    with server(frames) as (address, asked):
        starting = threading.Timer(0.05, lambda: frames.update(GOOD))
        starting.start()
        found = pull(manifest(address), 0)
        starting.join()
    assert len(asked) > 1
    assert found["rewards"].tolist() == [0, 1, 2, 3]


def test_pulled_arrays_are_the_local_ones_of_the_layout_of_the_batch() -> None:
    owners = [
        {"rank": rank, "rows": rows, "token": "tgb_x"}
        for rank, rows in ((4, [0, 2]), (5, [0, 2]), (6, [1]), (7, [1]))
    ]
    with server(GOOD) as (address, _):
        given = {**manifest(address), "owners": owners}
        layout = layout_of(given)
        pulled = {rank: pull(given, rank) for rank in (4, 5, 6, 7)}
    for rank, arrays in pulled.items():
        layout.check(rank, arrays)
        assert layout.samples("tokens", rank).tolist() == arrays["rows"].tolist()
    lengths = [15] * 4
    wanted = Layout(Mesh(ranks=(0,)), [TensorSpec("tokens", "int32", Ragged(lengths))])
    with pytest.raises(PlanError):  # row 3 is no rank's
        plan_transfer(layout, wanted)
    assert layout_of({**given, "owners": [{"rank": 0, "rows": []}]}).samples("tokens", 0).size == 0


def test_a_rank_without_rows_pulls_nothing() -> None:
    empty = {**manifest(), "owners": [{"rank": 0, "rows": [], "token": "tgb_x"}]}
    assert {name: len(array) for name, array in pull(empty, 0).items()} == dict.fromkeys(
        ("rows", "lengths", "prompt_lengths", "rewards", "tokens", "loss_mask", "logprobs", "weights_versions"), 0,
    )  # fmt: skip


@pytest.mark.cpu_seconds(2)
def test_it_runs_under_the_interpreter_and_numpy_of_torch_ranks(tmp_path: Path) -> None:
    if subprocess.run([PYTHON, "-c", "import numpy"], capture_output=True).returncode:
        pytest.skip(f"{PYTHON} has no numpy: apt-get install python3-numpy")
    program = "import json, sys; from dispatcher.batches import pull; print(pull(json.load(sys.stdin), 0)['tokens'].sum())"
    with server(GOOD) as (address, _):
        expected = pull(manifest(address), 0)["tokens"].sum()
        said = subprocess.run(
            [PYTHON, "-c", program], input=json.dumps(manifest(address)), cwd=ROOT, capture_output=True,
            text=True, check=True, env={"PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
    assert int(said.stdout) == expected
