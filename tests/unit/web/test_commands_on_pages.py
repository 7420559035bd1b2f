"""Commands that pages show are commands that the command line takes."""

from __future__ import annotations

import argparse
import html
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import tangram_web
from simulator.cli import verbs as simulator_verbs
from tangram_client.cli import verbs
from tangram_web.supervisor.options import add_arguments

TEMPLATES = sorted(Path(tangram_web.__file__).parent.rglob("templates/*/*.html"))
_COMMAND = re.compile(
    r"<(?:code|pre)[^>]*>((?:[A-Z_]+=\S+ |[A-Z_]+=\{\{[^}]*\}\} )*(?:\./)?tangram [^<]*)<"
)
#: A variable of a template, as a page fills it.
_VARIABLE = re.compile(r"\{\{[^}]*\}\}")
_TAG = re.compile(r"\{%[^%]*%\}")
#: Words of text around a command's name.
PROSE = {"tangram export", "tangram apply", "tangram backend"}


def commands_of(template: Path) -> Iterator[str]:
    for found in _COMMAND.findall(template.read_text()):
        for line in html.unescape(_VARIABLE.sub("7", _TAG.sub("", found))).strip().splitlines():
            if line not in PROSE and "tangram " in line:
                yield line


COMMANDS = [
    (f"{path.parent.name}/{path.name}", text) for path in TEMPLATES for text in commands_of(path)
]


def parse(words: list[str], command: click.Command = verbs) -> None:
    """Parse the arguments of a command, without running it; usage errors are raised."""
    context = click.Context(command)
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    command.make_context(context.info_name, words, parent=context.parent).close()


@pytest.mark.parametrize(("page", "text"), COMMANDS)
def test_a_command_on_a_page_is_one_that_works(
    page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in re.findall(r"\S+\.yaml", text):
        (tmp_path / file).write_text("")
    words = [word for word in shlex.split(text) if not re.match(r"[A-Z_]+=", word)][1:]
    if words[0] == "up":
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        parser.parse_args(words[1:])
    elif words[0] == "sim":
        parse(words[1:], simulator_verbs)
    else:
        parse(words)


def test_lists_that_are_empty_show_a_command() -> None:
    pages = [page for page, _ in COMMANDS]

    assert pages.count("explorer/rows.html") == 4  # actions, trajectories, tasks, rollouts
    assert set(pages) >= {
        *(f"dashboard/{page}.html" for page in ("queues", "apis", "decisions", "workers", "audit", "map")),
        *(f"rollouts/{page}.html" for page in ("groups", "batches", "backends")),
        "fleets/list.html", "parallelism/list.html", "simulations/list.html", "operations/operate.html",
    }  # fmt: skip


def test_an_option_that_does_not_exist_would_be_noticed() -> None:
    with pytest.raises(click.UsageError):
        parse(["apply", "-f", "pool.yaml"])
