"""Two people edit the same revision: what each changed alone stays, what both changed is a conflict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tangram_web.configuration.three_way_merge import WHOLE, MergeConflict, merge

POOL = ("Pool", "default")
SPECS = st.dictionaries(
    st.sampled_from([POOL, ("Pool", "big")]),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 2)),
)


def test_members_that_one_of_both_changed_have_the_new_value() -> None:
    base = {POOL: {"policy": "paper", "paused": False}}
    theirs = {POOL: {"policy": "minimum", "paused": False}}
    mine = {POOL: {"policy": "paper", "paused": True}}

    merged = merge(base, theirs, mine)

    assert merged.specs == {POOL: {"policy": "minimum", "paused": True}}
    assert merged.conflicts == []


def test_a_member_that_both_changed_is_mine_and_said() -> None:
    base, theirs, mine = ({POOL: {"policy": name}} for name in ("paper", "minimum", "balanced"))

    merged = merge(base, theirs, mine)

    assert merged.specs == mine
    assert merged.conflicts == [MergeConflict(*POOL, "policy", "minimum", "balanced")]


def test_their_deletion_of_an_unchanged_object_stays() -> None:
    base = {POOL: {"policy": "paper"}}

    assert merge(base, {}, base).specs == {}


@given(SPECS, SPECS)
def test_an_unchanged_side_takes_the_other(base: dict, theirs: dict) -> None:
    merged = merge(base, theirs, base)

    assert merged.conflicts == []
    assert merged.specs == {key: spec for key, spec in theirs.items() if key in base}


@given(SPECS, SPECS)
def test_without_their_change_it_is_mine(base: dict, mine: dict) -> None:
    merged = merge(base, base, mine)

    assert merged.conflicts == []
    assert merged.specs == mine


def test_an_object_that_they_deleted_and_i_changed_is_kept_and_reported() -> None:
    base = {POOL: {"policy": "paper", "paused": False}}
    mine = {POOL: {"policy": "paper", "paused": True}}

    merged = merge(base, {}, mine)

    assert merged.specs == mine
    assert merged.conflicts == [MergeConflict(*POOL, WHOLE, None, mine[POOL])]


def test_their_new_objects_are_not_pruned() -> None:
    big = ("Pool", "big")
    base, theirs = {POOL: {"policy": "paper"}}, {POOL: {"policy": "paper"}, big: {"policy": "x"}}

    assert merge(base, theirs, base, prune=True).specs == theirs
    assert merge(base, theirs, base).specs == base


def test_an_object_that_i_pruned_and_they_changed_stays_and_is_reported() -> None:
    base, theirs = {POOL: {"policy": "paper"}}, {POOL: {"policy": "minimum"}}

    merged = merge(base, theirs, {}, prune=True)

    assert merged.specs == theirs
    assert merged.conflicts == [MergeConflict(*POOL, WHOLE, theirs[POOL], None)]
    assert merge(base, base, {}, prune=True).specs == {}


@given(SPECS, SPECS)
def test_pruning_without_a_change_of_mine_is_theirs(base: dict, theirs: dict) -> None:
    merged = merge(base, theirs, base, prune=True)

    assert merged.conflicts == []
    assert merged.specs == theirs
