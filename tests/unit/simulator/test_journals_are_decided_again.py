"""A stored journal gives the same decisions again, and says why they were made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from domain.errors import InvalidRequest
from simulator.cli import verbs
from simulator.journal_replay import replay_journal
from simulator.workloads.recorded import read_journal

SMALL = ("--batch", "6", "--nodes", "1", "--cores", "4", "--group", "2")


def sim(*arguments: str) -> Result:
    return CliRunner().invoke(verbs, [*arguments])


@pytest.fixture(params=["paper", "malleable", "balanced"])
def journal(request, tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    done = sim(
        "run", *SMALL, "--malleable", "--policy", request.param, "-q", "--journal", str(path)
    )
    assert done.exit_code == 0
    return path


def test_every_entry_is_decided_as_it_was(journal: Path):
    entries = read_journal(journal)

    decided = list(replay_journal(entries))

    assert len(decided) == len(entries)
    assert all(each.same for each in decided)
    assert any(each.arranged for each in decided)


def test_decisions_are_shown_with_what_was_tried(journal: Path):
    shown = sim("decisions", str(journal))
    rewards = sim("decisions", str(journal), "--action", "s0-t00003.reward", "--json")

    assert (shown.exit_code, rewards.exit_code) == (0, 0)
    assert " on cpu:n000: " in shown.stdout
    views = [json.loads(line) for line in rewards.stdout.splitlines()]
    assert views
    assert all("s0-t00003.reward" in view["candidates"] for view in views)


def test_a_journal_that_was_decided_otherwise_is_reported(journal: Path):
    lines = journal.read_text().splitlines()
    grant = next(i for i, line in enumerate(lines) if '"grant"' in line.lower())
    entry = json.loads(lines[grant])
    entry["decisions"] = []
    lines[grant] = json.dumps(entry)
    journal.write_text("\n".join(lines))

    reported = sim("decisions", str(journal))

    assert reported.exit_code == 1
    assert "1 entries were decided otherwise then" in reported.stderr


def test_nothing_is_printed_of_a_journal_that_breaks_off_in_the_middle(journal: Path, monkeypatch):
    def breaks_off(*journal):
        yield from replay_journal(*journal)
        raise InvalidRequest("entry 8 cannot follow what is above it")

    monkeypatch.setattr("simulator.cli.replay_journal", breaks_off)
    broken = sim("decisions", str(journal))

    assert (broken.exit_code, broken.stdout) == (2, "")


def test_a_journal_without_its_beginning_is_refused(journal: Path):
    entries = read_journal(journal)

    with pytest.raises(InvalidRequest, match="from its first entry on"):
        list(replay_journal([*entries[3:], *entries[:1]]))
