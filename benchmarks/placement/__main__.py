"""placement: what the algorithms of placement take, and how good they are.

    python -m benchmarks.placement                      all sections
    python -m benchmarks.placement --only arrange       one of them
    python -m benchmarks.placement --only degrees --enumerate    also every division of 256 GPUs, one by one; half a minute

Times are of one process on an idle machine. A missed target makes the command fail.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from benchmarks.placement import arrangements, divisions, prediction
from benchmarks.placement.sections import Section
from benchmarks.record import store_parts

SECTIONS: Final[dict[str, Section]] = {
    "arrange": arrangements,
    "degrees": divisions,
    "prediction": prediction,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=SECTIONS, action="append", help="default: all")
    parser.add_argument("--store", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seed", type=int, default=7)
    for section in SECTIONS.values():
        section.add_options(parser)
    return parser.parse_args()


def main() -> int:
    """Measure, print, store; return 1 when a target is missed."""
    options = _options()
    late: list[str] = []
    for name in options.only or SECTIONS:
        found, missed = SECTIONS[name].measure(options)
        late += [f"{name}: {each}" for each in missed]
        if options.store:
            print("stored in", store_parts("placement", {name: found}), flush=True)
    print("missed:" if late else "all targets are met", *late, sep="\n  ")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
