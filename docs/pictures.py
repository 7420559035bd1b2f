"""Screenshots of the documents, taken from a running Tangram: `make pictures`.

A separate Tangram runs episodes of a few trainers for a while: commands, calls of GPU services
(small processes with a delay) and of an API with a quota; agents sample from a fleet of modelled
engines. Chromium then takes screenshots of its pages. Cores and GPUs are declared, the processes are
real. The tests of the incident drills take the drills' screenshots.
``make pictures PICTURES="--only overview queues"`` takes some.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError

from playwright.sync_api import Browser, Page, sync_playwright

from tests.acceptance.browser.conftest import entry_link
from tests.acceptance.browser.fleets import generate, modelled_engine
from tests.acceptance.browser.pages import apply, visit
from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT

IMAGES: Final = ROOT / "docs" / "images"
WIDTH: Final = 1280
TRAINERS: Final = 10
#: Substitute for a model: answers `/` at once and every other path after 2.5 s.
MODEL: Final = """
import http.server, sys, time
class Model(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(0 if self.path == "/" else 2.5)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Model).serve_forever()
"""
SERVICE: Final = """apiVersion: tangram/v1
kind: GpuService
metadata: {{name: {name}}}
spec:
  engine: process
  degrees: [{{gpus: {gpus}, memory_bytes: 64424509440}}]
  command: [python3, "{model}", "{{port}}"]
  warm_up: {{path: /}}
"""
SEARCH: Final = """apiVersion: tangram/v1
kind: Resource
metadata: {name: "api:search"}
spec:
  limit_units: 4
  quotas: [{units: 40, window_seconds: 60}]
"""
FLEET: Final = """apiVersion: tangram/v1
kind: Fleet
metadata: {{name: Qwen3-8B}}
spec:
  engine: vllm
  workers:
{workers}
"""
AGENTS: Final = 14
SERVICES: Final = {"reward-7b": 2, "judge-32b": 4, "verifier": 4}


@dataclass(frozen=True)
class Screenshot:
    """A screenshot: the page, the height in pixels, the theme."""

    path: str
    height: int | None = 860
    scheme: str = "light"


def main() -> None:
    """Take the selected screenshots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="names of screenshots")
    parser.add_argument("--seconds", type=float, default=100.0, help="of load before them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _take_screenshots(Path(folder), options.seconds, options.only)
    if not options.only or any(name.startswith("drill") for name in options.only):
        drills = "tests/acceptance/browser/test_incident_drills.py"
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", drills], cwd=ROOT, check=True,
            env={**os.environ, "DRILL_IMAGES": str(IMAGES)},
        )  # fmt: skip


def _take_screenshots(folder: Path, seconds: float, only: list[str]) -> None:
    os.environ["TANGRAM_NODE_GPUS"] = "8"
    model = folder / "model.py"
    model.write_text(MODEL)
    tangram = Tangram(folder / "home", "--no-demo", "--cpus", "16")
    try:
        tangram.wait_until_ready()
        with _browser() as browser, ExitStack() as engines:
            page = browser.new_context().new_page()
            page.goto(entry_link(tangram))
            services = [
                SERVICE.format(name=name, gpus=gpus, model=model) for name, gpus in SERVICES.items()
            ]
            urls = [engines.enter_context(modelled_engine())[1] for _ in range(3)]
            workers = [
                f"    - {{name: w{at}, url: {url}, slots: 4}}" for at, url in enumerate(urls, 1)
            ]
            fleet = FLEET.format(workers="\n".join(workers))
            apply(page, "---\n".join([SEARCH, fleet, *services]))
            with _running_trainers(tangram):
                time.sleep(seconds)
                _submit_burst(tangram)
                for name, screenshot in _screenshots(tangram).items():
                    if not only or name in only:
                        _take_screenshot(browser, page, name, screenshot)
            if not only or "simulate" in only:
                _take_simulation(page)
    finally:
        tangram.end()


@contextmanager
def _browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@contextmanager
def _running_trainers(tangram: Tangram) -> Iterator[None]:
    """Run episodes of trainers in threads during the block."""
    stopped = threading.Event()
    trainers = [
        threading.Thread(target=_run_episodes, args=(tangram, number, stopped), daemon=True)
        for number in range(TRAINERS)
    ]
    trainers += [
        threading.Thread(target=_run_agents, args=(tangram, number, stopped), daemon=True)
        for number in range(AGENTS)
    ]
    for trainer in trainers:
        trainer.start()
    yield
    stopped.set()


def _run_episodes(tangram: Tangram, number: int, stopped: threading.Event) -> None:
    """Run episodes, one after the other: think, read, search, test, judge."""
    draw = random.Random(number)
    episode = 0
    while not stopped.is_set():
        episode += 1
        for step in range(1, 5):
            for action in _actions(draw):
                if stopped.wait(draw.uniform(0.2, 1.5)):
                    return
                named = {
                    "task": "swe-grpo-7",
                    "trajectory": f"e{number:02}-{episode:02}",
                    "step": step,
                }
                with _ignoring_errors_after_stop(stopped):
                    tangram.post("/api/v1/actions?wait=60", {**named, **action})


def _run_agents(tangram: Tangram, number: int, stopped: threading.Event) -> None:
    """Run trajectories of an agent, one after the other: sample, use a tool, sample again."""
    draw = random.Random(100 + number)
    for count in itertools.count(1):
        name, steps = f"agent-{number:02}-{count:02}", draw.choice([2, 3, 4, 6, 12])
        for _ in range(steps):
            with _ignoring_errors_after_stop(stopped):
                generate(tangram, "Qwen3-8B", name, draw.randrange(1_000, 15_000))
            if stopped.wait(draw.uniform(0.5, 4.0)):
                return
        with _ignoring_errors_after_stop(stopped):
            tangram.post(f"/api/v1/trajectories/{name}/finish", {})


@contextmanager
def _ignoring_errors_after_stop(stopped: threading.Event) -> Iterator[None]:
    try:
        yield
    except (URLError, OSError):
        if not stopped.is_set():
            raise


def _actions(draw: random.Random) -> list[Mapping[str, Any]]:
    """Return the tool calls of one step."""
    test = draw.uniform(1.0, 5.0)
    service = draw.choice(list(SERVICES))
    return [
        _command(draw.uniform(0.05, 0.6), {"cpu": 0.1}, family="read"),
        {"kind": "noop", "cost": {"api:search": 1}, "family": "search"},
        _command(test, {"cpu": [1, 2, 4]}, family="test", duration_seconds=test,
                 elasticity={"amdahl": 0.9}),
        {"kind": "call", "cost": {"gpu": [SERVICES[service]]}, "family": "judge",
         "call": {"target": f"service:{service}", "method": "GET", "path": "/score"}},
    ]  # fmt: skip


def _command(seconds: float, cost: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    command = {"command": ["sleep", f"{seconds:.2f}"]}
    return {"kind": "exec", "cost": cost, "exec": command, **fields}


def _submit_burst(tangram: Tangram) -> None:
    """Submit more actions at once than there are cores."""
    for number in range(12):
        body = {"task": "nightly-eval", "trajectory": f"eval-{number:02}"}
        tangram.post(
            "/api/v1/actions", {**body, **_command(40.0, {"cpu": 4}, duration_seconds=40.0)}
        )
    time.sleep(5.0)


def _screenshots(tangram: Tangram) -> dict[str, Screenshot]:
    """Return the screenshots by name; pages of one action or trajectory show an existing one."""
    lines = tangram.get("/api/v1/queues")["items"]
    waiting = next(line["head"] for line in lines if "cpu" in line["why"]["reason"])
    episode = "default/e00-01"
    return {
        "overview": Screenshot("/", 860),
        "queues": Screenshot("/queues/", 560),
        "waiting": Screenshot(f"/actions/{waiting}/", 760),
        "cpu": Screenshot("/cpu/", 620, "dark"),
        "gpu-past": Screenshot(f"/gpu/?at={int(time.time()) - 30}", 800),
        "fleets": Screenshot("/fleets/Qwen3-8B/", 1180),
        "task": Screenshot("/tasks/default/swe-grpo-7/", 800),
        "trajectory": Screenshot(f"/trajectories/{episode}/", 860),
        "trace": Screenshot(f"/trace/?trajectory={episode}", 640),
    }


def _take_screenshot(browser: Browser, signed_in: Page, name: str, screenshot: Screenshot) -> None:
    context = browser.new_context(
        storage_state=signed_in.context.storage_state(),
        viewport={"width": WIDTH, "height": screenshot.height or 860},
        color_scheme="dark" if screenshot.scheme == "dark" else "light",
    )
    page = context.new_page()
    page.goto("/".join(signed_in.url.split("/")[:3]) + screenshot.path)
    page.wait_for_timeout(2_500)  # frames arrive, charts are drawn
    _save(page, name)
    context.close()


def _take_simulation(page: Page) -> None:
    chosen = "&".join(
        f"policies={name}" for name in ("malleable", "minimum", "fixed(4)", "kubernetes")
    )
    visit(page, f"/simulate/?workload=ai-coding&batch=16&steps=1&nodes=1&cores=32&{chosen}")
    page.get_by_label("Title").fill("Is resizing worth it?")
    page.get_by_role("button", name="Simulate").click()
    page.locator(".titled .chip", has_text=re.compile("finished")).wait_for(timeout=120_000)
    page.set_viewport_size({"width": WIDTH, "height": 860})
    _save(page, "simulate", full_page=True)


def _save(page: Page, name: str, **options: Any) -> None:
    path = IMAGES / f"{name}.png"
    page.screenshot(path=path, **options)
    sys.stdout.write(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} KiB\n")


if __name__ == "__main__":
    main()
