"""The task: programs of two numbers that a note asks for, which the agent finds with a shell in its sandbox.

A question names a note. The note has what to print, or names another note. The agent reads notes with ``cat``, and answers with a program,
which real test cases judge in a sandbox. Sandboxes begin with one of several sets of notes (snapshots), so the name of a note says
nothing about what is in it: an agent that does not read can only guess.

The teacher reads in some cases only, and errs in others. What reinforcement learning finds is that reading pays: turns and contexts
grow as the agent learns, and once more as instances get more hops (`hops_at`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from examples.rollouts.small_model.tasks import PROGRAMS

HANDLER: Final = "code"
MOST_HOPS: Final = 3
#: Sets of notes.
SETS: Final = 12
MAX_TOKENS: Final = 112
CONTEXT: Final = 1024
FOLDER: Final = "notes"
_CASES: Final = ((7, 3), (2, 9), (15, 4), (6, 6), (1, 12))
#: Names of notes; those of a set are divided evenly among the numbers of hops.
NAMES: Final = (
    "amber", "basil", "cedar", "delta", "ember", "fable", "grape", "hazel", "ivory", "jasper", "koala", "lemon",
    "maple", "north", "olive", "pearl", "quartz", "river", "solar", "tulip", "ultra", "velvet", "walnut", "zebra",
)  # fmt: skip
_READS, _FOLLOWS, _RIGHT = 0.5, 0.6, 0.8


class NoteSet(NamedTuple):
    """The notes of one kind of sandbox."""

    number: int
    #: Name → text.
    notes: Mapping[str, str]
    #: Name → hops until the note with the phrase, and the phrase.
    leads: Mapping[str, tuple[int, str]]

    @property
    def snapshot(self) -> str:
        """The snapshot that has these notes."""
        return f"train-agent-{self.number}"

    def with_hops(self, hops: int) -> list[str]:
        """Return the names of notes that lead to a phrase in so many hops."""
        return [name for name, (count, _) in self.leads.items() if count == hops]


def note_set(number: int, seed: int = 0) -> NoteSet:
    """Return a set of notes; the same number and seed give the same one."""
    chance = random.Random(f"notes {seed} {number}")
    names = chance.sample(NAMES, len(NAMES))
    share = len(names) // MOST_HOPS
    notes: dict[str, str] = {}
    leads: dict[str, tuple[int, str]] = {}
    nearer: list[str] = []
    for place, name in enumerate(names):
        hops = place // share + 1
        if hops == 1:
            notes[name] = phrase = chance.choice(list(PROGRAMS))
        else:
            target = chance.choice(
                nearer[-share:] if place % share == 0 else _tier(leads, hops - 1)
            )
            notes[name], phrase = f"see {target}", leads[target][1]
        leads[name] = (hops, phrase)
        nearer.append(name)
    return NoteSet(number, notes, leads)


def _tier(leads: Mapping[str, tuple[int, str]], hops: int) -> list[str]:
    return [name for name, (count, _) in leads.items() if count == hops]


def instance(
    sets: Sequence[NoteSet], hops: int, chance: random.Random, name: str
) -> dict[str, Any]:
    """Return an instance of handler ``code``, with the environment that has its notes."""
    chosen = chance.choice(sets)
    note = chance.choice(chosen.with_hops(hops))
    value = PROGRAMS[chosen.leads[note][1]][1]
    tests = [{"input": f"{a} {b}\n", "output": str(value(a, b))} for a, b in _CASES]
    return {
        "id": name,
        "data": {"question": f"Read two numbers and print what note {note} says.", "tests": tests},
        "environment": {"snapshot": chosen.snapshot},
    }


def hops_at(position: int, growth: int) -> int:
    """Return the most hops of the instance at a position of the run: one more after each ``growth`` prompts."""
    return min(MOST_HOPS, 1 + position // max(1, growth))


def instances(sets: Sequence[NoteSet], count: int, growth: int, seed: int) -> list[dict[str, Any]]:
    """Return the instances of a run, in their order; hops are drawn evenly up to those of the position."""
    chance = random.Random(f"instances {seed}")
    return [
        instance(sets, chance.randint(1, hops_at(position, growth)), chance, f"note-{position}")
        for position in range(count)
    ]


def measured(sets: Sequence[NoteSet], count: int, seed: int) -> list[dict[str, Any]]:
    """Return the instances that measure: each number of hops equally often."""
    chance = random.Random(f"measure {seed}")
    return [instance(sets, 1 + number % MOST_HOPS, chance, f"measure-{number}") for number in range(count)]  # fmt: skip


def options(elastic: bool) -> dict[str, Any]:
    """Return the options of the handler."""
    return {
        "system_prompt": "Write a Python program.",
        "tools": ["bash"],
        "max_iterations": MOST_HOPS + 2,
        # Test cases are elastic and malleable, unless one core is all that they may have.
        "test_cores": [1, 2, 4] if elastic else [1],
    }


def teach(last: str, turn: int, chance: random.Random) -> str:
    """Return the teacher's answer to the last text of a conversation, after so many answers."""
    if turn == 0:
        note = last.split("what note ")[1].split(" says")[0]
        return _read(note) if chance.random() < _READS else _finish(_guess(chance))
    if "see " in last:
        note = last.split("see ")[1].split()[0].split("<")[0]
        return _read(note) if chance.random() < _FOLLOWS else _finish(_guess(chance))
    known = [phrase for phrase in PROGRAMS if phrase in last]
    right = chance.random() < _RIGHT
    return _finish(max(known, key=len) if known and right else _guess(chance))


def _guess(chance: random.Random) -> str:
    return chance.choice(list(PROGRAMS))


def _read(note: str) -> str:
    return _call("bash", command=f"cat {FOLDER}/{note}")


def _finish(phrase: str) -> str:
    code = f"a, b = map(int, input().split())\nprint({PROGRAMS[phrase][0]})"
    return _call("finish", answer=f"```python\n{code}\n```")


def _call(tool: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"
