"""Definitions of images: names, templates, keys, and what is refused."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from domain.errors import InvalidRequest
from managers.cpu.apptainer.definitions import ContentDigests, Definitions, parse_definition
from managers.cpu.tree.images import ImageMissing

TEMPLATE = """\
# Tasks of one benchmark.
Bootstrap: docker
From: registry.lab/swe:{{ tag }}

%environment
    export TASK={{ tag }}
%post
    echo "{{ name }} {{ image }}"
"""


@pytest.fixture
def definitions(tmp_path: Path) -> Definitions:
    (tmp_path / "swe.def.j2").write_text(TEMPLATE)
    (tmp_path / "tools.def").write_text("Bootstrap: scratch\n%files\n    tools /opt/tools\n")
    (tmp_path / "tools").write_text("1")
    return Definitions(tmp_path)


def test_a_template_gets_the_tag_of_the_image(definitions):
    found = definitions.find("swe:django__django-1.2")

    assert found is not None
    assert found.header == {"bootstrap": "docker", "from": "registry.lab/swe:django__django-1.2"}
    [post] = found.of("post")
    assert post.body.strip() == 'echo "swe swe:django__django-1.2"'


def test_a_name_without_a_definition_is_left_to_imported_images(definitions):
    assert definitions.find("other:1") is None
    assert definitions.find("registry.lab/swe:1") is None
    assert Definitions(None).find("swe:1") is None


@pytest.mark.parametrize(
    "tag", ["", "a b", "a;reboot", "../x", "a/b", "-x", "$(id)", "a\n%post", "x" * 129, "'"]
)
def test_a_tag_that_could_be_more_than_a_word_is_refused(definitions, tag):
    with pytest.raises(InvalidRequest, match="its tag has other characters"):
        definitions.find(f"swe:{tag}")


def test_a_definition_that_is_no_template_has_no_tags(definitions):
    with pytest.raises(ImageMissing, match=r"tools\.def is no template, .* or make tools\.def\.j2"):
        definitions.find("tools:2")


def test_an_unknown_variable_of_a_template_is_named_with_its_file(tmp_path):
    (tmp_path / "bad.def.j2").write_text("Bootstrap: docker\nFrom: {{ registry }}\n")

    with pytest.raises(InvalidRequest, match=r"image 'bad': bad\.def\.j2: 'registry' is undefined"):
        Definitions(tmp_path).find("bad")


def test_a_template_reaches_nothing_of_the_worker(tmp_path):
    (tmp_path / "bad.def.j2").write_text("{{ image.__class__.__mro__[1].__subclasses__() }}")

    with pytest.raises(InvalidRequest, match="unsafe"):
        Definitions(tmp_path).find("bad")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("%post\n  true\n", "has no Bootstrap"),
        (
            "Bootstrap: scratch\nnonsense\n",
            "line 2: 'nonsense' is neither KEY: VALUE nor a section",
        ),
    ],
)
def test_text_that_is_no_definition_is_refused_with_its_line(tmp_path, text, said):
    with pytest.raises(InvalidRequest, match=said):
        parse_definition("x", text, tmp_path)


def test_a_key_changes_with_the_text_and_with_each_file_that_is_copied(definitions, tmp_path):
    contents = ContentDigests()

    def key(image: str) -> str:
        found = definitions.find(image)
        assert found is not None
        return found.key(contents)

    first = key("tools")
    assert key("tools") == first
    assert key("swe:1") != key("swe:2")
    (tmp_path / "tools").write_text("2")
    assert key("tools") != first


def test_a_file_that_is_copied_is_read_once_until_it_changes(definitions, tmp_path, monkeypatch):
    contents, read = ContentDigests(clock=lambda: time.time() + 60), []
    digest = hashlib.file_digest

    def count(file: Any, name: Any) -> Any:
        read.append(file.name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", count)

    def key() -> str:
        found = definitions.find("tools")
        assert found is not None
        return found.key(contents)

    first = key()
    assert [key() for _ in range(20)] == [first] * 20
    assert len(read) == 1
    (tmp_path / "tools").write_text("2")
    assert key() != first
    assert len(read) == 2


def test_a_file_that_was_just_changed_is_read_again(definitions, tmp_path):
    """Two changes within one tick of the file system leave its facts as they were."""
    contents, file = ContentDigests(), tmp_path / "tools"
    facts = os.stat(file)
    first = contents.of(file, facts)
    file.write_text("3")
    assert contents.of(file, facts) != first


def test_a_file_that_is_missing_is_named(definitions, tmp_path):
    (tmp_path / "tools").unlink()
    found = definitions.find("tools")
    assert found is not None
    with pytest.raises(InvalidRequest, match="tools cannot be read: No such file"):
        found.key(ContentDigests())


def test_percent_signs_of_a_script_are_no_sections(tmp_path):
    text = "Bootstrap: scratch\n%post\nprintf '%s' x\n%d of date\n"
    [post] = parse_definition("x", text, tmp_path).of("post")
    assert post.body == "printf '%s' x\n%d of date\n"
