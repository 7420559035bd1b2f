"""`python -m dispatcher` is the command `tangram dispatch`."""

from __future__ import annotations

import sys

from dispatcher.cli import main

sys.exit(main())
