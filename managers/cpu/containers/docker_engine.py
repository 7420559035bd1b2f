"""Docker Engine: the SDK's blocking calls in a small pool of threads, with errors of our own.

`DockerRefused` is an error that the engine returned; `DockerUnavailable` means that it did not answer,
whichever library raised the error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

import docker
import docker.errors
import requests.exceptions
import urllib3.exceptions

from domain.errors import TangramError, Unavailable

_P = ParamSpec("_P")
_T = TypeVar("_T")
_THREADS: Final = 8
_PIECE_BYTES: Final = 1024 * 1024
#: Podman answers to most of the API under this name.
_PODMAN: Final = "Podman"
#: How an engine that keeps its images in containerd names that (`docker info`).
_CONTAINERD: Final = "io.containerd.snapshotter.v1"
Facts = dict[str, Any]


class DockerUnavailable(Unavailable):
    """The Docker Engine does not answer."""


class DockerRefused(TangramError):
    """The Docker Engine refused a request."""


class DockerNotFound(DockerRefused):
    """The engine has no such container or image."""


class DockerEngine:
    """One Docker Engine."""

    def __init__(self, host: str, timeout_seconds: float) -> None:
        self.host = host or os.environ.get("DOCKER_HOST", "") or "unix:///var/run/docker.sock"
        self._timeout_seconds = timeout_seconds
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tangram-docker")
        self._api: Any = None
        self.info: Facts = {}

    @property
    def takes_single_layers(self) -> bool:
        """Whether `load` needs no layers that the engine has: its store of images is not that of containerd."""
        return ["driver-type", _CONTAINERD] not in (self.info.get("DriverStatus") or ())

    @property
    def is_local(self) -> bool:
        """Whether the engine runs on this machine."""
        return self.host.startswith("unix://")

    async def open(self) -> None:
        """Connect. Raises DockerUnavailable, or DockerRefused for an unsupported engine."""
        self._api = await self.call(self._connect)
        self.info = await self.call(self._api.info)
        version = await self.call(self._api.version)
        names = [part.get("Name", "") for part in version.get("Components") or ()]
        if any(_PODMAN in name for name in names):
            raise DockerRefused(
                f"{self.host} is Podman: its API keeps no attached shell; use the Docker Engine"
            )

    async def close(self) -> None:
        """Close all connections and threads."""
        if self._api is not None:
            await asyncio.to_thread(self._api.close)
            self._api = None
        self._pool.shutdown(wait=False)

    async def call(self, function: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        """Call ``function`` in a thread, and translate its errors."""

        def work() -> _T:
            with _named_errors(self.host):
                self._check_socket()
                return function(*arguments, **named)

        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _check_socket(self) -> None:
        """Check that the engine listens: the SDK leaks the socket of a refused connection."""
        if self.is_local:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(self.host.removeprefix("unix://"))

    def _connect(self) -> Any:
        tls = None
        if os.environ.get("DOCKER_TLS_VERIFY") and self.host.startswith("tcp://"):
            folder = os.environ.get("DOCKER_CERT_PATH", os.path.expanduser("~/.docker"))
            pair = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
            tls = docker.tls.TLSConfig(pair, ca_cert=os.path.join(folder, "ca.pem"), verify=True)
        return docker.APIClient(
            base_url=self.host, version="auto", timeout=self._timeout_seconds, tls=tls,
            num_pools=_THREADS,
        )  # fmt: skip

    async def create(self, name: str, config: Facts, host_config: Facts) -> str:
        """Create a container; return its id. Raises DockerNotFound without the image."""

        def work() -> str:
            # The SDK knows no masked paths.
            known = {name: each for name, each in host_config.items() if name != "masked_paths"}
            whole = self._api.create_host_config(**known)
            whole["MaskedPaths"] = host_config.get("masked_paths")
            made = self._api.create_container(**config, name=name, host_config=whole)
            return str(made["Id"])

        return await self.call(work)

    async def start(self, container: str) -> None:
        """Start a container."""
        await self.call(self._api.start, container)

    async def inspect(self, container: str) -> Facts:
        """Return the engine's data on a container. Raises DockerNotFound."""
        return await self.call(self._api.inspect_container, container)

    async def changed_bytes(self, container: str) -> int:
        """Return the bytes of the files that a container has changed of its image; 0: it is gone."""
        listed = await self.call(
            self._api.containers, all=True, size=True, filters={"id": container}
        )
        return int(listed[0].get("SizeRw") or 0) if listed else 0

    async def image(self, name: str) -> Facts:
        """Return the engine's data on an image. Raises DockerNotFound."""
        return await self.call(self._api.inspect_image, name)

    async def containers(self, label: str) -> list[Facts]:
        """Return all containers, running or not, that carry ``label`` (``name`` or ``name=value``)."""
        found: list[Facts] = await self.call(
            self._api.containers, all=True, filters={"label": label}
        )
        return found

    async def remove(self, container: str) -> None:
        """End and delete a container, if it exists."""

        def work() -> None:
            try:
                self._api.remove_container(container, force=True, v=True)
            except docker.errors.NotFound:
                return
            except docker.errors.APIError as error:
                # Another client is removing it: wait until it is gone.
                if error.status_code != requests.codes.conflict:
                    raise
                with contextlib.suppress(docker.errors.NotFound):
                    self._api.wait(container, condition="removed", timeout=self._timeout_seconds)

        await self.call(work)

    async def attach(self, container: str) -> socket.socket:
        """Return the stream of a container's first process, in both directions."""

        def work() -> socket.socket:
            wanted = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            return _own(self._api.attach_socket(container, params=wanted))

        return await self.call(work)

    async def pause(self, container: str) -> None:
        """Freeze all processes of a container."""
        await self.call(self._api.pause, container)

    async def unpause(self, container: str) -> None:
        """Continue a paused container; one that has ended, or was not paused, is ignored."""
        with contextlib.suppress(DockerRefused):
            await self.call(self._api.unpause, container)

    async def changes(self, container: str) -> set[str]:
        """Return the paths that a container has changed of its image, without those of mounts."""
        found = await self.call(self._api.diff, container)
        return {str(each["Path"]) for each in found or ()}

    async def commit(self, container: str, labels: dict[str, str]) -> str:
        """Store the files of a paused container as an image; return its id."""
        changes = "\n".join(f"LABEL {name}={value}" for name, value in labels.items())
        made = await self.call(self._api.commit, container, pause=False, changes=changes)
        return str(made["Id"])

    async def images(self, label: str) -> list[str]:
        """Return the ids of the images with a label."""
        found = await self.call(self._api.images, filters={"label": label})
        return [str(each["Id"]) for each in found]

    async def remove_image(self, image: str) -> None:
        """Delete an image, if it exists. Raises DockerRefused while a container or an image is made from it."""
        with contextlib.suppress(DockerNotFound):
            await self.call(self._api.remove_image, image)

    async def save(self, image: str, read: Callable[[Iterable[bytes]], None]) -> None:
        """Have ``read`` read the archive of an image, in a thread."""

        def work() -> None:
            read(self._api.get_image(image, chunk_size=_PIECE_BYTES))

        await self.call(work)

    async def load(self, archive: Iterable[bytes]) -> None:
        """Make an image of an archive, whose layers may be missing where the engine has them."""

        def work() -> None:
            for said in self._api.load_image(archive):
                if "error" in said:
                    raise DockerRefused(str(said["error"]))

        await self.call(work)

    async def update(self, container: str, **resources: Any) -> None:
        """Change a container's resources."""
        await self.call(self._api.update_container, container, **resources)

    async def begin_exec(
        self, container: str, command: Iterable[str], **options: Any
    ) -> tuple[str, socket.socket]:
        """Start a command in a container; return the exec's id and the stream of its output."""

        def work() -> tuple[str, socket.socket]:
            made = self._api.exec_create(container, list(command), **options)["Id"]
            return made, _own(self._api.exec_start(made, socket=True))

        return await self.call(work)

    async def inspect_exec(self, exec_id: str) -> Facts:
        """Return the engine's data on an exec."""
        return await self.call(self._api.exec_inspect, exec_id)

    async def count_processes(self, container: str) -> int:
        """Return the number of processes of a container. Raises DockerNotFound."""
        listed = await self.call(self._api.top, container)
        return len(listed["Processes"] or ())

    async def archive(self, container: str, path: str) -> tuple[bytes, Facts]:
        """Return a tar archive of a path in a container, and the facts of its head. Raises DockerNotFound."""

        def work() -> tuple[bytes, Facts]:
            chunks, facts = self._api.get_archive(container, path)
            return b"".join(chunks), facts

        return await self.call(work)


def _own(stream: Any) -> socket.socket:
    """Return the connection of an SDK answer, detached from the SDK."""
    handle = socket.socket(fileno=os.dup(stream.fileno()))
    response = getattr(stream, "_response", None)
    if response is not None:
        response.close()
    stream.close()
    return handle


@contextlib.contextmanager
def _named_errors(host: str) -> Any:
    try:
        yield
    except docker.errors.NotFound as error:
        raise DockerNotFound(str(error.explanation or error)) from error
    except docker.errors.APIError as error:
        raise DockerRefused(str(error.explanation or error)) from error
    except (
        docker.errors.DockerException,
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        OSError,
    ) as error:
        raise DockerUnavailable(f"the Docker Engine at {host} does not answer: {error}") from error
