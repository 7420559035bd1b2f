"""Reading YAML so that every error has its line and column.

Plain YAML only: no anchors (a small file could become a huge one), no tags, no key twice. JSON is
YAML, so it is read as well.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import yaml

from domain.errors import InvalidRequest

MAX_CHARACTERS: Final = 1024 * 1024
MAX_DEPTH: Final = 64
#: libyaml reads fifteen times as fast where PyYAML was built with it; else a megabyte takes a web process minutes.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Document(NamedTuple):
    """One document, and where its parts stand."""

    value: Any
    node: yaml.Node

    def place(self, pointer: str) -> str:
        """Return ``line 3, column 5`` of the innermost part that ``pointer`` leads to."""
        node = self.node
        for name in pointer.split("/")[1:]:
            following = _below(node, name.replace("~1", "/").replace("~0", "~"))
            if following is None:
                break
            node = following
        return _place(node.start_mark)


def documents(text: str) -> list[Document]:
    """Return the documents of a text. Raises InvalidRequest with line and column."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidRequest(f"at most {MAX_CHARACTERS} characters")
    try:
        _refuse_traps(text)
        nodes = list(yaml.compose_all(text, _LOADER))
        for node in nodes:
            _refuse_twins(node)
        found = [Document(_value(node), node) for node in nodes]
        for document in found:
            _refuse_odd(document, document.value, "")
        return found
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InvalidRequest(f"{_place(mark)}: {error.problem}", code="broken_yaml") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"this is not YAML: {error}", code="broken_yaml") from None


def _value(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_traps(text: str) -> None:
    """Refuse anchors, and nesting: it takes time by its square, before anybody could recurse into it."""
    depth = 0
    for event in yaml.parse(text, _LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            place = _place(event.start_mark)
            raise InvalidRequest(
                f"{place}: nested more than {MAX_DEPTH} levels deep", code="broken_yaml"
            )
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            place = _place(event.start_mark)
            raise InvalidRequest(f"{place}: anchors are not read here", code="broken_yaml")


def _refuse_twins(node: yaml.Node) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                place = _place(key.start_mark)
                raise InvalidRequest(f"{place}: a key is a word", code="broken_yaml")
            if key.value in seen:
                place = _place(key.start_mark)
                raise InvalidRequest(f"{place}: {key.value!r} is here twice", code="broken_yaml")
            seen.add(key.value)
            _refuse_twins(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_twins(value)


def _refuse_odd(document: Document, value: Any, pointer: str) -> None:
    """Refuse what JSON has no word for: it could not be kept."""
    if isinstance(value, dict):
        for name, part in value.items():
            _refuse_odd(document, part, f"{pointer}/{name}")
            _refuse_half_characters(document, name, pointer)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            _refuse_odd(document, part, f"{pointer}/{number}")
    elif isinstance(value, str):
        _refuse_half_characters(document, value, pointer)
    elif isinstance(value, float) and not math.isfinite(value):
        place = document.place(pointer)
        raise InvalidRequest(f"{place}: {value} is no number here", code="broken_yaml")
    elif value is not None and not isinstance(value, (int, float, bool)):
        place = document.place(pointer)
        raise InvalidRequest(f"{place}: write this as text, in quotes", code="broken_yaml")


def _refuse_half_characters(document: Document, text: Any, pointer: str) -> None:
    """Refuse half of a surrogate pair, which an escape can write and nothing can keep."""
    try:
        str(text).encode()
    except UnicodeEncodeError:
        place = document.place(pointer)
        raise InvalidRequest(
            f"{place}: this has half a character in it", code="broken_yaml"
        ) from None


def _below(node: yaml.Node, name: str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == name), None)
    if isinstance(node, yaml.SequenceNode) and name.isdecimal() and int(name) < len(node.value):
        found: yaml.Node = node.value[int(name)]
        return found
    return None


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "somewhere"
