"""Google's test bench for clients of Cloud Storage, as a server: `python testbench_server.py PORT`.

It runs in the environment of the test bench (github.com/googleapis/storage-testbench), not in ours. The test bench
wants the line ends of the standard in uploads of one request; gcsfs sends bare line feeds.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable

import testbench
from werkzeug.serving import run_simple

PART = b"--==0=="  # what gcsfs writes between parts
SERVED = testbench.run()


def with_standard_ends(data: bytes) -> bytes:
    """Return an upload of two parts, the object's name and its bytes, with the line ends of the standard."""
    head, _, rest = data.partition(b"\n\n")
    name, _, rest = rest.partition(b"\n" + PART + b"\n")
    kind, _, content = rest.partition(b"\n\n")
    content = content.removesuffix(b"\n" + PART + b"--")
    lines = [*head.split(b"\n"), b"", name, PART, *kind.split(b"\n"), b"", content, PART + b"--"]
    return b"\r\n".join(lines)


def answer(environment: dict, start: Callable) -> Iterable[bytes]:
    """Answer a request."""
    if "uploadType=multipart" in environment["QUERY_STRING"]:
        data = with_standard_ends(environment["wsgi.input"].read(int(environment["CONTENT_LENGTH"])))
        environment |= {"wsgi.input": io.BytesIO(data), "CONTENT_LENGTH": str(len(data))}
    return SERVED(environment, start)


if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[1]), answer, threaded=True)
