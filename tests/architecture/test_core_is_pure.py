"""The core decides from its events alone: no clock, no randomness of its own, no I/O, no waiting.

The same program then runs in production, under property tests and in a simulation, and
replaying a journal gives the same decisions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.tree import name, python_files

_BANNED_MODULES = frozenset(
    "asyncio celery channels concurrent django httpx io logging multiprocessing os pathlib queue"
    " random redis sched secrets select selectors shutil signal socket ssl subprocess sys tempfile"
    " threading time urllib uuid".split()
)
_BANNED_CALLS = frozenset({"open", "print", "input", "eval", "exec", "__import__"})
_BANNED_METHODS = frozenset({"now", "utcnow", "today"})
#: The ports name paths in their signatures and open none; addresses are taken apart as text.
_ALLOWED = frozenset(
    {
        ("domain/ports/drivers.py", "imports pathlib"),
        ("domain/apis.py", "imports urllib.parse"),
        ("domain/backend_addresses.py", "imports urllib.parse"),
        ("domain/receiver_urls.py", "imports urllib.parse"),
    }
)


def impurities(source: str) -> Iterator[str]:
    """Yield what a pure module must not do, as ``line: what``."""
    for node in ast.walk(ast.parse(source)):
        yield from _impurities_of(node)


def _impurities_of(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [_import(alias.name) for alias in names if _banned(alias.name)]
        case ast.ImportFrom(module=str(module)) if _banned(module):
            return [_import(module)]
        case ast.Call(func=ast.Name(id=called)) if called in _BANNED_CALLS:
            return [f"calls {called}"]
        case ast.Call(func=ast.Attribute(attr=called)) if called in _BANNED_METHODS:
            return [f"reads the clock by {called}"]
        case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
            return ["waits"]
    return []


def _banned(module: str) -> bool:
    return module.partition(".")[0] in _BANNED_MODULES


def _import(module: str) -> str:
    return f"imports {module}"


def pure_files():
    """Return everything that must be pure."""
    ledgers = [
        path
        for path in python_files("managers")
        if path.stem == "ledger" or path.parent.name == "ledger"
    ]
    # Transports wait for other ranks, batches are pulled, and a command prints.
    plans = [
        path
        for path in python_files("dispatcher")
        if path.parent.name == "dispatcher" and path.stem not in {"batches", "cli", "__main__"}
    ]
    folders = ("domain", "placement", "scheduler/core", "rollout/core")
    return [*python_files(*folders), *ledgers, *plans]


@pytest.mark.parametrize("path", pure_files(), ids=name)
def test_module_is_pure(path):
    # The ports say what a driver's coroutines look like: they declare waiting and do none.
    waits = {"waits"} if path.parent.name == "ports" else set()
    found = set(impurities(path.read_text())) - waits

    assert {each for each in found if (name(path), each) not in _ALLOWED} == set()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import time", ["imports time"]),
        ("from os.path import join", ["imports os.path"]),
        ("def f():\n    import random", ["imports random"]),
        ("at = datetime.now(UTC)", ["reads the clock by now"]),
        ("text = open('journal').read()", ["calls open"]),
        ("async def f(): ...", ["waits"]),
        ("from dataclasses import dataclass", []),
    ],
    ids=["clock", "file system", "hidden import", "wall clock", "open", "coroutine", "pure"],
)
def test_impurity_is_found(source, expected):
    assert list(impurities(source)) == expected
