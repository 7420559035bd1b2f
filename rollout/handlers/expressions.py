"""Mathematical expressions as a model writes them, LaTeX or plain: read without evaluation of code, and compared.

    equal(r"\\frac{1}{2}", "0.5")            # True
    equal("x^2 - 1", "(x-1)(x+1)")           # True: at points, exactly
    equal("1", "2^{1000000}")                # None: too large to decide here
    equal("2^{1000000}", "1"), equal("1/0", "1")      # False: the expected one has a value

Rules
1. An expression is read by the grammar below into a tree of tuples. Names other than known functions and constants are
   variables. Nothing of it is ever run as code, so an answer can do nothing but be wrong.
2. Numbers are compared exactly as fractions; where a root or a function takes part, as floats, by their ratio. A sum of floats
   that nearly cancel is 0. Expressions with variables are compared at fixed points, where equal ones agree and others, in all
   probability, do not.
3. Work is bounded: the length of a text, the depth of a tree, the size of a power. An expected expression beyond that is not
   decided; an answer beyond it, or one without a value, is wrong where the expected one has a value.

    sum      = term (("+" | "-") term)*          power   = atom "!"* ("^" unary)?
    term     = unary (("*" | "/" | nothing) unary)*   atom = number | name | function atom | "(" sum ")"
    unary    = ("+" | "-") unary | power                   | \\frac{sum}{sum} | \\sqrt[sum]{sum} | "|" sum "|"
"""

from __future__ import annotations

import cmath
import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

MAX_CHARACTERS: Final = 1000
_MAX_DEPTH: Final = 60
_MAX_TOKENS: Final = 300
#: Variables in a row.
_MOST_LETTERS: Final = 3
_MAX_EXPONENT: Final = 4096
_MAX_BITS: Final = 20_000
_POINTS: Final = 6
_NEAR: Final = 1e-9
#: Of the largest term of a sum of floats: less is 0.
_CANCELLED: Final = 1e-12
#: Functions with zeros beside 0, which floats miss.
_WITH_ZEROS: Final = ("sin", "cos", "tan", "cot", "log", "ln")

#: ``("number", text)``, ``("name", text)``, or an operation with its operands.
Tree = tuple[Any, ...]
Value = Fraction | complex

_FUNCTIONS: Final = (
    "arcsin arccos arctan asin acos atan sinh cosh tanh sin cos tan cot sec csc log ln exp sqrt abs"
).split()
_CONSTANTS: Final[Mapping[str, Value]] = {
    "pi": complex(math.pi), "e": complex(math.e), "i": 1j,
}  # fmt: skip
#: LaTeX that means a plain text.
_LATEX: Final = (
    (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|mathrm|mathbf|mathit|operatorname)(?![A-Za-z])", ""),
    (r"\\[,;:!> ]", " "), (r"\\(?:cdot|times|ast)(?![A-Za-z])", "*"), (r"\\div(?![A-Za-z])", "/"),
    (r"\\[dtc]frac", r"\\frac"), (r"\\text\{[^{}]*\}", ""), (r"\\(?:lvert|rvert|vert)\b", "|"),
    (r"\\%|%", "*0.01"), (r"\\\$|\$", ""), (r"\^\{?\\circ\}?|°", "*pi/180"),
    ("−|–", "-"), ("×|·", "*"), ("÷", "/"), ("π", " pi "), ("√", r"\\sqrt"), (r"\*\*", "^"),
    (r"(?<=\d),(?=\d{3}(?!\d))", ""),
)  # fmt: skip
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d{1,3})?|\.\d+)|\\?(?P<name>[A-Za-z]+(?:_\{?\w+\}?)?)|(?P<sign>[-+*/^!(){}\[\]|]))"
)


class NoExpression(ValueError):
    """The text is no expression of the grammar."""


class Undecided(ArithmeticError):
    """The expression is too large, or has no value at the points."""


def equal(answer: str, expected: str) -> bool | None:
    """Say whether two expressions are equal; None: one cannot be read, or the expected one is not decided here."""
    try:
        return equal_trees(read(answer), read(expected))
    except NoExpression:
        return None


def equal_trees(answer: Tree, expected: Tree) -> bool | None:
    """Say whether two trees are equal; None: the expected one is not decided here."""
    names = sorted({*names_of(answer), *names_of(expected)})
    agreed, without = 0, 0
    for point in points(names):
        wanted = _value_or_none(expected, point)
        if wanted is None:
            continue
        found = _value_or_none(answer, point)
        if found is not None and not _near(found, wanted):
            return False
        agreed += found is not None
        without += found is None
    enough = 2 if names else 1
    if agreed >= enough:
        return True
    return False if agreed + without >= enough else None


def _value_or_none(tree: Tree, point: Mapping[str, Value]) -> Value | None:
    try:
        return value_of(tree, point)
    except (Undecided, ArithmeticError, ValueError):
        return None


def read(text: str) -> Tree:
    """Return the tree of an expression. Raises NoExpression."""
    if len(text) > MAX_CHARACTERS:
        raise NoExpression(f"it has more than {MAX_CHARACTERS} characters")
    for pattern, plain in _LATEX:
        text = re.sub(pattern, plain, text)
    reader = _ExpressionReader(_tokens(text))
    tree = reader.sum(0)
    if reader.left:
        raise NoExpression(f"{reader.left[0][1]!r} is not expected there")
    return tree


def names_of(tree: Tree) -> set[str]:
    """Return the variables of a tree."""
    if tree[0] == "name":
        return set() if tree[1] in _CONSTANTS else {tree[1]}
    return {name for part in tree[1:] if isinstance(part, tuple) for name in names_of(part)}


def points(names: Iterable[str]) -> list[dict[str, Value]]:
    """Return values of variables, the same for the same names: positive fractions first, then others."""
    names = list(names)
    if not names:
        return [{}]
    chance = random.Random(20260101)
    ranges = [(1, 60)] * (_POINTS // 2) + [(-60, 60)] * (_POINTS - _POINTS // 2)
    return [{name: Fraction(chance.randint(*span), 13) for name in names} for span in ranges]


def value_of(tree: Tree, point: Mapping[str, Value]) -> Value:
    """Return the value of a tree at a point: a fraction where it has one. Raises Undecided, ArithmeticError."""
    kind, *parts = tree
    if kind == "number":
        return Fraction(parts[0])
    if kind == "name":
        return point[parts[0]] if parts[0] in point else _CONSTANTS[parts[0]]
    if kind in ("+", "-"):
        return _small(_total([value_of(term, point) * sign for term, sign in _terms(tree, 1)]))
    values = [value_of(part, point) for part in parts if isinstance(part, tuple)]
    if kind == "call":
        return _called(parts[0], values[0])
    return _small(_OPERATIONS[kind](*values))


def _terms(tree: Tree, sign: int) -> Iterator[tuple[Tree, int]]:
    """Yield the terms of a sum with their signs."""
    if tree[0] in ("+", "-"):
        yield from _terms(tree[1], sign)
        yield from _terms(tree[2], sign if tree[0] == "+" else -sign)
    elif tree[0] == "minus":
        yield from _terms(tree[1], -sign)
    else:
        yield tree, sign


def _total(terms: list[Value]) -> Value:
    """Return a sum; floats that cancel up to their rounding are 0."""
    found = sum(terms, Fraction())
    if isinstance(found, Fraction) or abs(complex(found)) > _CANCELLED * max(
        abs(complex(each)) for each in terms
    ):
        return found
    return Fraction()


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        number = exponent.numerator
        if isinstance(base, Fraction):
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if abs(number) > _MAX_EXPONENT or bits * abs(number) > _MAX_BITS:
                raise Undecided("a power is too large")
        return base**number
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        root = _exact_root(base, exponent)
        if root is not None:
            return root
    return complex(base) ** complex(exponent)


def _exact_root(base: Fraction, exponent: Fraction) -> Value | None:
    """Return a rational power that is a fraction; None: it is none."""
    if base < 0 or exponent.denominator > 64 or abs(exponent.numerator) > 64:
        return None
    parts = []
    for number in (base.numerator, base.denominator):
        near = round(number ** (1 / exponent.denominator)) if number < 1 << 200 else -1
        if near < 0 or near**exponent.denominator != number:
            return None
        parts.append(near)
    return _power(Fraction(*parts), Fraction(exponent.numerator))


def _factorial(value: Value) -> Value:
    if not isinstance(value, Fraction) or value.denominator != 1 or not 0 <= value <= 500:
        raise Undecided("a factorial of no small natural number")
    return Fraction(math.factorial(value.numerator))


_OPERATIONS: Final[Mapping[str, Any]] = {
    "*": lambda one, other: one * other,
    "/": lambda one, other: one / other,
    "^": _power,
    "!": _factorial,
    "minus": lambda value: -value,
}


def _called(name: str, value: Value) -> Value:
    if name == "abs":
        return abs(value) if isinstance(value, Fraction) else complex(abs(value))
    if name == "sqrt":
        return _power(value, Fraction(1, 2))
    number = complex(value)
    if name in ("cot", "sec", "csc"):
        inverse = {"cot": "tan", "sec": "cos", "csc": "sin"}[name]
        return _without_noise(name, 1 / _called(inverse, value), number)
    function = {"ln": "log", "arcsin": "asin", "arccos": "acos", "arctan": "atan"}.get(name, name)
    return _without_noise(name, getattr(cmath, function)(number), number)


def _without_noise(name: str, found: Value, argument: complex) -> Value:
    """Return the value of a function; where rounding of its argument alone keeps it from 0, that."""
    noise = name in _WITH_ZEROS and abs(complex(found)) <= _CANCELLED * abs(argument)
    return Fraction() if noise else found


def _small(value: Value) -> Value:
    """Return a value that is not too large. Raises Undecided."""
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
            raise Undecided("a number is too large")
    elif not cmath.isfinite(value):
        raise Undecided("a number is not finite")
    return value


def _near(one: Value, other: Value) -> bool:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    try:
        first, second = complex(one), complex(other)
        return abs(first - second) <= _NEAR * max(abs(first), abs(second))
    except OverflowError:  # one is larger than any float, the other is a float
        return False


def _tokens(text: str) -> list[tuple[str, str]]:
    at, found = 0, list[tuple[str, str]]()
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise NoExpression(f"{text[at : at + 10]!r} is no part of an expression")
        kind = str(match.lastgroup)
        found += _names(match[kind]) if kind == "name" else [(kind, match[kind])]
        at = match.end()
        if len(found) > _MAX_TOKENS:
            raise NoExpression(f"it has more than {_MAX_TOKENS} parts")
    return found


def _names(text: str) -> list[tuple[str, str]]:
    """Return the names in letters: functions and constants, then single letters."""
    if "_" in text:
        return [("name", text.replace("{", "").replace("}", ""))]
    letters, found = 0, list[tuple[str, str]]()
    known = (*_FUNCTIONS, "frac", "pi", "infty")
    while text:
        name = next((each for each in known if text.startswith(each)), text[0])
        letters = letters + 1 if len(name) == 1 else 0
        if letters > _MOST_LETTERS:
            raise NoExpression("a word is no product of letters")
        found.append(("name", name))
        text = text[len(name) :]
    return found


class _ExpressionReader:
    """Reads tokens from the left."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.left = list(tokens)

    def _next(self) -> str:
        return self.left[0][1] if self.left else ""

    def _take(self, *signs: str) -> str:
        if self.left and self.left[0][1] in signs:
            return self.left.pop(0)[1]
        return ""

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise NoExpression(f"{sign!r} is missing")

    def sum(self, depth: int) -> Tree:
        """Read a sum."""
        if depth > _MAX_DEPTH:
            raise NoExpression("it is nested too deeply")
        tree = self._term(depth)
        while sign := self._take("+", "-"):
            tree = (sign, tree, self._term(depth))
        return tree

    def _term(self, depth: int) -> Tree:
        tree = self._unary(depth + 1)
        while self.left:
            if sign := self._take("*", "/"):
                tree = (sign, tree, self._unary(depth + 1))
            elif self._next() == "frac" and tree[0] == "number":  # a mixed number
                tree = ("+", tree, self._power(depth + 1))
            elif self._next() in ("(", "{") or self.left[0][0] == "name":
                tree = ("*", tree, self._power(depth + 1))
            else:
                break
        return tree

    def _unary(self, depth: int) -> Tree:
        if depth > _MAX_DEPTH:
            raise NoExpression("it is nested too deeply")
        if sign := self._take("+", "-"):
            tree = self._unary(depth + 1)
            return ("minus", tree) if sign == "-" else tree
        return self._power(depth)

    def _power(self, depth: int) -> Tree:
        tree = self._atom(depth + 1)
        while self._take("!"):
            tree = ("!", tree)
        if self._take("^"):
            tree = ("^", tree, self._unary(depth + 1))
        return tree

    def _atom(self, depth: int) -> Tree:
        if not self.left:
            raise NoExpression("it ends too early")
        for opening, closing in (("(", ")"), ("{", "}"), ("[", "]")):
            if self._take(opening):
                tree = self.sum(depth + 1)
                self._expect(closing)
                return tree
        if self._take("|"):
            tree = self.sum(depth + 1)
            self._expect("|")
            return ("call", "abs", tree)
        kind, text = self.left.pop(0)
        if kind == "number":
            return ("number", text.rstrip("."))
        if kind != "name":
            raise NoExpression(f"{text!r} is not expected there")
        return self._named(text, depth)

    def _named(self, name: str, depth: int) -> Tree:
        if name == "frac":
            return ("/", self._group(depth), self._group(depth))
        if name == "sqrt" and self._take("["):
            degree = self.sum(depth + 1)
            self._expect("]")
            return ("^", self._group(depth), ("/", ("number", "1"), degree))
        if name in _FUNCTIONS:
            power = self._unary(depth + 1) if self._take("^") else None
            argument = self._group(depth) if self._next() in ("(", "{") else self._power(depth + 1)
            tree: Tree = ("call", name, argument)
            return tree if power is None else ("^", tree, power)
        if name.startswith("log_") and name[4:].isdigit():
            base = ("call", "log", ("number", name[4:]))
            return ("/", ("call", "log", self._power(depth + 1)), base)
        if name == "infty":
            raise NoExpression("infinity is no number")
        return ("name", name)

    def _group(self, depth: int) -> Tree:
        """Read what LaTeX takes as one argument: braces, or one digit or name."""
        if self._next() in ("{", "("):
            return self._atom(depth + 1)
        if self.left and self.left[0][0] == "number" and len(self.left[0][1]) > 1:
            digits = self.left.pop(0)[1]
            self.left.insert(0, ("number", digits[1:]))
            return ("number", digits[0])
        return self._atom(depth + 1)
