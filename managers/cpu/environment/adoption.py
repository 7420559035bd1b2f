"""Records of living environments: by them the next node worker adopts what a dead one has left.

The record names the init by its host id and start time: a number that another process has meanwhile has another
start time, and the tag of the environment cannot be imitated from inside. What has no valid record is
ended, with everything that carries a tag of this driver, before the node grants anything.

A process that ran as part of an action when the worker died is no background process: the record does not name
its tag, so it is ended, and the action is reported as the crash demands.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec

from domain.action import EnvironmentSpec
from managers.cpu.environment.kernel import children_of, start_time
from managers.cpu.process.process_tag import ProcessTagger
from managers.cpu.tree.seal import MARK

RECORD: Final = "init.json"


class LeftBehind(msgspec.Struct, omit_defaults=True):
    """Processes with one tag that run in the background."""

    #: As `InitCommand.owner`.
    owner: str
    #: Seconds after the start of the machine since which they do.
    since: float
    #: Named pipes in the control folder to which they write.
    pipes: tuple[str, ...] = ()


class InitRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker must know to take over an init."""

    pid: int
    #: Start of the init, in clock ticks since the start of the machine.
    started: int | None
    #: Host id of process 1 inside.
    first_pid: int
    trajectory: str
    spec: EnvironmentSpec
    uid: int | None = None
    trusts_kernel: bool = False
    #: Home directory and variables of its programs.
    home: str = "/workspace"
    variables: dict[str, str] = {}
    #: Tag → what it is the tag of.
    background: dict[int, LeftBehind] = {}
    #: Name of the folder in which it was started in advance, whose tag it has; empty: its own.
    started_as: str = ""


def write_record(directory: Path, record: InitRecord) -> None:
    """Store a record at once or not at all. Raises OSError.

    Not synced: a machine that crashes has no init to adopt either.
    """
    temporary = directory / f"{RECORD}.new"
    temporary.write_bytes(msgspec.json.encode(record))
    temporary.replace(directory / RECORD)


def read_record(directory: Path) -> InitRecord | None:
    """Return the record of an environment; None without a readable one."""
    try:
        return msgspec.json.decode((directory / RECORD).read_bytes(), type=InitRecord)
    except (OSError, msgspec.DecodeError, ValueError):
        return None


def find_living(environments: Path, tagger: ProcessTagger) -> dict[str, InitRecord]:
    """Return name → record of the environments whose init lives. Blocks for some 0.1 ms each.

    One whose fork a predecessor left half done is left out: its layers change before it may run.
    """
    found = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(environments) as entries:
        for entry in entries:
            record = read_record(Path(entry.path))
            if (Path(entry.path) / MARK).exists():
                continue
            if record is not None and _is_init(record, _tag_of(entry.name, record, tagger), tagger):
                found[entry.name] = record
    return found


def _is_init(record: InitRecord, tag: int, tagger: ProcessTagger) -> bool:
    return (
        record.started is not None
        and start_time(record.pid) == record.started
        and tagger.read(record.pid) == tag
        and record.pid in children_of(record.first_pid)
    )


def kept_tags(living: dict[str, InitRecord], tagger: ProcessTagger) -> set[int]:
    """Return the tags whose processes stay: those of the environments and of their background processes."""
    own = {_tag_of(name, record, tagger) for name, record in living.items()}
    return own.union(*(record.background for record in living.values()))


def _tag_of(name: str, record: InitRecord, tagger: ProcessTagger) -> int:
    return tagger.environment_tag(record.started_as or name)
