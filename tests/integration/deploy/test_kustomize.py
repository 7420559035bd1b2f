"""What kubectl makes of the manifests is what the tests of them read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.architecture.tree import ROOT
from tests.kustomized import Object, built
from tests.not_run import NotRun

FOLDER = ROOT / "deploy" / "kubernetes"


def kustomized(folder: Path) -> list[Object]:
    """Return what kubectl builds. Raises NotRun without one that knows components; Debian 12 has 1.20."""
    program = shutil.which("kubectl")
    if program is None:
        raise NotRun("there is no kubectl")
    done = subprocess.run([program, "kustomize", str(folder)], capture_output=True, text=True)
    if "unknown field" in done.stderr or "invalid Kustomization" in done.stderr:
        raise NotRun("kubectl is older than 1.21")
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bundled", "external"])
def test_an_overlay_is_built_alike(name):
    folder = FOLDER / "overlays" / name
    theirs, ours = by_name(kustomized(folder)), by_name(built(folder))
    assert theirs.keys() == ours.keys()
    for key, each in theirs.items():
        assert each == ours[key]


@pytest.mark.slow
def test_privileged_nodes_are_built_alike(tmp_path):
    base, component = (tmp_path / part for part in ("base", "component"))
    shutil.copytree(FOLDER / "base", base)
    shutil.copytree(FOLDER / "components" / "privileged-nodes", component)
    file = {"namespace": "tangram", "resources": ["base"], "components": ["component"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(file))
    assert by_name(kustomized(tmp_path)) == by_name(built(tmp_path))
