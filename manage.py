#!/usr/bin/env python
"""Django's entry point."""

from __future__ import annotations

from tangram_web.__main__ import main

if __name__ == "__main__":
    main()
