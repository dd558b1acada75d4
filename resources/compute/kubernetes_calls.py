"""Calls of the API server by `kubectl`, which knows the kubeconfig and every way of credentials.

Only plain requests (`--raw`) are made, so any version of `kubectl` will do.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from resources.compute.base import NotSubmitted

CALL_SECONDS = 30.0
RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)  # waited before a call that the server had no time for is made again
_PLACES = {"Job": "apis/batch/v1", "Pod": "api/v1", "Service": "api/v1", "Event": "api/v1"}
_VERSIONS_OF_KUEUE = ("v1beta2", "v1beta1")
# What the user must be allowed to do in the namespace: verbs by API group and kind.
RIGHTS = {
    ("batch", "jobs"): ("create", "list", "deletecollection"),
    ("", "services"): ("create",),
    ("", "pods"): ("list",),
    ("", "events"): ("list",),
}
# What `kubectl` says when the API server has not answered, or asks to come again.
_BUSY = re.compile(
    r"TooManyRequests|InternalError|ServiceUnavailable|Timeout|timed? ?out|try again|unable to connect|"
    r"connection refused|connection reset|was refused|\bEOF\b|gave no answer",
    re.I,
)
ASK = "ask for the rights to {}, or change `parts.kubernetes.namespace`".format(
    "; ".join(f"{', '.join(verbs)} {kind}" for (_, kind), verbs in RIGHTS.items())
)
# What the API server says when it refuses, and what of the profile it depends on.
REFUSALS = {
    "Unauthorized|must be logged in|provide credentials|getting credentials": "the credentials are not valid or have "
    "expired; log in again, or change `parts.kubernetes.context`",
    r"context .* does not exist|context was not found": "change `parts.kubernetes.context`",
    "exceeded quota": "the namespace gives less; lower `nodes`, `memory_gb`, `workers`, `threads` or `gpus_per_node`, "
    "or change `parts.kubernetes.namespace`",
    'namespaces "[^"]*" not found': "there is no such namespace; change `parts.kubernetes.namespace`",
    "Forbidden": f"the user may not do this in the namespace; {ASK}",
    r"queue": "change `parts.kubernetes.queue`",
    r"Invalid|BadRequest|strict decoding|unknown field": "change `parts.kubernetes.pod`, `image`, `claims` or "
    "`secrets`, as the message says",
}


class KubernetesError(NotSubmitted):
    """Kubernetes refused a call or gave no usable answer; the message contains its own."""


class KubernetesRefusal(KubernetesError):
    """Kubernetes, or this backend, refuses a task; the message names the fields of the profile that it depends on."""

    is_refused = True


class AlreadyThere(KubernetesError):
    """There is an object of this name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """A namespace of the cluster that the kubeconfig, or the pod's own service account, leads to."""

    namespace: str
    context: str | None = None

    def create(self, manifest: Mapping[str, Any], *, is_trial: bool = False) -> None:
        """Create an object, unless there is one of its name; of a trial nothing stays.

        Raises KubernetesRefusal if the cluster refuses it.
        """
        trial = {"dryRun": "All"} if is_trial else {}
        path = self._path(manifest["kind"], {"fieldValidation": "Strict", **trial})
        with suppress(AlreadyThere):
            self._call("create", path, "-f", "-", given=json.dumps(manifest))

    def find(self, kind: str, labels: str) -> list[dict[str, Any]]:
        """Return the objects of a kind that have the labels."""
        return json.loads(self._call("get", self._path(kind, {"labelSelector": labels})))["items"]

    def delete_jobs(self, labels: str) -> None:
        """Delete the Jobs that have the labels, with what belongs to them; their pods end in the background."""
        chosen = {"labelSelector": labels, "propagationPolicy": "Background"}
        self._call("delete", self._path("Job", chosen))

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of an object, the last one last."""
        found = json.loads(self._call("get", self._path("Event", {"fieldSelector": f"involvedObject.name={name}"})))
        return sorted(found["items"], key=lambda one: one.get("lastTimestamp") or one.get("eventTime") or "")

    def may(self, verb: str, group: str, kind: str) -> bool:
        """Return whether the user may do this with objects of a kind."""
        asked = {"namespace": self.namespace, "verb": verb, "group": group, "resource": kind}
        named = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        review = json.dumps({**named, "spec": {"resourceAttributes": asked}})
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return json.loads(self._call("create", path, "-f", "-", given=review))["status"]["allowed"]

    def claim(self, name: str) -> dict[str, Any]:
        """Return what the API server says of a PersistentVolumeClaim of the namespace."""
        path = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims/{name}"
        return json.loads(self._call("get", path))

    def queue(self, name: str) -> dict[str, Any]:
        """Return what the API server says of a LocalQueue of Kueue in the namespace."""
        return json.loads(self._kueue(f"localqueues/{name}"))

    def workloads(self, uid: str) -> list[dict[str, Any]]:
        """Return Kueue's objects for a Job; none if there is no Kueue, or it may not be asked."""
        chosen = urlencode({"labelSelector": f"kueue.x-k8s.io/job-uid={uid}"})
        with suppress(KubernetesError):
            return json.loads(self._kueue(f"workloads?{chosen}"))["items"]
        return []

    def _kueue(self, what: str) -> str:
        """Return what Kueue answers, in its newest version or the one before."""
        newest, older = (f"/apis/kueue.x-k8s.io/{one}/namespaces/{self.namespace}/{what}" for one in _VERSIONS_OF_KUEUE)
        try:
            return self._call("get", newest)
        except KubernetesError:
            return self._call("get", older)

    def _path(self, kind: str, query: Mapping[str, str]) -> str:
        return f"/{_PLACES[kind]}/namespaces/{self.namespace}/{kind.lower()}s?{urlencode(query)}"

    def _call(self, verb: str, path: str, *options: str, given: str = "") -> str:
        """Return what a request answers. One that the server had no time for is made again: each may be repeated."""
        context = [f"--context={self.context}"] if self.context else []
        argv = ["kubectl", *context, f"--request-timeout={CALL_SECONDS:.0f}s", verb, "--raw", path, *options]
        for seconds in (*RETRY_SECONDS, None):
            try:
                return _answer(argv, given)
            except KubernetesError as error:
                if seconds is None or not _BUSY.search(str(error)):
                    raise
                time.sleep(seconds)
        raise AssertionError


def _answer(argv: list[str], given: str) -> str:
    try:
        done = subprocess.run(argv, input=given, capture_output=True, text=True, timeout=2 * CALL_SECONDS, check=False)
    except FileNotFoundError:
        raise KubernetesRefusal("kubectl is not installed here; the backend kubernetes needs it on the PATH") from None
    except subprocess.TimeoutExpired:
        raise KubernetesError(f"kubectl gave no answer in {2 * CALL_SECONDS:.0f} s") from None
    if done.returncode:
        raise _error(done.stderr.strip() or done.stdout.strip())
    return done.stdout


def _error(said: str) -> KubernetesError:
    if "(AlreadyExists)" in said:
        return AlreadyThere(said)
    advice = next((advice for words, advice in REFUSALS.items() if re.search(words, said, re.I)), None)
    if advice is None or _BUSY.search(said):
        return KubernetesError(said)
    return KubernetesRefusal(f"Kubernetes refuses: {said}: {advice} (in the profile)")
