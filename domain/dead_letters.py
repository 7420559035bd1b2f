"""Messages that somebody could not read, or not take in, set aside so that he could go on.

Rules
1. A letter is on disk before its reader goes on, and has a name made of where it lay: setting aside
   the same message again, after a crash, changes nothing.
2. Nobody deletes a letter but an operator (`manage.py deadletters`), who may also put one that came
   to the inbox back there, once whoever reads the inbox understands it; never one whose action has
   ended because it was set aside.
3. The journal is no mailbox: what follows an entry builds on it. Its readers wait at an entry that
   they cannot read, until an operator lays that entry aside himself (decision 0045).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from domain.codec import encode
from domain.version import VERSION

#: Where a letter lay: the first part of its name.
INBOX: Final = "inbox"
JOURNAL: Final = "journal"


class DeadLetter(msgspec.Struct, omit_defaults=True):
    """One message, why it was set aside, and what can be told of it all the same."""

    #: ``inbox``, ``journal``, or ``node/NAME``.
    source: str
    #: Stream id of the entry that it came in.
    entry_id: str
    #: Which of the entry's messages it is.
    place: str
    reason: str
    #: Wall clock, seconds.
    at: float
    body: bytes
    #: Version of the program that could not read it.
    version: str = VERSION
    #: What kind of message it says it is, and the action it says it is about.
    kind: str = ""
    action_id: str = ""
    #: Something stands in for it (its action has ended): it is for people, and never delivered.
    settled: bool = False

    @property
    def name(self) -> str:
        """Where it lay."""
        return name_of(self.source, self.entry_id, self.place)


def name_of(source: str, entry_id: str, place: str) -> str:
    """Return the name of the letter that lay there."""
    return f"{source}|{entry_id}|{place}"


def dead_letter(
    source: str, entry_id: str, place: str, body: bytes, error: Exception, at: float
) -> DeadLetter:
    """Return a message as a letter, with whatever can be told of it."""
    kind, action_id = _told(body)
    reason = f"{type(error).__name__}: {error}"[:500]
    return DeadLetter(source, entry_id, place, reason, at, body, kind=kind, action_id=action_id)


def _told(body: bytes) -> tuple[str, str]:
    """Return kind and action of a message of another version; empty what cannot be told."""
    try:
        said: Any = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "", ""
    if not isinstance(said, dict):
        return "", ""
    action = said.get("action")
    name = said.get("action_id") or (action.get("id") if isinstance(action, dict) else "")
    return str(said.get("event") or "")[:100], str(name or "")[:100]


_decoder = msgspec.msgpack.Decoder(DeadLetter)
decode_letter = _decoder.decode


def encode_letter(letter: DeadLetter) -> bytes:
    """Return a letter as it is stored."""
    return encode(letter)
