"""Workers of engine ``torch`` for tests: real processes with small random models of transformers, on the processor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx

from tests.architecture.tree import ROOT
from tests.ports import free_port

#: Has Debian's torch; ours has none.
PYTHON = "/usr/bin/python3"
#: `./tangram test` installs it.
LIBRARY = Path(sys.prefix) / "transformers"
#: Its vocabulary has room for bytes and the marks of chats.
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 512,
}  # fmt: skip
VARIABLES = {
    "PYTHONPATH": f"{ROOT}:{LIBRARY}",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def write_config(folder: Path, **members: Any) -> Path:
    """Write the configuration of a model, with other members than `CONFIG` has; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps({**CONFIG, **members}))
    return path


class TorchWorker:
    """One worker, from its start to its end. Its model is resident."""

    def __init__(self, source: Path, *options: str, resident: bool = True) -> None:
        assert LIBRARY.is_dir(), "./tangram test installs it"
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [PYTHON, "-m", "managers.gpu.torch_worker", "--port", str(port), "--source"]
        self._log = source.parent / f"worker-{port}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, str(source), "--model", "tiny", "--at-once", "2", *options],
                env={**VARIABLES, "PATH": os.environ["PATH"]},
                cwd=source.parent,
                stdout=log,
                stderr=log,
            )
        self.client = httpx.Client(base_url=self.url, trust_env=False, timeout=180)
        self._resident = resident

    def __enter__(self) -> Self:
        while True:
            try:
                self.state()
                break
            except httpx.TransportError:
                assert self._process.poll() is None, self._log.read_text()
        if self._resident:
            self.post("/tangram/restore")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self.client.close()

    def kill(self) -> None:
        """Kill it, as a crash does."""
        self._process.kill()
        self._process.wait()

    def post(self, path: str, body: Any = None, trajectory: str = "") -> Any:
        """Return the JSON of an answer that must be good."""
        answer = self.ask(path, body, trajectory)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ask(self, path: str, body: Any = None, trajectory: str = "") -> httpx.Response:
        """Return an answer."""
        headers = {"X-Tangram-Trajectory": trajectory} if trajectory else {}
        return self.client.post(path, json=body, headers=headers)

    def state(self) -> dict[str, Any]:
        """Return what it says of itself."""
        found: dict[str, Any] = self.client.get("/tangram/state").json()
        return found

    def complete(self, prompt: list[int], trajectory: str = "", **members: Any) -> dict[str, Any]:
        """Return the choice of a completion, with its ``usage``."""
        body = {"prompt": prompt, "max_tokens": 8, "return_token_ids": True, "logprobs": 0}
        answer = self.post("/v1/completions", {**body, **members}, trajectory)
        return {**answer["choices"][0], "usage": answer["usage"]}

    def score(self, ids: list[int], trajectory: str = "") -> tuple[list[float], int]:
        """Return the logits after ``ids``, and how many of them were cached."""
        answer = self.post("/v1/score", {"input": ids}, trajectory)
        details = answer.get("usage", {}).get("prompt_tokens_details", {})
        return answer["score"], details.get("cached_tokens", 0)

    def cached(self) -> dict[str, int]:
        """Return the tokens that are cached for each trajectory."""
        listed = self.client.get("/tangram/caches").json()["caches"]
        return {each["trajectory"]: each["tokens"] for each in listed}

    def drop(self, trajectory: str) -> None:
        """Drop a cache."""
        path = f"/tangram/caches/{quote(trajectory, safe='')}"
        self.client.delete(path).raise_for_status()

    def prefilled(self) -> int:
        """Return the tokens of prompts that it has computed."""
        found: int = self.state()["prefilled_tokens"]
        return found


def cached_tokens(choice: dict[str, Any]) -> int:
    """Return the cached tokens of the prompt of a completion."""
    found: int = choice["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found
