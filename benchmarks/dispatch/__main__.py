"""dispatch: batches between ranks directly, against one controller and rivals; bytes against their bound; plans; shares of a raw socket.

    python -m benchmarks.dispatch                       all parts; about ten minutes on two idle cores, as root
    python -m benchmarks.dispatch --small               the same code with little data: does it run?
    python -m benchmarks.dispatch --only figure_4       one of them

Parts: figure_4 (EARL's Figure 4 at an eighth, hosts behind links), unshaped (the same, bound by the processors), rivals (gloo, Ray's object
store, TransferQueue, at four ranks), bytes (sent, against the bound and every copy), plan (1,024 to 1,024 ranks), raw (a raw socket). Hosts are network
namespaces that are made and removed; without root or tc, loopback, and the result says so. Each part stores its own entry of ``results/dispatch.json``.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.dispatch import links, plans
from benchmarks.dispatch.rivals import rivals
from benchmarks.record import store_parts

Part = Callable[[argparse.Namespace], tuple[dict[str, Any], list[str]]]
PARTS: dict[str, Part] = {
    "figure_4": lambda given: links.figure_4(given.small, given.mbit),
    "unshaped": lambda given: links.unshaped(given.small),
    "rivals": lambda given: rivals(given.small, given.rivals, given.install),
    "bytes": lambda given: plans.counted_bytes(given.small),
    "plan": lambda given: plans.planning(given.small),
    "raw": lambda given: links.raw(given.small, given.mbit),
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="default: all")
    parser.add_argument("--small", action="store_true", help="little data; nothing is stored")
    parser.add_argument("--mbit", type=int, default=100, help="rate of a host's link [100]")
    parser.add_argument("--store", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--rivals",
        type=Path,
        default=Path(tempfile.gettempdir()) / "dispatch-rivals",
        help="where the environments of Ray and TransferQueue are kept",
    )
    parser.add_argument("--install", action="store_true", help="install TransferQueue, 5 GB")
    return parser.parse_args()


def main() -> int:
    """Measure, print, store; return 1 when a goal is missed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that hosts are removed
    given = _options()
    late = []
    for name in given.only or PARTS:
        print(f"-- {name}", flush=True)
        began = time.monotonic()
        found, missed = PARTS[name](given)
        print(f"-- {name}: {time.monotonic() - began:.0f} s", *missed, sep="\n   missed: ")
        late += missed
        if given.store and not given.small:
            print("stored in", store_parts("dispatch", {name: found}))
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
