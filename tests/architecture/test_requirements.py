"""The lock files install what pyproject.toml asks for, exactly."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from requirements.hashes import wanted
from requirements.lock import requirement_lines
from tests.architecture.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


LOCKS = ["core", "predict", "s3", "test", "transformers"]


def text(name: str) -> str:
    """Return the text of one lock file."""
    return (ROOT / "requirements" / f"{name}.lock").read_text()


def locked(name: str) -> dict[str, str]:
    """Return name → version of one lock file."""
    pins = [Requirement(line.rstrip(" \\")) for line in requirement_lines(text(name))]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


@pytest.mark.parametrize("name", LOCKS)
def test_lock_pins_one_version_of_each_package(name):
    lines = requirement_lines(text(name))

    assert [
        line for line in lines if not re.match(r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; .+)? \\$", line)
    ] == []
    assert len(locked(name)) == len(lines)


@pytest.mark.parametrize("name", LOCKS)
def test_lock_has_the_hashes_of_each_package(name):
    """`pip install --require-hashes` refuses a package without one."""
    blocks = re.split(r"^(?=[a-z0-9])", text(name), flags=re.MULTILINE)[1:]

    assert len(blocks) == len(locked(name))
    for block in blocks:
        pin, *hashes = block.rstrip("\n").split(" \\\n")
        assert hashes, pin
        assert [h for h in hashes if not re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", h)] == []


def test_every_installation_from_a_lock_compares_hashes():
    for name in ("tangram", "Dockerfile"):
        joined = (ROOT / name).read_text().replace("\\\n", " ")
        installs = [
            line
            for line in joined.splitlines()
            if re.search(r"pip.* install .*(-r|--requirement) ", line)
        ]
        assert installs, name
        assert [line for line in installs if "--require-hashes" not in line] == []


def a_file(filename: str) -> dict[str, object]:
    return {"filename": filename, "hashes": {"sha256": filename}}


def test_hashes_are_those_of_files_for_linux_and_a_supported_python():
    files = [
        a_file(f"my_name-1.2{rest}")
        for rest in (
            ".tar.gz",
            "-py3-none-any.whl",
            "-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "-cp313-cp313-manylinux_2_28_aarch64.whl",
            "-cp39-abi3-musllinux_1_2_x86_64.whl",
            "-cp310-cp310-manylinux_2_28_x86_64.whl",
            "-cp312-cp312-macosx_11_0_arm64.whl",
            "-cp312-cp312-win_amd64.whl",
            "-pp310-pypy310_pp73-manylinux_2_28_x86_64.whl",
        )
    ]
    files += [a_file("my_name-1.2.1.tar.gz"), a_file("my_name-1.2.win32.exe")]

    found = [each["filename"] for each in wanted(files, "my-name", "1.2")]

    assert found == [each["filename"] for each in files[:5]]


@pytest.mark.parametrize(
    ("wanted", "pins"),
    [
        (PROJECT["dependencies"], locked("core")),
        (PROJECT["optional-dependencies"]["predict"], locked("core") | locked("predict")),
        (PROJECT["optional-dependencies"]["s3"], locked("core") | locked("s3")),
        (PROJECT["optional-dependencies"]["test"], locked("core") | locked("test")),
    ],
    ids=["core", "predict", "s3", "test"],
)
def test_lock_satisfies_what_the_project_asks_for(wanted, pins):
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])


def test_no_package_is_locked_twice():
    assert locked("core").keys() & locked("test").keys() == set()
    assert locked("core").keys() & (locked("predict").keys() | locked("s3").keys()) == set()


def test_tests_run_with_the_pins_of_the_extras():
    assert (locked("predict") | locked("s3")).items() <= locked("test").items()


def test_extra_packages_of_the_broker_are_installed_with_the_core() -> None:
    """Kombu names it in an extra; tests bring it along, so its absence shows only at users'."""
    needed = [Requirement(text) for text in requires("kombu") or ()]
    of_redis = [r for r in needed if r.marker and r.marker.evaluate({"extra": "redis"})]
    assert of_redis
    assert {canonicalize_name(requirement.name) for requirement in of_redis} <= locked(
        "core"
    ).keys()
