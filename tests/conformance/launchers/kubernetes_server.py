"""A server that plays the API of Kubernetes over HTTP: tokens, permissions, pages, selectors, resource versions, preconditions."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from tests.conformance.launchers.kubernetes_store import Object, Refusal, Store

TOKEN: Final = "token-of-a-service-account"
_STEP_SECONDS: Final = 0.02
_PATHS: Final = re.compile(
    r"/(?:api/v1|apis/(?P<group>[a-z0-9.]+)/v\d+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+))?"
)
_RESOURCES: Final = {"nodes", "pods", "secrets", "selfsubjectaccessreviews", "statefulsets"}
_VERBS: Final = {"GET": "get", "POST": "create", "DELETE": "delete", "PUT": "update"}


class KubernetesServer:
    """One cluster of one machine, ``machine-1``, served until `close`."""

    def __init__(self) -> None:
        self.store = Store()
        #: ``verb resource`` that the service account may not.
        self.denied: set[str] = set()
        #: Called after each object that was read by name, before the answer is sent.
        self.after_get: Callable[[str], None] = lambda _: None
        self.requests: list[str] = []
        #: Held by the controllers while they work; a test that holds it stops them.
        self.controllers = threading.Lock()
        self.store.create("nodes", "", {
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "machine-1", "labels": {"zone": "a"}}, "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        })  # fmt: skip
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True),
            threading.Thread(target=self._control, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._closing.set()
        self._http.shutdown()
        for thread in self._threads:
            thread.join()
        self._http.server_close()
        self.store.close()

    def answer(self, method: str, target: str, body: Object, headers: Any) -> Object:
        """Return the answer to a request. Raises Refusal."""
        self.requests.append(f"{method} {target}")
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Refusal(401, "Unauthorized", "Unauthorized")
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query))
        found = _PATHS.fullmatch(parts.path)
        if found is None or found["resource"] not in _RESOURCES:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        if found["resource"] == "selfsubjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            is_denied = f"{asked['verb']} {asked['resource']}" in self.denied
            return {"kind": body["kind"], "status": {"allowed": not is_denied}}
        self._permit(_verb(method, found["name"]), found["resource"], found["namespace"] or "")
        if found["name"]:
            return self._of_object(method, found, body)
        return self._of_list(method, found, body, query, headers.get("Accept", ""))

    def _permit(self, verb: str, resource: str, namespace: str) -> None:
        if f"{verb} {resource}" in self.denied:
            where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
            raise Refusal(403, "Forbidden", f'{resource} is forbidden: User cannot {verb} resource "{resource}"{where}')  # fmt: skip

    def _of_object(self, method: str, found: re.Match[str], body: Object) -> Object:
        name = f"{found['namespace']}/{found['name']}" if found["namespace"] else found["name"]
        if method == "DELETE":
            return self.store.delete(found["resource"], name, body)
        if method == "PUT":
            return self.store.replace(found["resource"], name, body)
        answer = self.store.get(found["resource"], name)
        self.after_get(name)
        return answer

    def _of_list(
        self, method: str, found: re.Match[str], body: Object, query: dict[str, str], accept: str
    ) -> Object:
        resource, namespace = found["resource"], found["namespace"] or ""
        if method == "POST":
            return self.store.create(resource, namespace, body)
        labels = dict(each.split("=", 1) for each in query.get("labelSelector", "").split(",") if each)  # fmt: skip
        listed = self.store.listed(resource, namespace, labels)
        if method == "DELETE":
            for each in listed:
                self.store.delete(resource, f"{namespace}/{each['metadata']['name']}", body)
            return {"kind": "Status", "status": "Success"}
        start, limit = int(query.get("continue", "0")), int(query.get("limit", "1000"))
        page = listed[start : start + limit]
        metadata = {"continue": str(start + limit)} if start + limit < len(listed) else {}
        if "PartialObjectMetadataList" in accept:
            page = [{"metadata": each["metadata"]} for each in page]
            return {"kind": "PartialObjectMetadataList", "metadata": metadata, "items": page}
        return {"kind": "List", "metadata": metadata, "items": page}

    def _control(self) -> None:
        while not self._closing.wait(_STEP_SECONDS):
            with self.controllers:
                self.store.step()


def _verb(method: str, name: str | None) -> str:
    if name is None and method in ("GET", "DELETE"):
        return {"GET": "list", "DELETE": "deletecollection"}[method]
    return _VERBS[method]


def _handler(server: KubernetesServer) -> type[BaseHTTPRequestHandler]:
    class ApiRequest(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        #: One packet for an answer: a second one would wait 40 ms for an acknowledgement.
        wbufsize = -1

        def _serve(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(size) or b"{}")
            status, answer = 201 if self.command == "POST" else 200, {}
            try:
                answer = server.answer(self.command, self.path, body, self.headers)
            except Refusal as refusal:
                status = refusal.status
                answer = {"kind": "Status", "message": str(refusal), "reason": refusal.reason}
            data = json.dumps(answer).encode()
            with suppress(BrokenPipeError, ConnectionResetError):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - the names of the library

        def log_message(self, *_: Any) -> None:
            """Requests are in `KubernetesServer.requests`."""

    return ApiRequest
