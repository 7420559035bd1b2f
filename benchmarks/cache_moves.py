"""cache_moves: the move of a trajectory's cache between two workers of engine torch, against computing its prompt again.

    python -m benchmarks.cache_moves --python /usr/bin/python3 --transformers .venv/transformers

Two real workers with one small random Llama, on this machine's processor. For each length of a trajectory: the seconds of its move (as the caller
of ``pull`` sees them), the seconds until a one-token answer to its next prompt (that many tokens and 32 new ones) after the move, and the seconds of the
same answer on a worker without the cache. Wanted: a move and the answer after it take less than the answer without. What it measures is loopback and a
processor; a card has other bandwidths on both sides, and no card has run it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.record import store

ROOT: Final = Path(__file__).resolve().parents[1]
LENGTHS: Final = (256, 1024, 3072)
ROUNDS: Final = 5
NEW_TOKENS: Final = 32
#: About ten million weights; 8 KiB of cache for each token.
CONFIG: Final = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256,
    "intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 4096,
}  # fmt: skip


@contextmanager
def worker(folder: Path, python: str, library: Path, name: str) -> Iterator[httpx.Client]:
    """Start a worker; yield a client of it once its model is resident."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {"PYTHONPATH": f"{ROOT}:{library}", "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"],
                 "OPENBLAS_NUM_THREADS": "1"}  # fmt: skip
    command = [python, "-m", "managers.gpu.torch_worker", "--port", str(port), "--source"]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, str(folder / "config.json"), "--model", "bench"],
            env=variables, stdout=log, stderr=log,
        )  # fmt: skip
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=600)
    try:
        while True:
            try:
                client.post("/tangram/restore").raise_for_status()
                break
            except httpx.TransportError:
                if process.poll() is not None:
                    raise SystemExit((folder / f"{name}.log").read_text()) from None
                time.sleep(0.1)
        yield client
    finally:
        process.kill()
        process.wait()
        client.close()


def answered(client: httpx.Client, prompt: list[int], trajectory: str) -> tuple[float, int]:
    """Return the seconds of a one-token answer, and the cached tokens of its prompt."""
    began = time.perf_counter()
    answer = client.post(
        "/v1/completions",
        json={"prompt": prompt, "max_tokens": 1},
        headers={"X-Tangram-Trajectory": trajectory},
    )
    seconds = time.perf_counter() - began
    answer.raise_for_status()
    return seconds, int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def measured(source: httpx.Client, target: httpx.Client, length: int) -> dict[str, Any]:
    """Move trajectories of ``length`` tokens; return medians in seconds."""
    moves, after, without, moved = [], [], [], {}
    prompt = [3 + number % 500 for number in range(length)]
    longer = [*prompt, *range(3, 3 + NEW_TOKENS)]
    for number in range(ROUNDS):
        name = f"t{length}-{number}"
        answered(source, prompt, name)
        began = time.perf_counter()
        moved = target.post(
            f"/tangram/caches/{name}/pull", json={"source": str(source.base_url).rstrip("/")}
        ).json()
        moves.append(time.perf_counter() - began)
        seconds, cached = answered(target, longer, name)
        if cached != length:
            raise SystemExit(f"{cached} tokens were cached after a move of {moved}")
        after.append(seconds)
        without.append(answered(source, longer, name)[0])
    move, warm, cold = (statistics.median(each) for each in (moves, after, without))
    return {
        "tokens": length,
        "bytes": moved["bytes"],
        "move_seconds": move,
        "answer_after_move_seconds": warm,
        "answer_without_seconds": cold,
        "gain": cold / (move + warm),
    }


def main() -> int:
    """Return 0 when each move paid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default="/usr/bin/python3", help="an interpreter with torch")
    parser.add_argument("--transformers", type=Path, default=Path(sys.prefix) / "transformers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        start = (folder, options.python, options.transformers)
        with worker(*start, "source") as source, worker(*start, "target") as target:
            rows = [measured(source, target, length) for length in LENGTHS]
    print(f"{'tokens':>7} {'MiB':>7} {'move ms':>9} {'after ms':>9} {'without ms':>11} {'gain':>6}")
    for row in rows:
        print(
            f"{row['tokens']:7} {row['bytes'] / 2**20:7.2f} {1000 * row['move_seconds']:9.1f}"
            f" {1000 * row['answer_after_move_seconds']:9.1f}"
            f" {1000 * row['answer_without_seconds']:11.1f} {row['gain']:6.2f}"
        )
    store("cache_moves", {"rows": rows, "config": CONFIG})
    return 0 if all(row["gain"] > 1 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
