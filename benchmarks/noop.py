"""noop: submit and wait, one action a request, against Celery and Ray.

Ours goes the whole way: HTTP, inbox on disk, loop, journal on disk, node worker, and back. The
rivals are called from Python without HTTP, which is in their favour.
Targets: at 64 clients ≥ 5 × Celery and ≥ 8 × Ray; alone p50 ≤ 3 ms and ≤ Celery's best.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks import rivals
from benchmarks.load import Load, run
from benchmarks.record import quantiles, store
from benchmarks.stack import tangram


def _row(load: Load) -> dict[str, Any]:
    return {
        "per_second": round(load.rate, 1),
        "actions": len(load.latencies),
        **quantiles(load.latencies),
    }


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--without-ray", action="store_true")
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    with tangram() as stack:
        run(stack.port, stack.token, 16, 3.0)  # warm
        for clients in (1, 64):
            load = run(stack.port, stack.token, clients, options.seconds)
            rows[f"tangram x{clients}"] = _row(load)
    for pool in rivals.POOLS:
        for clients in (1, 64):
            rows[f"celery {pool} x{clients}"] = _row(rivals.celery(pool, clients, options.seconds))
    if not options.without_ray:
        for clients in (1, 64):
            rows[f"ray x{clients}"] = _row(rivals.ray(clients, options.seconds))
    for name, row in rows.items():
        print(
            f"{name:22} {row['per_second']:9.1f}/s  p50 {row['p50_ms']:8.3f} ms  "
            f"p99 {row['p99_ms']:8.3f} ms"
        )
    best = max(rows[f"celery {pool} x64"]["per_second"] for pool in rivals.POOLS)
    ratios = {
        "tangram ÷ best celery, 64 clients": round(rows["tangram x64"]["per_second"] / best, 2),
        "alone: p50_ms": rows["tangram x1"]["p50_ms"],
        "alone: best celery p50_ms": min(
            rows[f"celery {pool} x1"]["p50_ms"] for pool in rivals.POOLS
        ),
    }
    if "ray x64" in rows:
        ratio = rows["tangram x64"]["per_second"] / rows["ray x64"]["per_second"]
        ratios["tangram ÷ ray, 64 clients"] = round(ratio, 2)
    print(ratios)
    print("stored in", store("noop", {"rows": rows, "ratios": ratios}))


if __name__ == "__main__":
    main()
