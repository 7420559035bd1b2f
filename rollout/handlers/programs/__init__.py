"""Programs that handlers run in environments. Each is one file of the standard library, for any Python from 3.7 on.

They are sent as `source` gives them; no handler imports them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def source(name: str) -> str:
    """Return the text of a program: ``score_tests``, ``run_cases``, ``compare_expressions``."""
    return Path(__file__).with_name(f"{name}.py").read_text()
