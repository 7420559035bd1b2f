"""Parts of two versions that follow each other read each other's messages, as while an upgrade lasts (decision 325)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.architecture.tree import ROOT
from tests.unit.domain import wire_messages
from tests.unit.domain.wire_messages import Reader, Recording, Schema

RECORDINGS: Final = sorted((ROOT / "tests" / "data").glob("*/messages.xz"))
#: What a reader says of a kind and of a field that it does not know.
_NEW_NAME: Final = re.compile(r"Invalid (?:enum )?value '(.+)'|unknown field `(.+)`")

pytestmark = [
    pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.parent.name),
    pytest.mark.cpu_seconds(1),
]


@cache
def present() -> Recording:
    return wire_messages.record()


@cache
def earlier(path: Path) -> Recording:
    return wire_messages.load(path)


def names(schema: Schema) -> set[Any]:
    """Return all kinds, members of enums, and fields of a version."""
    values = {value for members in schema.enums.values() for value in members}
    tags = {facts["tag"] for facts in schema.structs.values()}
    return (
        values
        | tags
        | {field for facts in schema.structs.values() for field, _, _ in facts["fields"]}
    )


def lost(sent: Any, read: Any, path: str = "") -> Iterator[str]:
    """Yield where ``read`` has not what was sent."""
    if isinstance(sent, dict) and isinstance(read, dict):
        for key, value in sent.items():
            if key in read:
                yield from lost(value, read[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(sent, list) and isinstance(read, list) and len(sent) <= len(read):
        for one, other in zip(sent, read, strict=False):
            yield from lost(one, other, path)
    elif sent != read:
        yield f"{path}: {sent} became {read}"


def test_every_kind_of_message_is_recorded(path: Path) -> None:
    recording = earlier(path)

    for root, (_, *kinds) in recording.schema.roots.items():
        if recording.schema.roots[root][0] == "union":
            tags = {recording.schema.structs[name]["tag"] for _, name in kinds}
            decoded = map(msgspec.msgpack.decode, recording.messages[root])
            found = {each.get("event") if isinstance(each, dict) else each[0] for each in decoded}
            assert found == tags
    assert recording.schema.roots.keys() >= {"inbox", "journal", "node command", "configuration"}


def test_messages_of_an_earlier_version_are_read_whole(path: Path) -> None:
    reader = Reader(present().schema)

    for root, messages in earlier(path).messages.items():
        for message in messages:
            read = reader.read(root, message)
            assert list(lost(msgspec.msgpack.decode(message), read)) == [], root


def refusal(reader: Reader, root: str, message: bytes) -> str:
    """Return why a version does not read a message; empty: it reads it."""
    try:
        reader.read(root, message)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def test_an_earlier_version_refuses_only_what_it_has_no_name_for(path: Path) -> None:
    reader, known = Reader(earlier(path).schema), names(earlier(path).schema)

    for root in earlier(path).messages:
        refusals = [refusal(reader, root, each) for each in present().messages[root]]
        assert "" in refusals, root
        for each in filter(None, refusals):
            new = _NEW_NAME.search(each)
            assert new is not None, f"{root}: {each}"
            assert (new[1] or new[2]) not in known, f"{root}: {each}"


def test_a_member_that_is_left_out_means_the_same_to_both_versions(path: Path) -> None:
    before, now = earlier(path).schema.structs, present().schema.structs

    for name in before.keys() & now.keys():
        defaults = now[name]["defaults"]
        shared = {key: value for key, value in before[name]["defaults"].items() if key in defaults}
        assert shared == {key: defaults[key] for key in shared}, name
