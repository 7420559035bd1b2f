"""What stands in place of figures that a trace does not contain.

| figure | modelled as | source |
|---|---|---|
| family of a command | by its first word, after `cd` and variables | assumed; families of `tangram_client.traces.generator` |
| seconds of a tool | drawn from the family's distribution | `tangram_client.traces.generator`, after AgentCgroup |
| CPU of a tool | drawn from the family's distribution, bursts of tests included | the same |
| memory of a trajectory | 400 MiB | the most that the generator draws |
| tokens of a text | one for each 4 characters | assumed |
| think time | tokens of the answer at 60 a second | assumed, as `workloads.trajectories` |
| gaps between requests | exponential, 0.3 s | assumed, as `simulator.llm_trace` |

A draw depends on the seed, the trajectory's name and the step's number alone: adding a file changes no other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Final, NamedTuple

from tangram_client.traces.generator import BURST, FAMILIES, Family

#: Characters of a text that are one token.
CHARACTERS_OF_TOKEN: Final = 4.0
TOKENS_PER_SECOND: Final = 60.0
MEMORY_BYTES: Final = 400 * 2**20
REQUEST_GAP_SECONDS: Final = 0.3

#: First words of commands and names of tools by family; a command that stands nowhere counts as `python`.
_WORDS: Final = {
    "test": "pytest py.test tox nosetests unittest jest mocha ctest",
    "install": "pip pip3 apt apt-get conda npm yarn poetry uv cargo mvn gradle",
    "search": "grep rg find ls tree git search_dir search_file find_file search glob ag fd",
    "file": (
        "cat head tail sed awk echo touch mkdir rm cp mv open edit create goto scroll_up scroll_down"
        " str_replace_editor str_replace_based_edit_tool view insert undo_edit submit write read"
        " export source which pwd wc diff chmod"
    ),
}
_FAMILY_OF: Final = {word: family for family, words in _WORDS.items() for word in words.split()}
_FAMILIES: Final = {family.name: family for family in FAMILIES}
#: What stands before the command that takes the time.
_BEFORE: Final = re.compile(r"\s*(?:cd\s+\S+\s*(?:&&|;)|\w+=\S*\s|sudo\s|timeout\s+\S+\s|time\s)")
_TESTS: Final = re.compile(
    r"python\S*\s+(?:-\S\s+)*-m\s+(?:pytest|unittest|tox)\b"
    r"|(?:\S*/)?(?:run_?)?tests?\.py\b|python\S*\s+\S*(?:run_?)?tests?\.py\b"
    r"|(?:make|npm|yarn|cargo|go|mvn|gradle|python\S*\s+\S*manage\.py)\s+(?:run\s+)?(?:test|check)\b"
)
_INSTALLS: Final = re.compile(r"python\S*\s+-m\s+(?:pip|venv)\b")
#: The first word is found in the beginning of a command.
_LOOKED_AT: Final = 2_000


class ModelledStep(NamedTuple):
    """Drawn figures of one tool call."""

    seconds: float
    cpu_cores: float


@dataclass(frozen=True)
class Modelled:
    """The draws and rates of one reading; equal ones give equal traces."""

    seed: int = 0
    tokens_per_second: float = TOKENS_PER_SECOND

    def step(self, family: str, trajectory: str, number: int) -> ModelledStep:
        """Return drawn seconds and cores of a tool call."""
        chooser = Random(f"modelled/{self.seed}/{trajectory}/{number}")
        drawn_from = known_family(family)
        seconds = drawn_from.seconds.draw(chooser)
        burst = chooser.random() < drawn_from.burst_share
        percent = (BURST if burst else drawn_from.cpu_percent).draw(chooser)
        return ModelledStep(seconds, percent / 100)

    def think_seconds(self, tokens: float) -> float:
        """Return the model's time for so many tokens of an answer."""
        return tokens / self.tokens_per_second


@cache
def known_family(name: str) -> Family:
    """Return the family whose figures a command has."""
    return _FAMILIES.get(name, _FAMILIES["python"])


def tokens_of(text: str) -> float:
    """Return how many tokens a text has, by its characters."""
    return len(text) / CHARACTERS_OF_TOKEN


def family_of(command: str) -> str:
    """Return the family of a shell command or of a tool with its arguments."""
    rest = command[:_LOOKED_AT].lstrip()
    while found := _BEFORE.match(rest):
        rest = rest[found.end() :].lstrip()
    if _TESTS.match(rest):
        return "test"
    if _INSTALLS.match(rest):
        return "install"
    words = rest.split(maxsplit=1)
    first = words[0].rpartition("/")[2].lower() if words else ""
    return _FAMILY_OF.get(first, "python")
