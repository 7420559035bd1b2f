"""One definition, two isolations: the root file system that Apptainer would get runs under bubblewrap."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from domain.action import EnvironmentSpec
from domain.errors import InvalidRequest, Unavailable
from managers.cpu.apptainer.definitions import parse_definition
from managers.cpu.apptainer.rootfs import RootfsBuilder, debootstrap_words, main
from tests.conformance.driver import an_order
from tests.conformance.isolations import a_driver
from tests.small_image import root_tar

DEFINITION = """\
Bootstrap: localimage
From: base.tar
%files
    data/*.txt /srv/data/
    data/one.txt /srv/first
%environment
    export TASK="{{ tag }} of {{ name }}"
%post
    cat /srv/first >/srv/copied
    test "$(id -u)" = 0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "definitions"
    (place / "data").mkdir(parents=True)
    (place / "base.tar").write_bytes(root_tar())
    for name in ("one", "two"):
        (place / "data" / f"{name}.txt").write_text(f"{name}\n")
    (place / "swe.def.j2").write_text(DEFINITION)
    return place


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def test_an_image_of_a_definition_runs_under_bubblewrap(tmp_path: Path, folder: Path) -> None:
    archive = tmp_path / "swe.tar"
    assert main([str(folder), "swe:one", str(archive)]) == 0
    driver = a_driver(tmp_path, "bwrap")
    await driver.open()
    await driver.images.import_archive("swe:one", _pieces(archive.read_bytes()))
    order = an_order("sh", "-c", 'cat /srv/copied /srv/data/two.txt; echo "$TASK"')
    report = await driver.run(
        replace(order, environment=EnvironmentSpec(image="swe:one")), lambda: None
    )
    await driver.close()
    assert report.result is not None, report
    assert report.result.stdout == "one\ntwo\none of swe\n"


def test_a_definition_that_cannot_be_built_is_reported(
    tmp_path: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "swe.def.j2").write_text(f"{DEFINITION}    echo no such package; exit 3\n")
    assert main([str(folder), "swe:one", str(tmp_path / "swe.tar")]) == 1
    said = capfd.readouterr().err
    assert "no such package" in said
    assert "%post failed with status 3" in said
    assert main([str(folder), "other", str(tmp_path / "swe.tar")]) == 1
    assert "has no definition of 'other'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Bootstrap: docker\nFrom: debian\n", "Bootstrap: docker needs Apptainer"),
        ("Bootstrap: scratch\n%setup\n  touch /x\n", "%setup runs on the host and is refused"),
        ("Bootstrap: scratch\n%files\n  missing /x\n", "missing is not on this machine"),
    ],
)
def test_what_bubblewrap_cannot_build_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        RootfsBuilder(io.BytesIO()).build(parse_definition("x", text, tmp_path), tmp_path / "tree")


def test_a_copied_file_stays_in_the_tree(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    text = "Bootstrap: scratch\n%files\n  mine ../../outside\n"
    RootfsBuilder(io.BytesIO()).build(
        parse_definition("x", text, tmp_path), tmp_path / "a" / "tree"
    )
    assert (tmp_path / "a" / "tree" / "outside").read_text() == "x"
    assert not (tmp_path / "outside").exists()


def test_a_distribution_is_installed_without_root() -> None:
    header = {"osversion": "bookworm", "include": "git python3", "mirrorurl": "http://mirror"}
    assert debootstrap_words(header, Path("/tree")) == [
        "mmdebstrap", "--mode=auto", "--variant=minbase", "--format=directory", "--include=git,python3",
        "bookworm", "/tree", "http://mirror",
    ]  # fmt: skip


def test_a_machine_without_bubblewrap_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managers.cpu.apptainer.rootfs.find_bubblewraps", list)
    with pytest.raises(Unavailable, match="bubblewrap is not installed"):
        RootfsBuilder(io.BytesIO())
