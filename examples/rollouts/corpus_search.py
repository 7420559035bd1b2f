"""Search server over a folder of texts, for agents that look things up: BM25 on paragraphs, answers as Tavily's API gives them.

    python -m examples.rollouts.corpus_search --folder docs --port 8901      # in one terminal
    tangram apply examples/rollouts/corpus_search.yaml                       # the API `api:search`, with its quota
    tangram rollout submit stem … (options: {"tools": ["search"]})

``POST /search {"query", "max_results"}`` → ``{"results": [{"title", "url", "content", "score"}]}``.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import uvicorn

PATTERNS: Final = ("*.md", "*.txt")
#: Constants of BM25, as they are usually chosen.
_SATURATION, _LENGTH = 1.2, 0.75
_MOST_RESULTS: Final = 20
_MOST_BYTES: Final = 64 * 1024
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True)
class Passage:
    """A paragraph of a file."""

    title: str
    text: str
    words: Counter[str]


class Corpus:
    """Passages and how often their words are in them."""

    def __init__(self, passages: list[Passage]) -> None:
        self.passages = passages
        self._holding = Counter(word for each in passages for word in each.words)
        total = sum(each.words.total() for each in passages)
        self._mean = total / len(passages) if passages else 1.0

    @classmethod
    def read(cls, folder: Path) -> Corpus:
        """Read the texts below a folder. Raises ValueError where there are none."""
        paths = sorted(path for pattern in PATTERNS for path in folder.rglob(pattern))
        passages = [
            Passage(str(path.relative_to(folder)), text.strip(), Counter(words_of(text)))
            for path in paths
            for text in re.split(r"\n\s*\n", path.read_text(errors="replace"))
            if words_of(text)
        ]
        if not passages:
            raise ValueError(f"{folder} has no text: give a folder with {' or '.join(PATTERNS)}")
        return cls(passages)

    def search(self, query: str, most: int) -> list[dict[str, Any]]:
        """Return the passages that fit a query, the best first."""
        words = set(words_of(query))
        scored = [(self._score(words, each), each) for each in self.passages]
        best = sorted(scored, key=lambda pair: (-pair[0], pair[1].title))[:most]
        return [
            {"title": each.title, "url": f"file:{each.title}", "content": each.text, "score": score}
            for score, each in best
            if score > 0
        ]

    def _score(self, words: set[str], passage: Passage) -> float:
        length = 1 - _LENGTH + _LENGTH * passage.words.total() / self._mean
        total = 0.0
        for word in words & passage.words.keys():
            holding = self._holding[word]
            rarity = math.log(1 + (len(self.passages) - holding + 0.5) / (holding + 0.5))
            count = passage.words[word]
            total += rarity * count * (_SATURATION + 1) / (count + _SATURATION * length)
        return total


def words_of(text: str) -> list[str]:
    """Return the words of a text, without case."""
    return _WORD.findall(text.casefold())


@dataclass
class SearchServer:
    """The server as an ASGI application."""

    corpus: Corpus
    asked: int = 0

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body") or len(body) > _MOST_BYTES:
                break
        status, answer = self.answer(scope["path"], body)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        if path != "/search":
            return 404, {"detail": "there is /search alone"}
        try:
            asked = json.loads(body[:_MOST_BYTES])
            query, most = str(asked["query"]), int(asked.get("max_results", 5))
        except (KeyError, TypeError, ValueError, AttributeError):
            return 422, {"detail": 'give {"query": TEXT, "max_results": COUNT}'}
        self.asked += 1
        return 200, {
            "query": query,
            "results": self.corpus.search(query, max(1, min(most, _MOST_RESULTS))),
        }


@click.command(help=__doc__)
@click.option(
    "--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True
)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8901, show_default=True)
def main(folder: Path, host: str, port: int) -> None:
    """Serve the texts of a folder."""
    try:
        corpus = Corpus.read(folder)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    uvicorn.run(SearchServer(corpus), host=host, port=port, log_level="warning")


if __name__ == "__main__":
    main()
