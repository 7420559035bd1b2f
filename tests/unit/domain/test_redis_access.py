"""Rules of Redis users, as text: what Redis makes of them is tested with a server."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from domain.errors import InvalidRequest
from domain.redis_access import RedisGrant, RedisRole, acl_line, rules_of, user_name
from domain.redis_grants import grants_of
from domain.redis_keys import Keys

KEYS = Keys("t")


def patterns(role: RedisRole, node: str = "") -> set[str]:
    """Return all keys that a role may name."""
    grants = grants_of(role, KEYS, node)
    return set(chain.from_iterable((*each.both, *each.read, *each.write) for each in grants))


def test_a_grant_is_a_selector_of_its_commands_and_keys() -> None:
    grant = RedisGrant(
        commands=("get", "-del"), both=("a",), read=("b",), write=("c",), channels=("d",)
    )
    assert rules_of([grant])[-1] == "(resetchannels -@all +get -del ~a %R~b %W~c &d)"


def test_a_user_begins_with_nothing_and_keeps_no_password_in_clear() -> None:
    line = acl_line("u", "secret", [])
    assert line.startswith("user u on #2bb80d537b1da3e3")
    assert " resetkeys resetchannels clearselectors -@all " in line
    assert "secret" not in line


def test_users_are_named_by_prefix_role_and_node() -> None:
    assert user_name(KEYS, RedisRole.WEB) == "t-web"
    assert user_name(KEYS, RedisRole.NODE, "n1") == "t-node-n1"


@pytest.mark.parametrize("name", ["", "a:b", "a*", "a?", "[a]", "a b", "-a", "a\\"])
def test_a_name_that_redis_reads_as_a_pattern_has_no_user(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot have a user of Redis"):
        grants_of(RedisRole.NODE, KEYS, name)
    with pytest.raises(InvalidRequest, match="cannot have a user of Redis"):
        grants_of(RedisRole.WEB, Keys(name))


@pytest.mark.parametrize("role", [role for role in RedisRole if role is not RedisRole.ADMIN])
def test_every_key_is_below_the_prefix_and_none_is_the_whole_of_it(role: RedisRole) -> None:
    found = patterns(role, "n1" if role is RedisRole.NODE else "") - {""}
    assert found
    assert all(re.fullmatch(r"t:[a-z].*", key) for key in found)


def test_a_node_names_no_key_of_another_node_but_its_snapshots() -> None:
    ours, theirs = patterns(RedisRole.NODE, "n1"), patterns(RedisRole.NODE, "n2")
    assert {key for key in ours if "n1" in key} == {
        "t:node:n1:*", "t:reports:n1", "t:alive:n1", "t:node-door:n1", "t:snapshot-door:n1"
    }  # fmt: skip
    assert not any("n2" in key for key in ours)
    assert KEYS.inbox not in ours | theirs


def test_only_loops_and_the_admin_may_write_the_journal() -> None:
    may = set()
    for role in RedisRole:
        for grant in grants_of(role, KEYS, "n1" if role is RedisRole.NODE else ""):
            if KEYS.journal in (*grant.both, *grant.write) or f"{KEYS.prefix}:*" in grant.both:
                may.add(role)
    assert may == {RedisRole.LOOP, RedisRole.ADMIN}
