"""What `GET /metrics` says of a server, in Prometheus' format: requests, seconds, tokens, the model that answers."""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """Counts from the start of the server on."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own = {"registry": self.registry}
        by = ("address",)
        self.requests = Counter("pedigree_requests", "Requests answered", ("address", "status"), **own)
        self.running = Gauge("pedigree_requests_running", "Requests that are being answered", by, **own)
        self.seconds = Histogram("pedigree_request_seconds", "To the end of an answer", by, buckets=SECONDS, **own)
        self.first = Histogram("pedigree_first_byte_seconds", "To an answer's first byte", by, buckets=SECONDS, **own)
        self.read = Counter("pedigree_prompt_tokens", "Tokens of prompts", **own)
        self.written = Counter("pedigree_generated_tokens", "Tokens of answers", **own)
        self.model = Gauge("pedigree_model_info", "1 for the model that answers new requests", ("model",), **own)

    def answers(self, says: str) -> None:
        """Say which model answers from now on."""
        self.model.clear()
        self.model.labels(says).set(1)

    def used(self, usage: dict[str, Any] | None) -> None:
        """Add the tokens of an answer, of which both interfaces have their own names."""
        if usage:
            self.read.inc(usage.get("prompt_tokens", usage.get("input_tokens", 0)))
            self.written.inc(usage.get("completion_tokens", usage.get("output_tokens", 0)))


class CountedRequests:
    """An ASGI application whose requests to some addresses are counted and timed."""

    def __init__(self, app: Any, metrics: Metrics, addresses: tuple[str, ...]) -> None:
        self.app, self.metrics, self.addresses = app, metrics, addresses

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        address = scope.get("path", "")
        if scope["type"] != "http" or address not in self.addresses:
            await self.app(scope, receive, send)
            return
        begun, status, has_begun = time.perf_counter(), 500, False

        async def sent(message: dict[str, Any]) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not has_begun and message.get("body"):
                has_begun = True
                self.metrics.first.labels(address).observe(time.perf_counter() - begun)
            await send(message)

        with self.metrics.running.labels(address).track_inprogress():
            try:
                await self.app(scope, receive, sent)
            finally:
                self.metrics.requests.labels(address, status).inc()
                self.metrics.seconds.labels(address).observe(time.perf_counter() - begun)


def add_metrics(app: Any, metrics: Metrics, addresses: tuple[str, ...]) -> None:
    """Count and time the requests of an application, and add the address that says so."""
    from starlette.responses import Response

    app.add_middleware(CountedRequests, metrics=metrics, addresses=addresses)

    @app.get("/metrics")
    def told() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)
