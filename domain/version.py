"""The version of this source tree; `pyproject.toml` says the same."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
