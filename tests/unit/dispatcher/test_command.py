"""`tangram dispatch plan` prints what a transfer costs, and the examples of the documentation run."""

from __future__ import annotations

import json
import re

import pytest

from dispatcher.cli import main
from dispatcher.layout import Layout, Mesh, Ragged, Shard, TensorSpec
from tests.architecture.tree import ROOT


@pytest.fixture
def file(tmp_path):
    """Two ranks of tensor parallelism give each half of a batch to one other rank; the hosts are 0, 2 and 1, 3."""

    def layout(**mesh):
        spec = TensorSpec("tokens", "int32", Ragged([500_000, 500_000]), dp=Shard(0))
        return Layout(Mesh(**mesh), [spec]).description()

    path = tmp_path / "step.json"
    given = {"source": layout(tp=2), "target": layout(dp=2, ranks=(2, 3))}
    path.write_text(json.dumps(given | {"hosts": {"0": "a", "2": "a", "1": "b", "3": "b"}}))
    return path


def test_plan_shows_bytes_pairs_and_gather_scatter(file, capsys):
    assert main(["plan", str(file), "--bandwidth", "1"]) == 0

    shown = capsys.readouterr().out
    assert "4 ranks on 2 hosts; tensors: tokens" in shown
    assert re.search(r"crossing +3\.8 MiB +the least possible is 3\.8 MiB", shown)
    assert re.search(r"every copy sent +7\.6 MiB", shown)
    assert re.search(r"busiest endpoint +1\.9 MiB +rank 0 sends 1\.9 MiB, receives 0 B", shown)
    assert re.search(r"gather-scatter +5\.7 MiB +through rank 0: 1\.9 MiB in, 3\.8 MiB out", shown)
    assert re.search(r"0 → 2 +1\.9 MiB\n  1 → 3 +1\.9 MiB", shown)


def test_plan_gives_the_same_figures_as_json(file, capsys):
    assert main(["plan", str(file), "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["bytes_crossing"] == found["bytes_bound"] == 4_000_000
    assert found["pairs"][1] == {"from": 1, "to": 3, "bytes": 2_000_000}
    assert found["seconds"][found["strategy"]] == min(found["seconds"].values())


def test_table_1_is_that_of_the_paper(capsys):
    assert main(["plan", "--table1"]) == 0

    sizes = re.findall(r"^ +[\d,]+ +([\d,]+) ", capsys.readouterr().out, re.MULTILINE)
    assert sizes == ["15,625", "31,250", "62,500", "125,000", "250,000", "500,000"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": {"tensors": 3}}, "source.tensors: give a list of tensors"),
        ({"hosts": {"a": "b"}}, "hosts: give rank → name of the host"),
        ({"lost": [3]}, "rank 3 is lost and wanted by the target"),
        ({"spare": 1}, "file: give an object with source, target and perhaps hosts, lost"),
    ],
)
def test_a_wrong_file_is_explained(file, capsys, change, message):
    file.write_text(json.dumps(json.loads(file.read_text()) | change))

    assert main(["plan", str(file)]) == 2

    assert message in capsys.readouterr().err


def test_examples_of_the_documentation_run(capsys):
    text = (ROOT / "docs" / "dispatcher.md").read_text()

    exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), {})

    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 4
    assert shown[3] == "[ 0.8660239   0.57734927  0.         -1.15469854  0.57734927]"
