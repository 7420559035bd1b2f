"""Rollouts from the trainer's side: bugs in installed libraries, agents that fix them or do not, hidden tests as reward.

    ./tangram up                               # in another terminal
    python examples/rollouts/demo.py           # with the Python of .venv

The demo makes bugs in copies of some pure-Python libraries, serves a scripted language model with a real byte-pair encoding, adds it as
backend, and submits each bug to handler `swe` several times. The samples of a bug follow different policies: one fixes it,
the others do not, and one of them tries to fake its tests. At the end there is a table, and the backend is removed. The tokens are deleted too, unless `--keep` leaves them for the pages
of the rollouts.

It leaves a tokenizer in `tokenizers/tangram/demo` of TANGRAM_HOME, where rollout workers look for tokenizers unless
TANGRAM_TOKENIZERS says otherwise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import click
import uvicorn

from examples.rollouts.demo_policies import SEED, policy_model, policy_of
from examples.rollouts.library_bugs import LibraryBug, library_bugs
from examples.rollouts.scripted_llm import TOKENIZER, Served
from tangram_client import Client
from tangram_client._rollout_calls import RolloutInfo
from tangram_client.context import context_path, find_context
from tangram_client.errors import Forbidden, TangramClientError, Unauthorized, Unreachable

TASK: Final = "rollout-demo"
#: Name of the tokenizer, below a folder of TANGRAM_TOKENIZERS.
TOKENIZER_NAME: Final = "tangram/demo"
_PACKAGES: Final = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
_MODULES: Final = (*_PACKAGES, "_pytest", "py")
_LOCK: Final = Path(__file__).resolve().parents[2] / "requirements" / "test.lock"
_QUIET_SECONDS: Final = 20.0
_COLUMNS: Final = (
    ("bug", 16), ("the agent", 24), ("reward", 8), ("turns", 7), ("tokens", 8),
    ("init", 9), ("run", 9), ("eval", 9),
)  # fmt: skip


@click.command(help=__doc__)
@click.option("--bugs", default=4, show_default=True, help="Number of bugs.")
@click.option("--samples", default=4, show_default=True, help="Rollouts of each bug.")
@click.option("--seed", default=0, show_default=True, help="The same seed gives the same bugs.")
@click.option("--patience", default=900.0, show_default=True, help="Seconds for all rollouts.")
@click.option(
    "--bring-pytest", is_flag=True, help="Upload pytest also where environments have one."
)
@click.option(
    "--keep", is_flag=True, help="Leave the rollouts, so that their pages have turns and patches."
)
def main(
    bugs: int, samples: int, seed: int, patience: float, bring_pytest: bool, keep: bool
) -> None:
    """Run the demo, and say how it went."""
    try:
        context = find_context()
        with Client() as client:
            client.status()
            done = play(client, bugs, samples, seed, patience, always_bring=bring_pytest, keep=keep)
    except Unreachable as error:
        raise click.ClickException(
            f"No Tangram answers at {context.url} ({context.source}): {error}\nStart one: ./tangram up"
        ) from None
    except (Unauthorized, Forbidden) as error:
        raise click.ClickException(
            f"{error}\nThe demo adds a backend, which needs a token with the scope operate of all projects;"
            " ./tangram up stores one in client.json."
        ) from None
    except (TangramClientError, LookupError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    wrong = [each for each in done if each.reward != policy_of(each.sample).reward]
    if wrong:
        listed = "\n".join(f"  {each.id} {each.outcome}: {each.reason}" for each in wrong)
        raise click.ClickException(
            f"{len(wrong)} rollouts have another reward than expected:\n{listed}"
        )
    click.echo("Every reward is the one that its agent deserves.")


def play(
    client: Client,
    count: int,
    samples: int,
    seed: int,
    patience: float,
    *,
    always_bring: bool = False,
    keep: bool = False,
) -> list[RolloutInfo]:
    """Submit the rollouts, wait for their ends, and print them. Raises TangramClientError, LookupError, ClickException."""
    found = []
    for bug in library_bugs(count, seed):
        found.append(bug)
        click.echo(
            f"{bug.name}: {bug.path}:{bug.line}  {bug.right.strip()}  →  {bug.wrong.strip()}"
        )
    place_tokenizer()
    pool = f"demo-{uuid4().hex[:8]}"
    with (
        served(found) as address,
        registered(client, pool, address),
        prepared(client, pool, always=always_bring) as environment,
    ):
        click.echo(f"The model is at {address}, pool {pool}.")
        start = client.rollouts.completions("now").next
        made = client.rollouts.submit(
            TASK,
            "swe",
            [{"id": bug.name, "data": bug.data()} for bug in found],
            samples=samples,
            llm=pool,
            environment=environment,
            sampling={"custom_tokenizer": TOKENIZER_NAME, "max_tokens": 2048, "seed": SEED},
            options={"max_iterations": 12, "test_seconds": 120},
        )
        click.echo(f"{len(made)} rollouts are submitted.")
        try:
            done = watch(client, made, start, patience)
        except BaseException:
            client.rollouts.cancel_many(made, reason="the demo has ended")
            raise
    show(done)
    if not keep:
        client.rollouts.acknowledge(made)
    return done


def watch(client: Client, made: Sequence[str], start: str, patience: float) -> list[RolloutInfo]:
    """Return the rollouts once all have ended; each is printed at its end. Raises ClickException."""
    left, done, cursor = set(made), list[RolloutInfo](), start
    deadline, said = time.monotonic() + patience, time.monotonic()
    while left:
        page = client.rollouts.completions(cursor, limit=100, wait_seconds=5, tokens=False)
        cursor = page.next
        for each in page.items:
            if each.id in left:
                left.discard(each.id)
                done.append(each)
                said = time.monotonic()
                reward = (
                    each.reason if each.reward is None else f"reward {each.reward:g}, {each.reason}"
                )
                click.echo(
                    f"[{len(done)}/{len(made)}] {each.instance} #{each.sample} {each.outcome}: {reward}"
                )
        if left and time.monotonic() - said > _QUIET_SECONDS:
            said = time.monotonic()
            now = client.rollouts.get(min(left), tokens=False)
            why = (
                now.body.get("waiting")
                or f"{'queued for ' if now.body.get('queued') else ''}{now.stage}"
            )
            click.echo(f"… {len(left)} are not finished; {now.id}: {now.state}, {why}")
        if left and time.monotonic() > deadline:
            raise click.ClickException(
                f"{len(left)} rollouts are not finished after {patience:g} s"
            )
    return sorted(done, key=lambda each: (each.instance, each.sample))


def show(done: Sequence[RolloutInfo]) -> None:
    """Print a table. Times of stages are active seconds, behind those in the queue."""
    click.echo("\n" + "".join(f"{title:<{width}}" for title, width in _COLUMNS))
    for each in done:
        times = {time_["stage"]: time_ for time_ in each.body.get("times", [])}
        reward = "none" if each.reward is None else f"{each.reward:g}"
        tokens = each.body.get("prompt_tokens", 0) + each.body.get("response_tokens", 0)
        texts = [each.instance, policy_of(each.sample).name, reward, each.turns, tokens]
        texts += [_time(times.get(stage)) for stage in ("init", "run", "eval")]
        click.echo(
            "".join(f"{text!s:<{width}}" for text, (_, width) in zip(texts, _COLUMNS, strict=True))
        )


def _time(stage: Mapping[str, Any] | None) -> str:
    return "" if stage is None else f"{stage.get('active_seconds', 0.0):.1f} s"


@contextmanager
def served(bugs: Sequence[LibraryBug]) -> Iterator[str]:
    """Serve the scripted model meanwhile; yield its address."""
    app = Served(policy_model(bugs), "vllm")
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise click.ClickException("the server of the model did not start")
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def registered(client: Client, pool: str, address: str) -> Iterator[None]:
    """Have the server as a backend meanwhile."""
    name = client.backends.add(pool, address, seats=64, dialect="vllm")
    try:
        yield
    finally:
        client.backends.remove(pool, name)


@contextmanager
def prepared(client: Client, name: str, *, always: bool = False) -> Iterator[dict[str, Any]]:
    """Yield an environment that has pytest: the usual one, or a snapshot with an uploaded one. Raises ClickException."""
    with client.trajectory(name, task=TASK) as trajectory:
        probe = trajectory.exec(["python3", "-c", "import pytest"], cpu=1)
        if probe.exit_code == 0 and not always:
            yield {}
            return
        click.echo("The environments get pytest from here.")
        where = trajectory.exec(
            ["python3", "-c", "import site; print(site.getusersitepackages())"], cpu=1
        )
        if where.exit_code != 0:
            raise click.ClickException(
                f"environments have no python3: {where.stderr or where.detail}"
            )
        with tempfile.TemporaryDirectory() as folder:
            collect_pytest(Path(folder))
            trajectory.files.upload_tree(folder, (where.stdout or "").strip())
        again = trajectory.exec(["python3", "-m", "pytest", "--version"], cpu=1)
        if again.exit_code != 0:
            raise click.ClickException(f"pytest does not run in environments: {again.stderr}")
        trajectory.snapshot(name)
    try:
        yield {"snapshot": name}
    finally:
        client.snapshots.remove(name)


def collect_pytest(folder: Path) -> None:
    """Copy pytest and what it needs into a folder, or install it there. Raises ClickException."""
    specs = [find_spec(name) for name in _MODULES]
    origins = [Path(spec.origin) for spec in specs if spec is not None and spec.origin]
    if len(origins) == len(_MODULES):
        for origin in origins:
            if origin.name == "__init__.py":
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(origin.parent, folder / origin.parent.name, ignore=ignored)
            else:
                shutil.copy(origin, folder)
        for site in {origin.parent.parent for origin in origins}:
            for name in _PACKAGES:  # pytest asks for their versions
                for facts in site.glob(f"{name}-*.dist-info"):
                    shutil.copytree(facts, folder / facts.name)
        return
    click.echo(f"Installing {', '.join(_PACKAGES)} …")
    requirements = folder / "requirements.txt"
    requirements.write_text(_pinned(_PACKAGES))
    words = ["-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    words += ["--require-hashes", "--target", str(folder), "-r", str(requirements)]
    done = subprocess.run([sys.executable, *words], text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(
            f"pytest can be found neither in environments nor here, and not be installed:\n{done.stderr}"
            "Install it for the python3 of the node, or for this one."
        )


def _pinned(names: Sequence[str]) -> str:
    """Return the requirements of some packages, with their hashes."""
    pinned: dict[str, list[str]] = {}
    for lock in (_LOCK.with_name("core.lock"), _LOCK):
        name = ""
        for line in lock.read_text().splitlines():
            if not line.startswith((" ", "#")):
                name = line.partition("==")[0]
                pinned[name] = []
            if not line.lstrip().startswith("#"):
                pinned.setdefault(name, []).append(line)
    return "\n".join(line for name in names for line in pinned[name]) + "\n"


def place_tokenizer() -> None:
    """Copy the tokenizer to where rollout workers of this machine look for it. Raises ClickException."""
    place = context_path(os.environ).parent / "tokenizers" / TOKENIZER_NAME
    try:
        shutil.copytree(TOKENIZER, place, dirs_exist_ok=True)
    except OSError as error:
        raise click.ClickException(
            f"the tokenizer cannot be stored in {place}: {error.strerror}"
        ) from None


if __name__ == "__main__":
    main()
