"""Messages that parts of Tangram send each other: examples of every kind, and the shapes in which a version reads them.

`record` gives both for the version that it runs in; ``python -m tests.unit.domain.wire_messages FILE``, or the
path of this file in the folder of another version, stores them, and `test_versions_apart` compares them with the present version. So the module imports nothing
of ours but the types that `ROOTS` names, and leaves out those that a version does not have.

A message is a kind of a root with its required fields, one with all fields, and one for each further kind of value
(member of a union or an enum) of each field.
"""

from __future__ import annotations

import importlib
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, Union

import msgspec
from msgspec import inspect

#: Name → places of a type, present one first. Its writer and its reader are processes that an upgrade replaces one after
#: the other, or a node worker and the one after it.
ROOTS: Final = {
    "inbox": ("domain.events.Command",),
    "journal": ("domain.codec.JournalEntry",),
    "node command": ("domain.codec.NodeCommand",),
    "reply": ("domain.codec.Reply",),
    "configuration": ("domain.inventory.Config",),
    "local frame": ("scheduler.runtime.local_nodes.frames.Frame",),
    "action of a client": ("contract.requests.ActionRequest", "contract.wire.ActionPayload"),
    "batch of a client": ("contract.requests.BatchRequest", "contract.wire.BatchPayload"),
    "capacity": (
        "scheduler.runtime.capacity.CapacityView",
        "scheduler.runtime.loop.housekeeping.CapacityView",
    ),
    "answer of a key": ("scheduler.runtime.gateway.idempotency._Answer",),
    "door of a node": ("contract.door_address.DoorAddress",),
    "node group": ("contract.node_group_reports.NodeGroupReport",),
    "machine": ("contract.machine_facts.MachineFacts",),
    "snapshot of an environment": ("domain.snapshots.SnapshotFacts",),
    "session over the door": ("domain.ports.sessions.SessionOrder",),
    "session of a node": ("domain.ports.sessions.SessionFacts",),
    "file of a node": ("domain.ports.files.FileFacts",),
    "environment of a node": ("domain.ports.processes.EnvironmentFacts",),
    "init on disk": ("managers.cpu.environment.adoption.InitRecord",),
    "session on disk": ("managers.cpu.sessions.host.SessionRecord",),
    "tree on disk": ("managers.cpu.tree.layers.TreeRecord",),
    "snapshot on disk": ("managers.cpu.tree.snapshot.KeptSnapshot",),
    "image on disk": ("managers.cpu.tree.images.ImageFacts",),
    "fork on disk": ("managers.cpu.tree.fork_log.LoggedChild",),
}
_SIMPLE: Final[dict[str, tuple[object, tuple[object, ...]]]] = {
    "any": (Any, ("any",)),
    "none": (type(None), (None,)),
    "bool": (bool, (True, False)),
    "int": (int, (7,)),
    "float": (float, (0.5,)),
    "str": (str, ("text",)),
    "bytes": (bytes, (b"bytes",)),
    "datetime": (Any, ("2026-11-30T00:00:00Z",)),
    "raw": (Any, ({"raw": 1},)),
}

Shape = Any  # JSON: a name of `_SIMPLE`, or a list whose first element names the composite.


class Schema(msgspec.Struct):
    """Shapes of all roots, and of the structs and enums below them by name."""

    roots: dict[str, Shape]
    structs: dict[str, dict[str, Any]]
    enums: dict[str, list[str | int]]


class Recording(msgspec.Struct):
    """What a version reads and writes: root → encoded messages."""

    schema: Schema
    messages: dict[str, list[bytes]]


def record() -> Recording:
    """Return the messages and shapes of the version that is imported."""
    schema, messages = Schema({}, {}, {}), {}
    for root, places in ROOTS.items():
        if (kind := _found(places)) is None:
            continue
        shape = schema.roots[root] = _shape(inspect.type_info(kind), schema)
        # Through the types of the version, so that the bytes are those that it writes.
        read = msgspec.msgpack.Decoder(kind).decode
        written = (
            msgspec.msgpack.encode(read(msgspec.msgpack.encode(each)))
            for each in examples(shape, schema)
        )
        messages[root] = list(dict.fromkeys(written))
    return _stored(msgspec.msgpack.encode(Recording(schema, messages)))


def _found(places: tuple[str, ...]) -> Any:
    for place in places:
        module, _, name = place.rpartition(".")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    return None


def _shape(info: inspect.Type, schema: Schema) -> Shape:
    match info:
        case inspect.StructType():
            return ["struct", _struct(info, schema)]
        case inspect.EnumType():
            schema.enums[info.cls.__name__] = [each.value for each in info.cls]
            return ["enum", info.cls.__name__]
        case inspect.LiteralType():
            return ["literal", *info.values]
        case inspect.IntType() | inspect.FloatType() if info.ge is not None or info.le is not None:
            simple = "int" if isinstance(info, inspect.IntType) else "float"
            return ["bounded", simple, info.ge if info.le is None else info.le]
    kind, inner = _composite(info)
    return [kind, *(_shape(each, schema) for each in inner)] if inner else kind


def _composite(info: inspect.Type) -> tuple[str, tuple[inspect.Type, ...]]:
    match info:
        case inspect.UnionType():
            return "union", info.types
        case inspect.DictType():
            return "dict", (info.key_type, info.value_type)
        case inspect.NamedTupleType():
            return "tuple", tuple(each.type for each in info.fields)
        case inspect.TupleType():
            return "tuple", info.item_types
        case inspect.CollectionType():
            return "list", (info.item_type,)
    return type(info).__name__.removesuffix("Type").lower(), ()


def _struct(info: inspect.StructType, schema: Schema) -> str:
    name = info.cls.__qualname__ if info.tag is None else f"{info.cls.__qualname__}:{info.tag}"
    if name not in schema.structs:
        facts: dict[str, Any] = {
            "tag": info.tag, "tag_field": info.tag_field, "array_like": info.array_like,
            "forbid_unknown_fields": info.forbid_unknown_fields,
        }  # fmt: skip
        schema.structs[name] = facts
        facts["fields"] = [
            [field.encode_name, field.required, _shape(field.type, schema)] for field in info.fields
        ]
        facts["defaults"] = {
            field.encode_name: msgspec.to_builtins(_default(field), enc_hook=repr)
            for field in info.fields
            if not field.required
        }
    return name


def _default(field: inspect.Field) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    absent = field.default is msgspec.NODEFAULT or isinstance(field.default, msgspec.Raw)
    return None if absent else field.default


def examples(shape: Shape, schema: Schema, above: tuple[str, ...] = ()) -> list[Any]:
    """Return values of a shape as decoded messages have them, the fullest first; none where a struct contains itself."""
    if isinstance(shape, str):
        return list(_SIMPLE[shape][1])
    kind, *parts = shape
    if kind == "struct":
        return [] if parts[0] in above else list(_structs(parts[0], schema, (*above, parts[0])))
    if kind == "enum":
        return list(schema.enums[parts[0]])
    if kind == "literal":
        return parts
    if kind == "bounded":
        return parts[1:]
    if kind == "union":
        ordered = sorted(parts, key=lambda part: part == "none")
        return [value for part in ordered for value in examples(part, schema, above)]
    inner = [examples(part, schema, above) for part in parts]
    if not all(inner):
        return [{} if kind == "dict" else []]
    if kind == "dict":
        return [{inner[0][0]: value} for value in inner[1]]
    if kind == "tuple":
        return [list(values) for values in _varied(inner)]
    return [[value] for value in inner[0]]


def _structs(name: str, schema: Schema, above: tuple[str, ...]) -> Iterator[Any]:
    facts = schema.structs[name]
    tagged = {} if facts["tag"] is None else {facts["tag_field"]: facts["tag"]}
    names = [field for field, _, _ in facts["fields"]]
    values = [examples(shape, schema, above) for _, _, shape in facts["fields"]]
    made = list(_varied([each or [None] for each in values]))
    for each in made:
        shown = dict(zip(names, each, strict=True))
        kept = {field: value for field, value in shown.items() if values[names.index(field)]}
        yield [*tagged.values(), *each] if facts["array_like"] else {**tagged, **kept}
    if not facts["array_like"]:
        required = {field for field, needed, _ in facts["fields"] if needed}
        first = dict(zip(names, made[0], strict=True)) if made else {}
        yield {**tagged, **{field: first[field] for field in names if field in required}}


def _varied(columns: list[list[Any]]) -> Iterator[list[Any]]:
    """Yield the first value of every column, then each further value of one of them."""
    first = [column[0] for column in columns]
    yield first
    for at, column in enumerate(columns):
        for value in column[1:]:
            yield [*first[:at], value, *first[at + 1 :]]


class Reader:
    """Reads messages as the version of a schema does: its types are built from the recorded shapes."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._structs: dict[str, Any] = {}
        self._decoders = {
            root: msgspec.msgpack.Decoder(self._type(shape)) for root, shape in schema.roots.items()
        }

    def read(self, root: str, message: bytes) -> Any:
        """Return the message with what that version knows of it. Raises `msgspec.ValidationError`."""
        return msgspec.msgpack.decode(msgspec.msgpack.encode(self._decoders[root].decode(message)))

    def _type(self, shape: Shape) -> Any:
        if isinstance(shape, str):
            return _SIMPLE[shape][0]
        kind, *parts = shape
        if kind == "struct":
            return self._struct(parts[0])
        if kind == "enum":
            return Literal[tuple(self._schema.enums[parts[0]])]
        if kind == "literal":
            return Literal[tuple(parts)]
        if kind == "bounded":
            return _SIMPLE[parts[0]][0]
        inner = [self._type(part) for part in parts]
        if kind == "union":
            return Union[tuple(inner)]  # noqa: UP007
        return {"dict": dict, "tuple": tuple, "list": list}[kind][tuple(inner)]  # type: ignore[index]

    def _struct(self, name: str) -> Any:
        if name not in self._structs:
            facts = self._schema.structs[name]
            self._structs[name] = Any  # a struct within itself is read as it is
            fields = [
                (field, self._type(shape), *(() if required else (msgspec.field(default=None),)))
                for field, required, shape in facts["fields"]
            ]
            options = {
                key: facts[key]
                for key in ("tag", "tag_field", "array_like", "forbid_unknown_fields")
            }
            self._structs[name] = msgspec.defstruct(
                name.split(":")[0].replace(".", "_"), fields, kw_only=True, **options
            )
        return self._structs[name]


def load(path: Path) -> Recording:
    """Return a stored recording."""
    return _stored(lzma.decompress(path.read_bytes()))


def _stored(content: bytes) -> Recording:
    return msgspec.msgpack.decode(content, type=Recording)


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    made = record()
    Path(sys.argv[1]).write_bytes(lzma.compress(msgspec.msgpack.encode(made)))
    sys.stdout.write(f"{ {root: len(each) for root, each in made.messages.items()} }\n")
