"""Fields of the filter language: one table for each tab of the explorer. Pure.

Completion, "All filters", facets, errors and `docs/explorer.md` are derived from `TABS`: a field that is
added there is known everywhere.

Rules
1. A field has one kind, which says what its values look like (`tangram_web.explorer.language`).
2. ``column`` is the column of the row; empty for a field that `tangram_web.explorer.conditions` computes.
3. ``values`` are all values that a choice may have; other kinds list examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from domain.action import ActionState, Kind, Outcome
from domain.rollouts import RolloutOutcome, RolloutState

#: Value of a field for rows that have none.
NONE: Final = "none"


class FieldKind(StrEnum):
    """What the values of a field look like."""

    #: One of some words.
    CHOICE = "one of its words"
    #: Any text; a ``*`` at its end stands for any rest.
    TEXT = "text, or the beginning of it and *"
    #: A number, a comparison or a range.
    NUMBER = "a number, a comparison as >0.5, or a range as 1..9"
    #: A length of time, a comparison or a range.
    DURATION = "a duration as 500ms, 5s, 2m or 1h30m, a comparison as >5s, or a range as 1s..5s"
    #: A point in time.
    TIME = "an age as 15m, 1h or 7d, or a time as 2026-11-20T14:00Z"


@dataclass(frozen=True, kw_only=True)
class Field:
    """One filter."""

    name: str
    kind: FieldKind
    says: str
    column: str = ""
    values: tuple[str, ...] = ()
    #: What values mean, where they do not say so themselves.
    notes: tuple[str, ...] = ()
    #: Title of its facet; empty: it has none.
    facet: str = ""
    #: Rows without a value are selected by ``none``.
    optional: bool = False
    #: A number that may have a fraction.
    fraction: bool = False


@dataclass(frozen=True, kw_only=True)
class Tab:
    """A list of the explorer."""

    name: str
    #: One of them, and several.
    one: str
    fields: tuple[Field, ...]
    #: Filters that the page proposes.
    tries: tuple[str, ...]

    @property
    def title(self) -> str:
        """Its name as a title."""
        return self.name.capitalize()

    def field(self, name: str) -> Field | None:
        """Return the field of that name."""
        return next((each for each in self.fields if each.name == name), None)

    @property
    def facets(self) -> tuple[Field, ...]:
        """Fields whose values are counted beside the list."""
        return tuple(each for each in self.fields if each.facet)


def _text(name: str, says: str, column: str = "", *, facet: str = "", optional: bool = False,
          values: tuple[str, ...] = ()) -> Field:  # fmt: skip
    return Field(name=name, kind=FieldKind.TEXT, says=says, column=column or name, facet=facet,
                 optional=optional, values=values)  # fmt: skip


def _choice(
    name: str, says: str, values: tuple[str, ...], *, facet: str, optional: bool = False
) -> Field:
    return Field(name=name, kind=FieldKind.CHOICE, says=says, column=name, values=values,
                 facet=facet, optional=optional)  # fmt: skip


def _number(name: str, says: str, column: str = "", *, optional: bool = False, facet: str = "",
            values: tuple[str, ...] = (), notes: tuple[str, ...] = ()) -> Field:  # fmt: skip
    return Field(notes=notes, name=name, kind=FieldKind.NUMBER, says=says, column=column or name,
                 optional=optional, facet=facet, values=values)  # fmt: skip


def _duration(name: str, says: str, column: str, values: tuple[str, ...] = (">1s", ">5s", ">1m")) -> Field:  # fmt: skip
    return Field(name=name, kind=FieldKind.DURATION, says=says, column=column, values=values)


def _times(began: str, column: str) -> tuple[Field, ...]:
    ages = ("15m", "1h", "24h", "7d")
    return (
        Field(name="since", kind=FieldKind.TIME, says=f"{began} at or after this time; unfinished ones are always listed",
              column=column, values=ages),
        Field(name="until", kind=FieldKind.TIME, says=f"{began} before this time", column=column,
              values=ages),
    )  # fmt: skip


_PROJECT: Final = _text("project", "project", facet="Project")
_DOOR: Final = _text("door", "protocol that it came through; native: this API itself", facet="Door",
                     values=("native", "e2b"))  # fmt: skip
_REWARD: Final = Field(name="reward", kind=FieldKind.NUMBER, says="reward; none: it has none", column="reward",
                       optional=True, fraction=True, values=(NONE, ">0.5", "0"))  # fmt: skip

ACTIONS: Final = Tab(
    name="actions",
    one="action",
    tries=("state:queued", "exit:!=0", "act:>5s", "door:e2b", "outcome:timeout", "reward:none"),
    fields=(
        _choice("state", "state", tuple(ActionState), facet="State"),
        _choice("outcome", "how it ended; none: it has not ended", (*Outcome,), facet="Outcome", optional=True),
        _number("exit", "exit code of its command; none: not ended, or no command", "exit_code",
                optional=True, facet="Exit code", values=("!=0", "0", "137", "1..9", NONE),
                notes=("any but 0", "ended well", "one code", "a range", "not ended, or no command")),
        _text("task", "task", facet="Task"),
        _text("trajectory", "trajectory", optional=True),
        _text("node", "node that it ran on; none: not placed", optional=True, facet="Node"),
        _text("waits", "resource that a waiting action needs: cpu (or cores), gpu, api:NAME",
              values=("cores", "gpu")),
        _DOOR,
        _PROJECT,
        _text("pool", "pool that it goes to: its own, else its task's, else its project's default"),
        _choice("kind", "kind", (*Kind,), facet="Kind"),
        _text("family", "family, by which durations are predicted", optional=True),
        _text("group", "group of samples", optional=True),
        _number("step", "training step", optional=True),
        _number("priority", "priority of its request"),
        _number("attempt", "how often it was granted", values=(">1",)),
        _REWARD,
        _duration("act", "action completion time; of an unfinished one, until now", "act_seconds"),
        _duration("queue", "time that it waited; of a waiting one, until now", "queue_seconds"),
        _duration("overhead", "time between its grant and its start", "overhead_seconds"),
        _duration("execution", "time that it ran; of a running one, until now", "execution_seconds"),
        *_times("submitted", "submitted_at"),
        _text("id", "id, or the beginning of it", values=("act_",)),
    ),
)  # fmt: skip

TRAJECTORIES: Final = Tab(
    name="trajectories",
    one="trajectory",
    tries=("state:open", "since:24h", "actions:>20", "external:>1m"),
    fields=(
        _choice("state", "whether its trainer has finished it", ("open", "finished"), facet="State"),
        _text("task", "task", facet="Task"),
        _text("node", "node; none: not placed", optional=True, facet="Node"),
        _PROJECT,
        _text("pool", "pool that it goes to: its own, else its task's, else its project's default", facet="Pool"),
        _number("actions", "number of its actions", values=(">20",)),
        _number("finished", "number of its finished actions"),
        _duration("external", "sum of the completion times of its finished actions",
                  "external_seconds", (">1m", ">10m")),
        *_times("opened", "opened_at"),
        _text("id", "name, or the beginning of it", "name"),
    ),
)  # fmt: skip

TASKS: Final = Tab(
    name="tasks",
    one="task",
    tries=("since:7d", "actions:>1000", "failing:>0"),
    fields=(
        _PROJECT,
        _text("pool", "pool that it goes to: its own, else its task's, else its project's default", facet="Pool"),
        _number("actions", "number of its actions", values=(">1000",)),
        _number("finished", "number of its finished actions"),
        _number("failing", "commands that ended with an exit code that is not 0", values=(">0",)),
        _duration("external", "sum of the completion times of its finished actions",
                  "external_seconds", (">1h",)),
        *_times("opened", "opened_at"),
        _text("id", "name, or the beginning of it", "name"),
    ),
)  # fmt: skip

ROLLOUTS: Final = Tab(
    name="rollouts",
    one="rollout",
    tries=("lane:run", "outcome:failed", "reward:none", "handler:swe"),
    fields=(
        _choice("lane", "what it waits for or does",
                ("waiting", "init", "run", "eval", "parked", "finished"), facet=""),
        _choice("state", "state", (*RolloutState,), facet="State"),
        _choice("outcome", "how it ended; none: it has not ended", (*RolloutOutcome,),
                facet="Outcome", optional=True),
        _text("task", "task", facet="Task"),
        _text("handler", "handler", facet="Handler"),
        _text("instance", "instance"),
        _text("group", "group of samples", optional=True),
        _text("worker", "rollout worker that has it, or had it last", facet="Worker"),
        _text("llm", "pool of its backends"),
        _PROJECT,
        _DOOR,
        _number("turns", "turns"),
        _number("tokens", "tokens so far", values=(">32000",)),
        _number("attempt", "how often it was assigned", values=(">1",)),
        _REWARD,
        _duration("total", "time from its submission to its end", "total_seconds", (">1m", ">10m")),
        _duration("queue", "time that it waited for a worker", "queue_seconds"),
        *_times("submitted", "submitted_at"),
        _text("id", "id, or the beginning of it", values=("rol_",)),
    ),
)  # fmt: skip

TABS: Final[dict[str, Tab]] = {tab.name: tab for tab in (ACTIONS, TRAJECTORIES, TASKS, ROLLOUTS)}
