"""Moves: an idle environment goes to another node of the pool, from one that lets its trajectories finish, or where its next action waits.

What stays, and why, has a code: the node reports those of its environments, the scheduler finds the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

#: Codes of a node. A program or a session lives in the environment; a request is open that uses it; files are in memory;
#: it has a disk of its own, or a volume, or a layer that its engine cannot send; something failed.
PROCESS: Final = "process"
SESSION: Final = "session"
IN_USE: Final = "in_use"
IN_MEMORY: Final = "in_memory"
OWN_DISK: Final = "own_disk"
VOLUME: Final = "volume"
LAYER: Final = "layer"
FAILED: Final = "failed"
#: It is larger than the order allows.
TOO_LARGE: Final = "too_large"
#: Codes of the scheduler. An action runs or waits; no node has room; the pool or the node moves none.
ACTING: Final = "acting"
NO_ROOM: Final = "no_room"
NOT_MOVED: Final = "not_moved"
#: It was not looked at yet, or is tried again after a while.
WAITING: Final = "waiting"

#: Start of names of snapshots that moves go by; names of trainers have no tilde.
_PACKED: Final = "move~"
#: Code → verb of one trajectory and of several.
_VERBS: Final[Mapping[str, tuple[str, str]]] = {
    ACTING: ("runs an action", "run actions"),
    PROCESS: ("holds a process", "hold a process"),
    SESSION: ("holds a session", "hold a session"),
    IN_USE: ("is used by an open request", "are used by open requests"),
    IN_MEMORY: ("has files in /dev/shm", "have files in /dev/shm"),
    OWN_DISK: ("has a disk of its own", "have disks of their own"),
    VOLUME: ("has a volume of its engine", "have volumes of their engine"),
    LAYER: ("has a layer that its engine cannot send", "have layers that their engine cannot send"),
    NO_ROOM: ("finds no other node with room", "find no other node with room"),
    FAILED: ("could not be moved", "could not be moved"),
    NOT_MOVED: ("ends here, as nothing is moved", "end here, as nothing is moved"),
    WAITING: ("waits for its move", "wait for their move"),
}


def drain_text(moved: int, moving: int, stays: Mapping[str, int]) -> str:
    """Return what a drain has done and what it waits for, in one sentence.

    ``stays``: code → number of trajectories. Empty: the node has none, and had none.
    """
    total = moved + moving + sum(stays.values())
    if not total:
        return ""
    parts = [f"{moved} of {_trajectories(total)} {_were(moved)} moved"]
    if moving:
        parts.append(f"{moving} {'is' if moving == 1 else 'are'} being moved")
    known = [code for code in _VERBS if stays.get(code)]
    others = sorted(code for code in stays if code not in _VERBS and stays[code])
    parts += [f"{stays[code]} {_verb(code, stays[code])}" for code in (*known, *others)]
    return ", ".join(parts)


def _verb(code: str, count: int) -> str:
    one, several = _VERBS.get(code, (f"stays ({code})", f"stay ({code})"))
    return one if count == 1 else several


def _trajectories(count: int) -> str:
    return "1 trajectory" if count == 1 else f"{count} trajectories"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def packed_name(trajectory: str, number: int) -> str:
    """Return the name of the snapshot that a move goes by. No snapshot of a trainer has such a name."""
    digest = hashlib.blake2b(trajectory.encode(errors="surrogatepass"), digest_size=16)
    return f"{_PACKED}{number}~{digest.hexdigest()}"


def is_packed(snapshot: str) -> bool:
    """Return whether a snapshot is that of a move."""
    return snapshot.startswith(_PACKED)
