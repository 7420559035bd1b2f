"""The example that trains an agent, on a running Tangram: steps, a switch of the degree, then kill -9 of ranks, engines, parts of Tangram and the trainer."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.agent_training.checkpoints import CheckpointFacts, CheckpointStore
from examples.agent_training.training_options import PARTS
from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT

#: Teaching its first model takes minutes of all cores; parts of the example are in tests/integration/training.
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1500)]

#: One rank of an engine has the memory for six rollouts of 768 tokens, and not of 1,024; two ranks have it for 1,024.
SIZES = [
    "--taught", "120", "--epochs", "16", "--prompts", "1", "--samples", "4", "--measured", "0", "--ranks", "4",
    "--engines", "1", "--rank-memory-mb", "26", "--context", "512", "--context", "768", "--context", "1024",
]  # fmt: skip


class Run:
    """One run of the command, started as often as needed."""

    def __init__(self, tangram: Tangram, folder: Path, *options: str) -> None:
        self.tangram, self.folder, self.options = tangram, folder, options
        self.store = CheckpointStore(folder)
        self.process: subprocess.Popen[str] | None = None

    def start(self, steps: int) -> None:
        """Start the command."""
        command = [
            sys.executable,
            "examples/train_agent.py",
            "--run",
            str(self.folder),
            *SIZES,
            *self.options,
        ]
        with (self.folder / "said").open("a") as said:
            self.process = subprocess.Popen(
                [*command, "--steps", str(steps)], cwd=ROOT, text=True, stdout=said,
                stderr=subprocess.STDOUT, env={**os.environ, "TANGRAM_HOME": str(self.tangram.home)},
            )  # fmt: skip

    def until(self, read: Callable[[], Any]) -> Any:
        """Wait until something is there, while the command runs."""
        end = time.monotonic() + 600
        assert self.process is not None
        while not (found := read()):
            assert self.process.poll() is None, (self.folder / "said").read_text()
            assert time.monotonic() < end, (self.folder / "said").read_text()
            time.sleep(0.1)
        return found

    def until_a_step_is_taken(self) -> None:
        """Wait until another update is committed."""
        step = self.newest().step
        self.until(lambda: self.newest().step > step)

    def end(self) -> None:
        """Wait for its proper end."""
        assert self.process is not None
        assert self.process.wait(600) == 0, (self.folder / "said").read_text()

    def newest(self) -> CheckpointFacts:
        """Return the facts of the newest checkpoint."""
        newest = self.store.newest()
        assert newest is not None
        return newest.facts

    def logged(self) -> list[dict[str, Any]]:
        """Return the lines of its log."""
        file = self.folder / "steps.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture(scope="module")
def run(tangram: Tangram, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    found = Run(tangram, tmp_path_factory.mktemp("training"))
    yield found
    if found.process is not None and found.process.poll() is None:
        found.process.kill()
        found.process.wait()


#: Prints a page of the console as an administrator reads it.
_PRINT_PAGE = """
import django, sys
django.setup()
from http.cookiejar import CookieJar
from urllib.request import HTTPCookieProcessor, build_opener
from django.contrib.auth import get_user_model
from tangram_web.dashboard.entry_links import entry_link
browser = build_opener(HTTPCookieProcessor(CookieJar()))
link = entry_link(get_user_model().objects.filter(is_superuser=True).first())
browser.open(sys.argv[1] + link[link.index("/enter/"):], timeout=60).read()
sys.stdout.write(browser.open(sys.argv[1] + sys.argv[2], timeout=60).read().decode())
"""


def page(tangram: Tangram, path: str) -> str:
    """Return a page, by a link of its own: the one that Tangram prints works once and for ten minutes."""
    environment = {
        **os.environ, "TANGRAM_HOME": str(tangram.home), "DJANGO_SETTINGS_MODULE": "tangram_web.settings",
    }  # fmt: skip
    command = [sys.executable, "-c", _PRINT_PAGE, tangram.access["url"], path]
    return subprocess.run(command, cwd=ROOT, env=environment, text=True, check=True, capture_output=True).stdout  # fmt: skip


def killed(*words: str, environment: str = "") -> bool:
    """Kill the one process whose command has all these words; return whether there was one."""
    for place in Path("/proc").iterdir():
        if not place.name.isdecimal():
            continue
        try:
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            variables = (place / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if all(word in command for word in words) and (
            not environment or environment.encode() in variables
        ):
            os.kill(int(place.name), signal.SIGKILL)
            return True
    return False


def ended_rollouts(tangram: Tangram) -> Iterator[dict[str, Any]]:
    """Yield all rollouts of the service that have ended."""
    after = "0"
    while (answer := tangram.get(f"/api/v1/rollouts/completions?after={after}"))["items"]:
        yield from answer["items"]
        after = answer["next"]


def test_steps_are_taken_with_all_parts_and_engines_are_divided(run: Run) -> None:
    run.start(steps=4)
    run.until(lambda: run.store.newest() is not None and run.newest().step >= 1)
    longer = {"context": 600, "context_longest": 900, "responses": 6}
    run.tangram.post("/api/v1/selectors/train-agent/observations", longer)
    run.end()

    facts = run.newest()
    assert [update.step for update in facts.applied] == [1, 2, 3, 4]
    steps = [line for line in run.logged() if line["event"] == "step"]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert all(0 <= line["reward"] <= 1 and line["turns"] >= 1 for line in steps)
    assert any(line["act_seconds"] for line in steps)
    # The weights that sampled are those that learn: no ratio is clipped.
    assert steps[0]["clipped"] == 0
    assert run.tangram.get("/api/v1/tasks/train-agent")["finished"] > 0

    # Contexts have outgrown the memory of one rank: the engine was divided between two steps.
    selector = run.tangram.get("/api/v1/selectors/train-agent")
    assert selector["profile"]["out_of_memory"] > 0
    assert (steps[0]["degree"], steps[0]["switches"]) == (1, 0)
    assert (steps[-1]["degree"], steps[-1]["switches"]) == (2, 1)
    assert selector["switches"][-1]["code"] in {"first", "memory"}
    shown = page(run.tangram, "/tasks/default/train-agent/")
    assert 'href="/parallelism/train-agent/"' in shown
    assert selector["switches"][-1]["why"] in shown


def test_training_goes_on_when_parts_are_killed(run: Run) -> None:
    of_this_one = f"TANGRAM_HOME={run.tangram.home}"
    run.start(steps=10)
    run.until(lambda: killed("rank_process", "--rank 1", str(run.folder)))
    run.until(lambda: killed("-Q rollout", environment=of_this_one))
    run.until(lambda: killed("tensor_parallel.server", str(run.folder)))
    run.until(lambda: run.newest().step >= 5)
    for words in (("-Q loop",), ("-Q node",), ("uvicorn",)):
        assert killed(*words, environment=of_this_one)
        run.until_a_step_is_taken()
    assert killed("redis-server", str(run.tangram.home))
    run.until(lambda: run.newest().step >= 9)
    assert run.process is not None
    run.process.kill()
    run.process.wait()

    run.start(steps=11)
    run.end()

    applied = run.newest().applied
    assert [update.step for update in applied] == list(range(1, 12))
    pairs = itertools.pairwise(applied)
    assert all(one.after == two.before for one, two in pairs)
    groups = [name for update in applied for name in update.groups]
    assert len(groups) == len(set(groups)), "no group trains twice"


def test_a_run_without_any_part_takes_a_step(run: Run, tmp_path: Path) -> None:
    left_out = itertools.chain.from_iterable(("--without", part) for part in PARTS)
    alone = Run(
        run.tangram, tmp_path, "--start", str(run.folder), "--name", "alone", "--samples", "16",
        "--rank-memory-mb", "0", *left_out,
    )  # fmt: skip
    alone.start(steps=1)
    alone.end()

    assert [update.step for update in alone.newest().applied] == [1]
    assert alone.logged()[-1]["without"] == sorted(PARTS)
    read = run.tangram.get
    assert "alone" not in [fleet["name"] for fleet in read("/api/v1/fleets")["results"]]
    assert "alone" not in [found["name"] for found in read("/api/v1/selectors")["selectors"]]
    assert read("/api/v1/tasks/alone")["finished"] > 0
    assert "alone" not in {found["task"] for found in ended_rollouts(run.tangram)}
