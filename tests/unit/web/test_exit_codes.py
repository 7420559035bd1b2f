"""Exit codes have the meaning that shells give them."""

from __future__ import annotations

import pytest

from tangram_web.lib.exit_codes import meaning_of


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (137, "killed by signal 9 (SIGKILL)"),
        (143, "killed by signal 15 (SIGTERM)"),
        (-11, "killed by signal 11 (SIGSEGV)"),
        (127, "the command was not found"),
        (124, "stopped by timeout"),
        (255, ""),
        (1, ""),
        (0, ""),
        (None, ""),
    ],
)
def test_an_exit_code_is_explained_where_shells_agree(code: int | None, meaning: str) -> None:
    assert meaning_of(code) == meaning
