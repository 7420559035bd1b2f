"""Prints the tensor-parallel server as a GPU service of degrees 1 and 2, and the selector of its degree.

    TANGRAM_NODE_GPUS=2 TANGRAM_NODE_GPU_MEMORY_BYTES=285212672 ./tangram up              # in another terminal
    python -m examples.tensor_parallel.declare | ./tangram apply -
    ./tangram selector profile small --hardware "two ranks" --engine examples.tensor_parallel

The memory of each declared GPU is the limit of a rank: the kernel enforces it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[2]
#: Debian's torch.
PYTHON = "/usr/bin/python3"
#: Sizes with which weights take a good part of a rank. Two copies on one rank each hold the weights twice, and one copy on two ranks holds
#: them once, so its keys and values have more room, as with the large models of such degrees.
SIZES = {"vocabulary": 1024, "width": 512, "layers": 6, "heads": 8, "context": 1024}
#: 16 responses of 1,024 tokens: 201 MB of keys and values on each rank of either degree, beside 78 or 40 MB of weights.
MEMORY_BYTES = 272 * 2**20
CONTEXTS = (64, 128, 256, 512, 768, 1024)
RESPONSES = (4, 8, 16)


def declaration(
    name: str = "small",
    *,
    memory_bytes: int = MEMORY_BYTES,
    sizes: Mapping[str, int] = SIZES,
    weights: str = "",
    selector: Mapping[str, Any] | None = None,
) -> str:
    """Return both documents; JSON is YAML.

    weights: a file on the node that every rank reads, and reads again when it is replaced; selector: further members of it.
    """
    options = [part for size, value in sizes.items() for part in (f"--{size}", str(value))]
    service = {
        "engine": "process",
        "degrees": [{"gpus": gpus, "memory_bytes": memory_bytes} for gpus in (1, 2)],
        "command": [
            PYTHON, "-m", "examples.tensor_parallel.server", "--port", "{port}", "--gpus", "{gpus}",
            "--memory-bytes", "{memory_bytes}", "--model", name, *options,
            *(["--weights", weights] if weights else []),
        ],
        "env": {"PYTHONPATH": str(ROOT)},
        "paths": ["/v1", "/generate"],
        "idle_timeout_seconds": 0,
    }  # fmt: skip
    steered = {
        "target": f"service:{name}",
        "degrees": [{"tp": 1, "dp": 2}, {"tp": 2}],
        "contexts": list(CONTEXTS),
        "responses": list(RESPONSES),
        "context_limit": sizes["context"],
        **(selector or {}),
    }
    documents = [
        {"apiVersion": "tangram/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        for kind, spec in (("GpuService", service), ("Selector", steered))
    ]
    return "\n---\n".join(map(json.dumps, documents)) + "\n"


@click.command(help=__doc__)
@click.option("--name", default="small", show_default=True)
@click.option("--memory-bytes", type=int, default=MEMORY_BYTES, show_default=True)
@click.option("--weights", default="", help="File that every rank reads.")
def main(name: str, memory_bytes: int, weights: str) -> None:
    """Print."""
    click.echo(declaration(name, memory_bytes=memory_bytes, weights=weights), nl=False)


if __name__ == "__main__":
    main()
