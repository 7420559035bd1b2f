"""Version of this source tree, equal to that in `pyproject.toml`."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
