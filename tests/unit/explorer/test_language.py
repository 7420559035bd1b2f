"""The filter language: what is printed is read as the same, and every mistake has a place and a cure."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_web.explorer.fields import ACTIONS, TABS, Field, FieldKind, Tab
from tangram_web.explorer.impossible import why_nothing
from tangram_web.explorer.language import FilterTerm, Query, QueryError, parse
from tangram_web.explorer.old_addresses import query_of_old
from tangram_web.explorer.values import Sign, Value, seconds_of
from tangram_web.lib.explorer_links import explorer_link

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
AMOUNTS = st.floats(0, 1e7, allow_nan=False)
SIGNS = st.sampled_from([Sign.IS, Sign.NOT, Sign.OVER, Sign.FROM, Sign.UNDER, Sign.TO])


def values_of(field: Field) -> st.SearchStrategy[Value]:
    if field.kind is FieldKind.CHOICE:
        return st.sampled_from(field.values).map(lambda text: Value(Sign.IS, str(text)))
    if field.kind is FieldKind.TEXT:
        heads = st.from_regex(r"[a-z0-9_:.@+-]{0,8}", fullmatch=True)
        return TEXTS.map(lambda text: Value(Sign.IS, text)) | heads.map(
            lambda text: Value(Sign.BEGINS, text)
        )
    if field.kind is FieldKind.TIME:
        ages = AMOUNTS.map(lambda number: Value(Sign.AGE, number=number))
        return ages | st.integers(10**6, 4 * 10**9).map(lambda at: Value(Sign.IS, number=float(at)))
    ranges = st.tuples(AMOUNTS, AMOUNTS).map(
        lambda ends: Value(Sign.RANGE, number=min(ends), upper=max(ends))
    )
    return ranges | st.builds(lambda sign, number: Value(sign, number=number), SIGNS, AMOUNTS)


def terms_of(field: Field) -> st.SearchStrategy[FilterTerm]:
    most = 1 if field.kind is FieldKind.TIME else 3
    negated = st.just(False) if field.kind is FieldKind.TIME else st.booleans()
    several = st.lists(values_of(field), min_size=1, max_size=most).map(tuple)
    return st.builds(lambda values, minus: FilterTerm(field, values, minus), several, negated)


@pytest.mark.parametrize("tab", TABS.values(), ids=lambda tab: tab.name)
@pytest.mark.slow
def test_a_printed_query_is_read_as_the_same(tab: Tab) -> None:
    one_term = st.sampled_from(tab.fields).flatmap(terms_of)

    @settings(max_examples=150, deadline=None, database=None)
    @given(st.lists(one_term, max_size=4).map(lambda terms: Query(tuple(terms))))
    def check(query: Query) -> None:
        assert parse(tab, str(query)) == query

    check()


def read(text: str) -> Query | QueryError:
    try:
        return parse(ACTIONS, text)
    except QueryError as error:
        return error


@pytest.mark.slow
def test_any_text_is_a_query_or_has_mistakes_with_a_cure() -> None:
    @settings(max_examples=200, deadline=None, database=None)
    @given(st.text(max_size=40) | st.from_regex(r'(-?[a-z]{2,6}:[a-z0-9"*,.>!=-]{0,9} ){1,3}'))
    def check(text: str) -> None:
        found = read(text)
        if isinstance(found, Query):
            assert parse(ACTIONS, str(found)) == found
        else:
            assert all(each.reason and each.cure for each in found.mistakes)

    check()


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("act:1m30s", "act:90s"),
        ("act:>0.25s queue:>=120s", "act:>250ms queue:>=2m"),
        ("state:queued,running -door:e2b", "state:queued,running -door:e2b"),
        ('task:"a b",c* fix', 'task:"a b",c* fix'),
        ("since:2026-11-20T14:00+02:00", "since:2026-11-20T12:00:00Z"),
        ('"task:x"', '"task:x"'),
        ("exit:1..9 reward:none", "exit:1..9 reward:none"),
    ],
)
def test_queries_have_one_way_to_be_written(text: str, printed: str) -> None:
    assert str(parse(ACTIONS, text)) == printed


@pytest.mark.parametrize(
    ("text", "at", "cure"),
    [
        ("act:>5s stat:queued", 8, "did you mean state:?"),
        ("state:waiting", 0, "use one of queued, granted, running, finished"),
        ("exit:high", 0, "write a number"),
        ("act:soon", 0, "write a duration"),
        ("since:tomorrow", 0, "write an age"),
        ("-since:1h", 0, "write until:1h"),
        ('task:"a', 0, 'add " at the end'),
        ("task:*a", 0, "or quote it"),
        ("exit:9..1", 0, "write 1..9"),
        ("step:1e99", 0, "write a smaller one"),
        ("state:", 0, "write one of its words"),
    ],
)
def test_a_mistake_has_its_place_and_a_cure(text: str, at: int, cure: str) -> None:
    with pytest.raises(QueryError) as raised:
        parse(ACTIONS, text)

    (mistake,) = raised.value.mistakes
    assert mistake.at == at
    assert cure in mistake.cure
    assert f"(character {at + 1})" in str(mistake)


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(QueryError) as raised:
        parse(ACTIONS, "a:1 task:x b:2")

    assert [each.at for each in raised.value.mistakes] == [0, 11]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("state:queued exit:!=0", "only exit:none finds anything"),
        ("state:running outcome:timeout", "only outcome:none finds anything"),
        ("task:a task:b", "write task:a,b for either"),
        ("act:>5s act:<1s", "exclude each other"),
        ("exit:none exit:3", "exclude each other"),
        ("since:1h until:2h", "does not begin before"),
    ],
)
def test_what_can_find_nothing_is_named(text: str, says: str) -> None:
    (reason,) = why_nothing(ACTIONS, parse(ACTIONS, text), 1e9)

    assert says in reason


@pytest.mark.parametrize(
    "text",
    ["state:queued,finished exit:!=0", "-state:queued exit:3", "task:a* task:ab", "act:>1s act:<5s",
     "since:2h until:1h", "state:queued exit:none", "exit:!=0 exit:<9", "-task:a task:a,b"],
)  # fmt: skip
def test_what_may_find_something_is_not(text: str) -> None:
    assert why_nothing(ACTIONS, parse(ACTIONS, text), 1e9) == []


@pytest.mark.parametrize(
    ("tab", "old", "query"),
    [
        ("actions", {"state": "queued", "task": "swe 1"}, 'state:queued task:"swe 1"'),
        ("actions", {"exit": "failed"}, "outcome:completed exit:!=0"),
        ("actions", {"exit": "3", "door": "native"}, "exit:3 door:native"),
        ("rollouts", {"lane": "run", "llm": "p@q"}, "lane:run llm:p@q"),
        ("tasks", {"project": "p"}, "project:p"),
        ("trajectories", {"state": "open", "before": "2026"}, "state:open"),
    ],
)
def test_an_address_of_an_earlier_version_is_a_query(tab: str, old: dict[str, str], query: str) -> None:  # fmt: skip
    assert query_of_old(TABS[tab], old) == query
    assert str(parse(TABS[tab], query)) == query


def test_an_address_without_old_filters_is_none() -> None:
    assert query_of_old(ACTIONS, {"q": "task:a", "sort": "act", "task": " "}) is None


def test_a_link_is_a_query_of_its_terms() -> None:
    link = explorer_link("actions", task='a "b"', exit="!=0", node="")

    assert link == "/actions/?q=task%3A%22a%20%5C%22b%5C%22%22%20exit%3A%21%3D0"
    assert str(parse(ACTIONS, 'task:"a \\"b\\"" exit:!=0'))
    assert explorer_link("tasks") == "/tasks/"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 5.0), ("500ms", 0.5), ("1h30m", 5400.0), ("2d", 172800.0), ("5x", None), ("", None)],
)
def test_durations_are_read_in_their_units(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds
