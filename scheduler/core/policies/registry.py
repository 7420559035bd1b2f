"""Registry of scheduling policies by name, filled by the modules of this package."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from importlib import import_module
from typing import TypeVar

import scheduler.core.policies
from domain.errors import InvalidRequest
from domain.policies import parse_policy, use_known_policies
from scheduler.core.policies.protocol import Policy

T = TypeVar("T", bound=Callable[..., Policy])

_factories: dict[str, Callable[..., Policy]] = {}


def register(form: str) -> Callable[[T], T]:
    """Register a policy class, or a function that returns a policy, under ``form``.

    ``name``, ``name(variant)``, ``name(k)`` for one with a unit count, ``name(p)`` for one with a percentage.
    """

    def add(policy: T) -> T:
        _factories[form] = policy
        return policy

    return add


@cache
def _import_policies() -> None:
    for module in pkgutil.iter_modules(scheduler.core.policies.__path__):
        import_module(f"{scheduler.core.policies.__name__}.{module.name}")


def policy_forms() -> tuple[str, ...]:
    """Return the forms of all policies, sorted."""
    _import_policies()
    return tuple(sorted(_factories))


def policy_named(text: str, *, depth: int | None = None) -> Policy:
    """Return the policy with a configured name; raise InvalidRequest for an unknown one.

    ``depth`` (Algorithm 2) replaces the default of policies that have one.
    """
    name = parse_policy(text)
    factory = _factories.get(name.form)
    if factory is None:  # the names were replaced, as tests do
        raise InvalidRequest(f"{text!r} is no policy")
    policy = factory() if name.parameter is None else factory(name.parameter)
    if depth is not None and any(field.name == "depth" for field in fields(policy)):  # type: ignore[arg-type]
        policy = replace(policy, depth=depth)  # type: ignore[type-var]
    return policy


use_known_policies(policy_forms)
