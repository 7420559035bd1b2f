"""Definitions of problems: the documentation and the alerts are made from them."""

from __future__ import annotations

from dataclasses import fields

import pytest
import yaml

from tangram_web.problems.document import ALERTS, BEGIN, alerts, document
from tangram_web.problems.kinds import DOCUMENT, KINDS, ProblemKind, Severity
from tangram_web.problems.thresholds import PREFIX, ProblemThresholds, thresholds_of
from tests.architecture.tree import ROOT

AGAIN = "python -m tangram_web.problems.document ."


def test_the_document_is_made_from_the_definitions() -> None:
    assert (ROOT / DOCUMENT).read_text() == document(), AGAIN


def test_the_alerts_are_made_from_the_definitions() -> None:
    text = (ROOT / ALERTS).read_text()

    assert text.partition(BEGIN)[1:] == (BEGIN, alerts().removeprefix(BEGIN)), AGAIN


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.key)
def test_each_kind_has_an_alert_with_its_time_and_a_runbook(kind: ProblemKind) -> None:
    groups = yaml.safe_load((ROOT / ALERTS).read_text())["groups"]
    (rule,) = [each for group in groups for each in group["rules"] if each["alert"] == kind.alert]

    assert rule["for"] == f"{kind.raise_seconds:g}s"
    assert rule["labels"]["severity"] == (
        "page" if kind.severity is Severity.CRITICAL else "ticket"
    )
    assert f"## {kind.name}\n" in document()
    assert rule["annotations"]["runbook_url"].endswith(f"{DOCUMENT}#{kind.anchor}")


def test_every_threshold_belongs_to_a_kind_and_is_a_variable() -> None:
    names = [each.name for each in fields(ProblemThresholds)]
    asked: list[str] = []

    def read(name: str, default: float) -> float:
        asked.append(name)
        return default + 1

    changed = thresholds_of(read)

    assert sorted(names) == sorted({name for kind in KINDS for name in kind.thresholds})
    assert asked == [f"{PREFIX}{name.upper()}" for name in names]
    assert changed.blocked_actions == ProblemThresholds().blocked_actions + 1


def test_keys_of_kinds_are_unique() -> None:
    assert len({kind.key for kind in KINDS}) == len({kind.name for kind in KINDS}) == len(KINDS)
