"""The Jupyter side of the rival, run by the Python that has it: cells → JSON with latencies in seconds, and of the start.

One ipykernel on this machine and one blocking client, as agents that keep a notebook have it.
"""

from __future__ import annotations

import json
import sys
import time

from jupyter_client.manager import start_new_kernel  # type: ignore[import-not-found]


def main() -> None:
    """Execute a cell so many times."""
    count, code = int(sys.argv[1]), sys.argv[2]
    began = time.perf_counter()
    manager, client = start_new_kernel(kernel_name="python3")
    started = time.perf_counter() - began
    found = []
    shown: list[str] = []

    def take(message: dict) -> None:  # type: ignore[type-arg]
        if "data" in message["content"]:
            shown.append(message["content"]["data"]["text/plain"])

    try:
        for _ in range(count):
            began = time.perf_counter()
            client.execute_interactive(code, store_history=True, output_hook=take)
            found.append(time.perf_counter() - began)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    print(json.dumps({"cells": found, "start": started, "shown": shown[-1]}))


if __name__ == "__main__":
    main()
