"""`python -m simulator` is the command `tangram sim`."""

from __future__ import annotations

from simulator.cli import main

main()
