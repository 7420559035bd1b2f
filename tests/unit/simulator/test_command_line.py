"""`tangram sim` prints results, or one line about what is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from simulator.cli import verbs

SMALL = ("--batch", "3", "--nodes", "1", "--cores", "2")


def sim(*arguments: str) -> Result:
    return CliRunner().invoke(verbs, arguments)


def test_tables_name_the_policy():
    done = sim("run", *SMALL)

    assert done.exit_code == 0
    assert "ACT of rewards, simulated seconds" in done.stdout
    assert "malleable" in done.stdout


def test_json_carries_every_policy():
    done = sim("compare", *SMALL, "--policy", "minimum", "--json")

    (result,) = json.loads(done.stdout)
    assert result["policy"] == "minimum"
    assert result["rewards"]["actions"] == 3
    assert result["whole"]["act"]["mean"] > 0


def test_json_is_the_same_for_the_same_seed():
    again = [sim("run", *SMALL, "--json", "--seed", seed).stdout for seed in ("5", "5", "6")]

    assert again[0] == again[1] != again[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policy", "magic"), "'magic' is no policy; known are"),
        (("--batch", "0"), "batch must be at least 1"),
        (("--steps", "-1"), "rl_steps must be at least 1"),
        (("--cores", "0"), "cores must be at least 1, not 0"),
        (("--units", "0"), "rewards: most_units must be at least 1, not 0"),
        (("--reward-scale", "nan"), "rewards: scale must be above 0, not nan"),
        (("--declared-ratio", "0"), "rewards: declared_ratio must be above 0, not 0.0"),
        (("--failures", "1"), "--failures lies in [0, 1), not at 1.0"),
        (("--workload", "deep-search", "--units", "4"), "--units is no option of deep-search"),
        (("--pdf-limit", "4"), "--pdf-limit is no option of ai-coding"),
        (("--workload", "services", "--load", "0"), "services: load must be above 0, not 0.0"),
        (("--workload", "services", "--load", "inf"), "services: load must be above 0, not inf"),
        (("--workload", "services", "--load", "1e9"), "calls; at most 10,000,000"),
        (("--workload", "services", "--seconds", "inf"), "services: seconds must be above 0"),
        (("--workload", "services", "--call-seconds", "inf"), "call_seconds must be above 0"),
        (("--workload", "services", "--restore-seconds", "nan"), "must be a number ≥ 0, not nan"),
        (("--workload", "services", "--gpus", "-1"), "services: gpus must be at least 1, not -1"),
        (("--workload", "services", "--services", "2"), "a service for each GPU"),
        (("--workload", "deep-search", "--pdf-limit", "0"), "api:pdf: the limit must be at least"),
        (("missing.jsonl",), "missing.jsonl: No such file"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], said: str):
    done = sim("run", *arguments)

    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("tangram sim: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_broken_trace_is_one_line_and_no_report(tmp_path: Path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"id": "t1", "steps": [{"dur_s": NaN}]}\n')

    done = sim("compare", str(trace))

    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"tangram sim: {trace}:1: steps[0].dur_s must be a number ≥ 0, not nan\n"
    )


def test_a_plan_names_the_fewest_nodes():
    done = sim("plan", "--batch", "4", "--nodes", "4", "--cores", "1", "--act", "1000", "--quiet")

    assert done.exit_code == 0
    assert "fewest nodes with 1 cores each: 1 (simulated)" in done.stdout


def test_a_plan_that_nothing_fulfils_fails():
    done = sim("plan", "--batch", "4", "--nodes", "2", "--act", "0.0001", "--json")

    assert done.exit_code == 1
    assert json.loads(done.stdout)["nodes"] is None
    assert re.fullmatch(r"2 nodes: ACT [0-9.]+ s, too few\n", done.stderr)


def test_another_workload_is_simulated_by_name():
    done = sim("run", "--workload", "deep-search", "--batch", "2", "--judge-limit", "1", "--json")

    (result,) = json.loads(done.stdout)
    assert result["granted"].keys() == {"cpu", "api:search", "api:pdf", "api:judge"}


def test_a_written_journal_can_be_played_again(tmp_path: Path):
    journal = str(tmp_path / "journal.jsonl")
    once = sim("run", *SMALL, "--json", "--journal", journal)

    again = sim("run", "--workload", "recorded", journal, "--nodes", "1", "--cores", "2", "--json")

    (before,), (after,) = json.loads(once.stdout), json.loads(again.stdout)
    assert after["whole"]["act"]["mean"] == pytest.approx(before["whole"]["act"]["mean"], rel=1e-6)


def test_services_that_share_chunks_are_simulated_by_name():
    done = sim("run", "--workload", "services", "--nodes", "1", "--seconds", "5", "--json")
    (result,) = json.loads(done.stdout)

    assert set(result["outcomes"]) == {"completed"}
    assert 0 < result["restores"] < result["whole"]["actions"]


def test_limits_of_a_recorded_workload_must_be_given(tmp_path: Path):
    journal = str(tmp_path / "journal.jsonl")
    sim("run", "--workload", "deep-search", "--batch", "2", "--journal", journal)

    refused = sim("run", "--workload", "recorded", journal)

    assert refused.exit_code == 2
    assert "the journal uses api:judge; give --limit api:judge UNITS" in refused.stderr


def test_a_journal_that_cannot_be_written_is_one_line(tmp_path: Path):
    refused = sim("run", *SMALL, "--journal", str(tmp_path / "missing" / "journal.jsonl"))

    assert refused.exit_code == 2
    assert refused.stderr.endswith("journal.jsonl.part: No such file or directory\n")


def test_a_journal_that_would_replace_a_folder_is_refused_before_anything_runs(tmp_path: Path):
    refused = sim("run", *SMALL, "--journal", str(tmp_path))

    assert refused.exit_code == 2
    assert refused.stderr == f"tangram sim: {tmp_path}: Is a directory\n"
    assert not tmp_path.with_name(f"{tmp_path.name}.part").exists()


def test_nothing_is_left_of_a_journal_that_was_not_finished(tmp_path: Path, monkeypatch):
    def interrupted(*_: object) -> list[object]:
        raise KeyboardInterrupt

    monkeypatch.setattr("simulator.cli.compare", interrupted)
    done = sim("run", *SMALL, "--journal", str(tmp_path / "journal.jsonl"))

    assert done.exit_code == 1
    assert list(tmp_path.iterdir()) == []
