"""A small API server over HTTP for the tests of the Kubernetes backend: it keeps objects and refuses what is wrong.

It checks each object against Kubernetes' published schema, as the real one does with `fieldValidation=Strict`, and has
no controllers: a test says what becomes of a Job and its pods.
"""

from __future__ import annotations

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

Thing = dict[str, Any]
KINDS = {"jobs": "Job", "pods": "Pod", "services": "Service", "events": "Event", "workloads": "Workload"}
KINDS |= {"persistentvolumeclaims": "PersistentVolumeClaim", "localqueues": "LocalQueue"}
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
BEGAN = "2026-11-29T10:00:00Z"


class MiniApi:
    """One server. `faults` are answers, as (code, reason, message), that its next requests get; None: the true one.

    `forbidden` is what its user may not do, such as ("create", "jobs").
    """

    def __init__(self, folder: Path) -> None:
        self.things: dict[str, dict[str, Thing]] = {name: {} for name in KINDS}
        self.faults: list[tuple[int, str, str] | None] = []
        self.forbidden: set[tuple[str, str]] = set()
        self.requests: list[tuple[str, str]] = []
        self.kubeconfig = folder / "kubeconfig"
        self.start(0)

    def start(self, port: int | None = None) -> None:
        """Listen; again on the same port after `stop`."""
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                code, answer = owner.answer(self.command, self.path, self._given())
                body = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _given(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = []
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            do_GET = do_POST = do_DELETE = _serve

            def log_message(self, *_: object) -> None:
                """Say nothing on standard error."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port if port is None else port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "mini",
            "clusters": [{"name": "mini", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "mini", "user": {"token": "of-mini"}}],
            "contexts": [{"name": "mini", "context": {"cluster": "mini", "user": "mini"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config), "utf-8")

    def stop(self) -> None:
        """Listen no longer; objects stay."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, target: str, given: bytes) -> tuple[int, Thing]:
        """Return the status code and object that a request gets."""
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.requests.append((method, url.path))
        if url.path == "/version":  # some builds of kubectl ask for it
            return 200, {"major": "1", "minor": "36", "gitVersion": "v1.36.0"}
        if self.faults and (fault := self.faults.pop(0)):
            return refusal(*fault)
        if url.path == REVIEW:
            asked = json.loads(given)["spec"]["resourceAttributes"]
            return 201, {"status": {"allowed": (asked["verb"], asked["resource"]) not in self.forbidden}}
        kind = url.path.rpartition("/")[2]
        if kind not in KINDS:
            *_, kind, name = url.path.split("/")
            if one := self.things.get(kind, {}).get(name):
                return 200, one
            return refusal(404, "NotFound", "the server could not find the requested resource")
        chosen = {name: one for name, one in self.things[kind].items() if fits(one, query)}
        if method == "POST":
            return self._create(kind, json.loads(given), query)
        if method == "DELETE":
            for name in chosen:
                del self.things[kind][name]
        return 200, {"kind": f"{KINDS[kind]}List", "items": [*chosen.values()]}

    def _create(self, kind: str, thing: Thing, query: dict[str, str]) -> tuple[int, Thing]:
        name = thing["metadata"]["name"]
        if wrong := why_wrong(thing):
            return refusal(400, "BadRequest", f"strict decoding error: {wrong}")
        if name in self.things[kind]:
            return refusal(409, "AlreadyExists", f'{kind} "{name}" already exists')
        assert query["fieldValidation"] == "Strict"
        thing["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": BEGAN}
        thing["status"] = {}
        if "dryRun" not in query:
            self.things[kind][name] = thing
        return 201, thing

    def job(self, number: int = -1) -> Thing:
        """The Job that was created as this one in order; the last one by default."""
        return list(self.things["jobs"].values())[number]

    def end(self, job: Thing, kind: str = "Complete", reason: str = "") -> None:
        """Let a Job end, as its controller writes it."""
        told = {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": "2026-11-29T10:02:00Z"}
        job["status"] |= {"conditions": [told], "startTime": BEGAN}

    def pod(self, job: Thing, index: int = 0, **status: Any) -> Thing:
        """A pod of a Job, with what its node writes of it."""
        named = {"batch.kubernetes.io/job-completion-index": str(index)}
        labels = {**job["metadata"]["labels"], **named, "batch.kubernetes.io/job-name": job["metadata"]["name"]}
        metadata = {"labels": labels, "annotations": named, "creationTimestamp": BEGAN}
        pod = {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": {"startTime": BEGAN, **status}}
        self.things["pods"][f"{job['metadata']['name']}-{index}-{len(self.things['pods'])}"] = pod
        return pod


def fits(thing: Thing, query: dict[str, str]) -> bool:
    """Whether the labels and the name of an object are those that a request asks for."""
    wanted = dict(part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part)
    field = query.get("fieldSelector", "").partition("=")[2]
    labels = thing["metadata"].get("labels", {})
    return wanted.items() <= labels.items() and field in ("", thing.get("involvedObject", {}).get("name"))


def why_wrong(thing: Thing) -> str:
    """What of an object is not in Kubernetes' published schema; empty if nothing, or if no schema is installed."""
    try:
        import kubernetes_validate
    except ImportError:
        return ""
    try:
        kubernetes_validate.validate(thing, "1.37", strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"
    return ""


def refusal(code: int, reason: str, message: str) -> tuple[int, Thing]:
    """The answer with which an API server refuses a request."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return code, {**status, "code": code, "reason": reason, "message": message}
