"""The search server of the examples finds the passage that fits, and answers as the tool expects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from examples.rollouts.corpus_search import Corpus, SearchServer
from tests.architecture.tree import ROOT


@pytest.fixture
def server(tmp_path: Path) -> SearchServer:
    (tmp_path / "gases.md").write_text(
        "# Gases\n\nArgon is a noble gas.\n\nOxygen is a gas that burns nothing.\n"
    )
    (tmp_path / "metals.txt").write_text(
        "Iron is a metal, and no gas at all, and it rusts in the presence of oxygen."
    )
    return SearchServer(Corpus.read(tmp_path))


def ask(server: SearchServer, **body: object) -> list[str]:
    status, answer = server.answer("/search", json.dumps(body).encode())
    assert status == 200
    return [each["content"] for each in answer["results"]]


def test_the_passage_with_the_rarest_words_is_first(server: SearchServer) -> None:
    assert ask(server, query="Which is a NOBLE gas?")[0] == "Argon is a noble gas."
    assert ask(server, query="metal that rusts", max_results=1) == [server.corpus.passages[-1].text]
    assert ask(server, query="xylophone") == []


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("/", b"{}", 404), ("/search", b"{", 422), ("/search", b"[]", 422), ("/search", b"{}", 422)],
)
def test_other_requests_are_refused(
    server: SearchServer, path: str, body: bytes, status: int
) -> None:
    assert server.answer(path, body)[0] == status


def test_a_folder_without_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no text"):
        Corpus.read(tmp_path)


def test_the_declared_api_is_the_one_that_the_tool_asks() -> None:
    declared = yaml.safe_load((ROOT / "examples/rollouts/corpus_search.yaml").read_text())

    assert declared["metadata"]["name"] == "api:search"
    assert declared["spec"]["api"]["paths"] == ["/search"]
