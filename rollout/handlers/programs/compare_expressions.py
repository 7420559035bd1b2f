"""Comparison of two expressions with sympy, where it is installed. Standard input is a JSON list of two trees.

The last line of output is an object: ``equal`` (null: not decided), or ``missing`` without sympy. The trees are those of
`rollout.handlers.expressions`: they name operations, and no text of an answer is evaluated.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

NAMES = {"ln": "log", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "abs": "Abs"}
CONSTANTS = {"pi": "pi", "e": "E", "i": "I"}


def build(sympy: Any, tree: Any) -> Any:
    """Return a tree as an expression of sympy."""
    kind, parts = tree[0], tree[1:]
    if kind == "number":
        return sympy.Rational(parts[0])
    if kind == "name":
        name = parts[0]
        return getattr(sympy, CONSTANTS[name]) if name in CONSTANTS else sympy.Symbol(name)
    if kind == "call":
        return getattr(sympy, NAMES.get(parts[0], parts[0]))(build(sympy, parts[1]))
    values = [build(sympy, part) for part in parts]
    if kind == "minus":
        return -values[0]
    if kind == "!":
        return sympy.factorial(values[0])
    one, other = values
    return {
        "+": sympy.Add, "-": lambda first, second: first - second,
        "*": sympy.Mul, "/": lambda first, second: first / second, "^": sympy.Pow,
    }[kind](one, other)  # fmt: skip


def main() -> None:
    """Compare, and print the result."""
    try:
        sympy = importlib.import_module("sympy")
    except ImportError:
        sys.stdout.write('{"missing": true}\n')
        return
    sys.setrecursionlimit(10000)
    one, other = (build(sympy, tree) for tree in json.load(sys.stdin))
    difference = sympy.simplify(one - other)
    equal = True if difference == 0 else difference.equals(0)
    sys.stdout.write("\n" + json.dumps({"equal": None if equal is None else bool(equal)}) + "\n")


if __name__ == "__main__":
    main()
