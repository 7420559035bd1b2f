"""Figures of the code base: cycles, single importers, duplicate names, avoided words, lengths."""

from __future__ import annotations

import json

from benchmarks.record import RESULTS
from tests.architecture import measures, sizes, words
from tests.architecture.tree import PACKAGES, python_files


def figures() -> dict[str, object]:
    """Return every figure by name. They belong to a commit, and to no machine."""
    paths = python_files(*PACKAGES)
    functions = sizes.all_function_sizes(paths)
    return {
        "command": "python -m benchmarks.structure",
        **measures.figures(),
        "avoided_words": len(words.found()),
        "longest_file_lines": max(sizes.file_sizes(paths)).lines,
        "function_lines_p90": sizes.p90(functions),
        "longest_function_lines": max(functions).lines,
    }


def main() -> None:
    """Print and store the figures."""
    text = json.dumps(figures(), indent=2)
    (RESULTS / "structure.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
