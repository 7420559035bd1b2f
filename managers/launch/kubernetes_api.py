"""The API of Kubernetes over HTTP, as far as the launcher needs it: get, list, create, delete, with the token of a service account.

Decision 0296 says why it is not the package ``kubernetes``.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from managers.launch.launcher import CALL_SECONDS, LaunchError

#: Where a pod finds the token, the certificate and the namespace of its service account.
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Objects of one answer; a longer list comes in several.
PAGE: Final = 500
#: A launch makes at most four requests.
_SECONDS: Final = CALL_SECONDS / 4
_METADATA_ALONE: Final = (
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
)
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})

Object = dict[str, Any]


class ApiRefusal(LaunchError):
    """The API answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        #: The status of HTTP.
        self.status = status


class KubernetesApi:
    """One API server. May be used by several threads."""

    def __init__(self, server: str = "", token_file: str = "", ca_file: str = "") -> None:
        """``server``: its URL; empty: that of the cluster in which this process runs, with its service account."""
        in_cluster = not server
        self._server = server.rstrip("/") or _own_server()
        self._token_file = token_file or (str(SERVICE_ACCOUNT / "token") if in_cluster else "")
        self._ca_file = ca_file or (str(SERVICE_ACCOUNT / "ca.crt") if in_cluster else "")
        self._client: httpx.Client | None = None

    def get(self, path: str) -> Object | None:
        """Return an object; None: there is none. Raises LaunchError."""
        try:
            return self._call("GET", path)
        except ApiRefusal as error:
            if error.status == httpx.codes.NOT_FOUND:
                return None
            raise

    def list(self, path: str, selector: str = "", *, metadata_alone: bool = False) -> list[Object]:
        """Return all objects of a list, for a selector of labels. Raises LaunchError."""
        found: list[Object] = []
        parameters: dict[str, str | int] = {"limit": PAGE}
        if selector:
            parameters["labelSelector"] = selector
        accept = _METADATA_ALONE if metadata_alone else "application/json"
        while True:
            answer = self._call("GET", path, parameters=parameters, accept=accept)
            found += answer.get("items") or []
            if not (more := answer.get("metadata", {}).get("continue")):
                return found
            parameters["continue"] = more

    def create(self, path: str, body: Object) -> Object | None:
        """Create an object, and return it; None: there is one of this name. Raises LaunchError."""
        try:
            return self._call("POST", path, body)
        except ApiRefusal as error:
            if error.status == httpx.codes.CONFLICT:
                return None
            raise

    def delete(self, path: str, options: Object, selector: str = "") -> bool:
        """Delete an object, or all of a list; False: it is another one by now than ``options`` say. Raises LaunchError."""
        parameters: dict[str, str | int] = {"labelSelector": selector} if selector else {}
        try:
            self._call("DELETE", path, options, parameters)
        except ApiRefusal as error:
            if error.status == httpx.codes.CONFLICT:
                return False
            if error.status != httpx.codes.NOT_FOUND:
                raise
        return True

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()

    def _call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        parameters: Mapping[str, str | int] | None = None,
        accept: str = "application/json",
    ) -> Object:
        try:
            answer = self._connected().request(
                method, self._server + path, json=body, params=dict(parameters or {}),
                headers={"Accept": accept, **self._authorization()},
            )  # fmt: skip
        except httpx.HTTPError as error:
            raise LaunchError(
                f"the API of Kubernetes at {self._server} does not answer ({type(error).__name__}: {error}):"
                " set the options server and ca_file, and let network policies permit it"
            ) from None
        if answer.is_error:
            raise ApiRefusal(answer.status_code, self._explained(answer))
        found: Object = answer.json()
        return found

    def _connected(self) -> httpx.Client:
        if not self._server:
            raise LaunchError(
                "this process runs in no pod, so the API of Kubernetes is not known: set the options server, token_file and ca_file,"
                " or server to the address of a `kubectl proxy`"
            )
        if self._client is None:
            try:
                verify = ssl.create_default_context(cafile=self._ca_file or None)
            except OSError as error:
                raise LaunchError(f"option ca_file: {self._ca_file} cannot be read ({error})") from None  # fmt: skip
            # Proxies of the environment are for other hosts than the API of one's own cluster.
            self._client = httpx.Client(verify=verify, timeout=_SECONDS, trust_env=False)
        return self._client

    def _authorization(self) -> dict[str, str]:
        """Read the token for each call: the kubelet writes another one every hour."""
        if not self._token_file:
            return {}
        parts = urlsplit(self._server)
        if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
            raise LaunchError(f"option server: {self._server} would get the token in plain text; use https")  # fmt: skip
        try:
            return {"Authorization": f"Bearer {Path(self._token_file).read_text().strip()}"}
        except OSError as error:
            raise LaunchError(
                f"the token {self._token_file} cannot be read ({error}): set serviceAccountName of the keeper's pod, or the option token_file"
            ) from None

    def _explained(self, answer: httpx.Response) -> str:
        try:
            said = str(answer.json()["message"])
        except (ValueError, KeyError, TypeError):
            said = answer.text[:200] or answer.reason_phrase
        cure = _CURES.get(answer.status_code, "look at the log of the API server")
        if answer.is_server_error or answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
            cure = "it is asked again in some seconds; look at the load of the API server if that goes on"
        return f"Kubernetes refused: {said} ({answer.status_code}): {cure}"


_CURES: Final = {
    401: "let the option token_file name a valid token of a service account (`kubectl create token`)",
    403: "apply deploy/kubernetes, whose role tangram-launcher permits it, and let the keeper's pod have that service account",
    404: "is the option namespace the one of Tangram?",
    410: "the list changed while its pages were read; it is asked again in some seconds",
    422: "correct labels, image and options of the node group, or the StatefulSet that the option template names",
}


def _own_server() -> str:
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    named = f"[{host}]" if ":" in host else host
    return f"https://{named}:{port}" if host else ""
