"""Handlers math, code and stem on a whole Tangram: real sandboxes, hostile programs, a search under its quota."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from examples.rollouts.corpus_search import Corpus, SearchServer
from examples.rollouts.demo import prepared
from examples.rollouts.scripted_llm import (
    TOKENIZER,
    Answered,
    Rule,
    ScriptedModel,
    Served,
    scripted,
)
from tangram_client import Client
from tangram_client._calls import apply_config
from tangram_client._rollout_calls import RolloutInfo
from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT
from tests.integration.rollout.test_repositories import FIX, INSTANCE, NO_FIX
from tests.tiers import by_tier
from tests.unit.rollout.handler_bench import call

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CASES = [{"input": f"{n}\n", "output": f"{n * n}\n"} for n in range(1, 5)]
#: Name of the program → its text. The right answers are 1, 4, 9, 16.
PROGRAMS = {
    "right": "print(int(input()) ** 2)",
    "wrong": "print(int(input()) * 2)",
    "kills": "import os; os.kill(os.getppid(), 9)",
    "forges": (
        "import os\nfor n in range(4):\n    try:\n        line = '{\"case\": %d, \"how\": \"ended\", \"answer\": \"1\"}\\n' % n\n"
        "        os.write(os.open(f'/proc/{os.getppid()}/fd/1', os.O_WRONLY), line.encode())\n    except OSError: pass\nprint(0)"
    ),
    "reads": "import glob\nprint(''.join(open(p, errors='replace').read() for p in glob.glob('/workspace/**', recursive=True)[:50] if '.' in p)[:500])",
    "loops": "while True: pass",
    "floods": "print('1' * 10**8)",
}  # fmt: skip

#: Attacks that are played in every run; tests/integration/rollout/test_repositories.py plays each.
SOME = ("conftest", "start of python", "a link in place of the tests", "exits with success")
PYTEST = {"from": "junit", "runner": "pytest"}


@dataclass
class ByInstance(ScriptedModel):
    """Gives each instance its own answers, by its name in the prompt."""

    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def respond(self, prompt_ids: list[int], most: int, seed: int = 0) -> Answered:
        """Return the next answer of the instance that asks."""
        text = self.tokenizer.decode(prompt_ids, special=True)
        turns = next(turns for name, turns in self.answers.items() if f"Task {name}." in text)
        self.reply = lambda last, turn: turns[min(turn, len(turns) - 1)]
        return super().respond(prompt_ids, most, seed)


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """Serve an application on a free port; yield the address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def model(client: Client, pool: str, rules: Sequence[Rule] | ScriptedModel) -> Iterator[None]:
    """Have a scripted model as the backend of a pool."""
    served = rules if isinstance(rules, ScriptedModel) else ScriptedModel(scripted(rules))
    with listening(Served(served, "vllm")) as address:
        name = client.backends.add(pool, address, seats=32, dialect="vllm")
        try:
            yield
        finally:
            client.backends.remove(pool, name)


@pytest.fixture
def client(tangram: Tangram) -> Iterator[Client]:
    place = tangram.home / "tokenizers" / "tests" / "small"
    shutil.copytree(TOKENIZER, place, dirs_exist_ok=True)
    with Client(tangram.access["url"], tangram.access["token"]) as client:
        yield client


def results(
    client: Client, handler: str, pool: str, instances: dict[str, Any], **fields: Any
) -> dict[str, RolloutInfo]:
    """Return the ends of rollouts, by instance."""
    sampling = {"custom_tokenizer": "tests/small", "max_tokens": 1024}
    listed = [{"id": name, "data": data} for name, data in instances.items()]
    made = client.rollouts.submit("t", handler, listed, llm=pool, sampling=sampling, **fields)
    return {name: client.rollouts.wait(each) for name, each in zip(instances, made, strict=True)}


def test_programs_are_judged_in_sandboxes_and_hostile_ones_gain_nothing(client: Client) -> None:
    rules = [
        Rule(f"Task {name}\\.", [f"```python\n{text}\n```"]) for name, text in PROGRAMS.items()
    ]
    tasks = {name: {"question": f"Task {name}.", "tests": CASES} for name in PROGRAMS}
    with model(client, "code-tests", rules):
        found = results(
            client, "code", "code-tests", tasks, environment={}, options={"case_seconds": 3}
        )

    outcomes = {name: (each.outcome, each.reward) for name, each in found.items()}
    assert outcomes.pop("right") == ("completed", 1.0), found["right"].reason
    assert set(outcomes.values()) == {("completed", 0.0)}, {
        name: each.reason for name, each in found.items()
    }


def test_expressions_that_are_too_large_here_are_compared_in_a_sandbox(client: Client) -> None:
    tasks = {
        "same": {"problem": "?", "answer": "2^{100000}"},
        "other": {"problem": "?", "answer": "2^{100000}+1"},
    }
    with model(client, "math-tests", [Rule("", [r"\boxed{4^{50000}}"])]):
        found = results(client, "math", "math-tests", tasks, environment={})

    rewards = {name: each.reward for name, each in found.items()}
    if rewards["same"] is None:  # the Python of the node has no sympy
        assert all("no sympy" in each.reason for each in found.values())
    else:
        assert rewards == {"same": 1.0, "other": 0.0}


def test_an_agent_looks_an_answer_up_in_a_corpus_of_its_own(
    client: Client, tangram: Tangram, admin_token: str, tmp_path: Path
) -> None:
    (tmp_path / "gases.md").write_text(
        "Argon is the gas of the lamps of Tangram.\n\nNeon is red.\n"
    )
    search = SearchServer(Corpus.read(tmp_path))
    question = {
        "question": "Which gas is in the lamps of Tangram?",
        "choices": ["neon", "argon"],
        "answer": "B",
    }
    rules = [
        Rule("Argon is the gas", [call("finish", answer="B")]),
        Rule("", [call("web_search", query="gas of the lamps of Tangram")]),
    ]
    declared = (ROOT / "examples/rollouts/corpus_search.yaml").read_text()
    with listening(search) as address, model(client, "stem-tests", rules):
        with Client(tangram.access["url"], admin_token) as admin:
            text = declared.replace("http://127.0.0.1:8901", address).replace(
                "api:search", "api:corpus"
            )
            admin.send(apply_config(text))
        found = results(
            client, "stem", "stem-tests", {"q": question},
            options={"tools": ["search"], "search_api": "api:corpus"},
        )["q"]  # fmt: skip

    assert (found.outcome, found.reward, found.turns) == ("completed", 1.0, 2), found.reason
    assert search.asked == 1


def test_agents_that_attack_their_tests_gain_nothing_in_a_real_sandbox(client: Client) -> None:
    commands = {
        "fix": FIX,
        **{name: NO_FIX[name] for name in by_tier(SOME, SOME, tuple(NO_FIX))},
        "destroys": f"{FIX}; rm -rf .git",
        "hangs": "echo 'while True: pass' > sums.py",
    }
    named = {name.replace(" ", "-"): command for name, command in commands.items()}
    answers = {
        name: [call("bash", command=command), call("finish", message="done")]
        for name, command in named.items()
    }
    tasks = {
        name: {
            **INSTANCE,
            "python": "python3",
            "variables": {},
            "problem_statement": f"Task {name}.",
        }
        for name in named
    }
    runner: dict[str, Any] = {
        "test_command": ["python3", "-m", "pytest", "tests/test_sums.py"],
        "reward": PYTEST,
    }
    elsewhere: dict[str, Any] = {"directory": "/srv/testbed"}
    for name, change in {"elsewhere": elsewhere, "command": runner}.items():
        tasks[name] = {**tasks["fix"], "problem_statement": f"Task {name}.", **change}
        answers[name] = answers["fix"]
    played = ByInstance(scripted([]), answers=answers)
    with (
        model(client, "swe-tests", played),
        prepared(client, "swe-tests", always=True) as environment,
    ):
        found = results(
            client, "swe", "swe-tests", tasks, environment=environment, options={"test_seconds": 20}
        )

    outcomes = {name: (each.outcome, each.reward) for name, each in found.items()}
    for name in ("fix", "elsewhere", "command"):
        assert outcomes.pop(name) == ("completed", 1.0), found[name].reason
    assert set(outcomes.values()) == {("completed", 0.0)}, {
        name: each.reason for name, each in found.items()
    }
