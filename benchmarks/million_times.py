"""When the actions of `benchmarks.million` were submitted; read without the database that holds them."""

from __future__ import annotations

from typing import Final

#: Wall clock of the first action; the others follow, 200 ms apart.
BEGUN: Final = 1_763_000_000.0
APART_SECONDS: Final = 0.2
