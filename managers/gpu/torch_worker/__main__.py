"""Serve one model: ``python -m managers.gpu.torch_worker --port 8000 --source package.module:function``."""

from __future__ import annotations

import argparse
import sys
from http.server import ThreadingHTTPServer
from pathlib import Path

import torch

from managers.gpu.torch_worker.cache_exchange import CacheExchange
from managers.gpu.torch_worker.http_door import Handler
from managers.gpu.torch_worker.models import BadSource, load
from managers.gpu.torch_worker.worker import Declared, Worker


def find_devices(named: str, gpus: int) -> list[str]:
    """Return ``gpus`` devices; on a machine with an NVIDIA card, ``cpu`` must be requested."""
    if named != "auto":
        return named.split(",")
    if torch.cuda.is_available():
        there = torch.cuda.device_count()
        if there < gpus:
            raise BadSource(f"{gpus} GPUs were granted, torch sees {there}")
        return [f"cuda:{number}" for number in range(gpus)]
    if Path("/dev/nvidiactl").exists():
        raise BadSource(f"there is an NVIDIA card that torch {torch.__version__} cannot use")
    return ["cpu"] * gpus


def options_of() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--awake", action="store_true", help="restore it before it serves")
    parser.add_argument("--source", required=True)
    parser.add_argument("--memory-bytes", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--model", default="", help="name of the model; that of its source")
    parser.add_argument("--weights-version", type=int, default=0, help="number of its weights")
    parser.add_argument("--cache-bytes", type=int, default=None, help="limit of all KV caches")
    return parser.parse_args()


def main() -> int:
    """Load into host memory, then serve."""
    options = options_of()
    try:
        Handler.worker = Worker(
            load(options.source),
            find_devices(options.device, options.gpus),
            Declared(
                source=options.source,
                model=options.model,
                weights_version=options.weights_version,
                memory_bytes=options.memory_bytes,
                cache_bytes=options.cache_bytes,
                at_once=options.at_once,
            ),
        )
    except BadSource as error:
        sys.stderr.write(f"{error}\n")
        return 2
    Handler.exchange = CacheExchange(Handler.worker)
    ThreadingHTTPServer.request_queue_size = 128
    if options.awake:
        Handler.worker.restore()
    server = ThreadingHTTPServer((options.host, options.port), Handler)
    server.daemon_threads = True
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
