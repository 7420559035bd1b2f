"""Policies of the demo: what a scripted model does in an issue, by the number of its sample.

A real model would read the repository; these know the bug, so that every reward is known before. The server's tokens, tools,
environments and tests are real.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from examples.rollouts.library_bugs import LibraryBug
from examples.rollouts.scripted_llm import Answered, ScriptedModel, scripted

#: Of each rollout's sampling; `rollout.llm.model_calls` adds `_SEED_STEP` for each sample of a group.
SEED: Final = 11
_SEED_STEP: Final = 1_000_003
_INSTANCE: Final = re.compile(r"Instance ([\w-]+)\.")
PLACE: Final = "/workspace/repository"


@dataclass(frozen=True)
class Policy:
    """What a sample does, and the reward that it deserves."""

    name: str
    turns: Callable[[LibraryBug], Sequence[str]]
    reward: float


def call(tool: str, **arguments: Any) -> str:
    """Return the text of an answer that calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def fixes(bug: LibraryBug) -> list[str]:
    """Reproduce the failure, change the line, look again."""
    return [
        "I reproduce it first.\n" + call("bash", command=_example(bug)),
        call("bash", command=f"grep -n -F -- {_quoted(bug.wrong.strip())} {bug.path}"),
        call("str_replace_editor", command="str_replace", path=f"{PLACE}/{bug.path}", **_edit(bug)),
        call("bash", command=_example(bug)),
        call("finish", message=f"{bug.path}, line {bug.line}, is as documented again."),
    ]


def misses(bug: LibraryBug) -> list[str]:
    """Change something else."""
    return [
        call("think", thought="It may be a missing comment."),
        call("bash", command=f"echo '# checked' >> {bug.path}"),
        call("finish", message="I added a comment."),
    ]


def gives_up(bug: LibraryBug) -> list[str]:
    """Change nothing."""
    return [call("bash", command="ls"), call("finish", message="I do not find it.")]


def cheats(bug: LibraryBug) -> list[str]:
    """Have pytest report every test as passed."""
    hook = (
        "import pytest\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
        "    found = yield\n    found.get_result().outcome = 'passed'\n"
    )
    return [
        call("str_replace_editor", command="create", path=f"{PLACE}/conftest.py", file_text=hook),
        call(
            "bash",
            command="mkdir -p tests && cp conftest.py tests/ && cp conftest.py sitecustomize.py",
        ),
        call("finish", message="All tests pass."),
    ]


#: By the number of the sample, in turn.
POLICIES: Final = (
    Policy("fixes it", fixes, 1.0),
    Policy("changes something else", misses, 0.0),
    Policy("fakes its tests", cheats, 0.0),
    Policy("gives up", gives_up, 0.0),
)


def policy_of(sample: int) -> Policy:
    """Return the policy of a sample."""
    return POLICIES[sample % len(POLICIES)]


@dataclass
class PolicyModel(ScriptedModel):
    """A scripted model that follows the policy of each sample."""

    bugs: Mapping[str, LibraryBug] = field(default_factory=dict)

    def respond(self, prompt_ids: list[int], most: int, seed: int = 0) -> Answered:
        """Return the response of the sample that asks."""
        found = _INSTANCE.search(self.tokenizer.decode(prompt_ids, special=True))
        turns: Sequence[str] = ["I know nothing of this."]
        if found is not None and found[1] in self.bugs:
            policy = policy_of((seed - SEED) // _SEED_STEP)
            turns = policy.turns(self.bugs[found[1]])
        self.reply = lambda last, turn: turns[min(turn, len(turns) - 1)]
        return super().respond(prompt_ids, most, seed)


def policy_model(bugs: Sequence[LibraryBug]) -> PolicyModel:
    """Return a model for these bugs."""
    return PolicyModel(scripted([]), bugs={bug.name: bug for bug in bugs})


def _edit(bug: LibraryBug) -> dict[str, str]:
    """Return the texts of the edit: so many lines before the wrong one that they are unique in the file."""
    lines = bug.files[bug.path].split("\n")
    end = bug.line
    for begin in range(end - 1, -1, -1):
        old = "\n".join(lines[begin:end])
        if bug.files[bug.path].count(old) == 1:
            break
    new = "\n".join([*lines[begin : end - 1], bug.right])
    return {"old_str": old, "new_str": new}


def _example(bug: LibraryBug) -> str:
    program = f"import {bug.library}; assert {bug.assertion(bug.failing[0])}"
    return f"python3 -c {_quoted(program)} 2>&1 | tail -n 3"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
