"""`python -m tangram_client` is the command `tangram`."""

from __future__ import annotations

from tangram_client.cli import main

main()
