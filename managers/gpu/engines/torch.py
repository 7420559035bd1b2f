"""Engine ``torch``: any model of PyTorch, in a worker of our own (`managers.gpu.torch_worker`).

The worker runs under the interpreter that the service declares, which has torch and need have nothing
of ours. So it is shown one package of ours and no more, by links in its own directory; variables of
the service (``PYTHONPATH``) say where its own modules are.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import httpx

from domain.services import WarmUp
from managers.gpu.engines.sleeping import SleepingServer

_PACKAGE: Final = Path(__file__).parents[1] / "torch_worker"
#: Answered as soon as the weights are in host memory.
_PREPARED: Final = WarmUp(path="/tangram/state")


class TorchServer(SleepingServer):
    """One worker on one chunk."""

    async def _arrive(self, client: httpx.AsyncClient) -> None:
        """Wait for the copy in host memory, bring it in, and ask the warm-up."""
        await self._asked(client, _PREPARED)
        await self._take(client, self._ways.wake)
        await self._warm(client)

    async def _prepared(self, client: httpx.AsyncClient) -> None:
        """Wait for the copy in host memory: it begins asleep."""
        await self._asked(client, _PREPARED)

    async def _spawn(self, port: str) -> None:
        home = self._library / "managers" / "gpu"
        home.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (home / _PACKAGE.name).unlink()
        (home / _PACKAGE.name).symlink_to(_PACKAGE)
        await super()._spawn(port)

    def _environment(self) -> dict[str, str]:
        variables = super()._environment()
        own = variables.get("PYTHONPATH", "")
        return {**variables, "PYTHONPATH": ":".join(filter(None, (str(self._library), own)))}

    @property
    def _library(self) -> Path:
        return self._directory / "library"
