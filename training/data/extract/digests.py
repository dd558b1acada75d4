"""Compare the digests stated in a WARC record with its bytes.

WARC-Block-Digest covers the record's block, WARC-Payload-Digest its payload (ISO 28500, section 5), which is the body
of an HTTP response. Some crawlers hash the body of a chunked response with the chunk headers and some without, so both
are accepted. Digests are written in base 32, base 16 or base 64. A missing digest, or one of an unknown algorithm,
proves nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable

ALGORITHMS = frozenset({"md5", "sha1", "sha224", "sha256", "sha384", "sha512"})


def contradicts(stated: str, candidates: Iterable[bytes]) -> bool:
    """Whether the digest (`algorithm:value`) that a record states matches none of the candidates."""
    algorithm, _, value = stated.partition(":")
    name = algorithm.strip().lower().replace("-", "")
    value = value.strip().rstrip("=")
    if name not in ALGORITHMS or not value:
        return False
    return not any(_is(value, hashlib.new(name, data, usedforsecurity=False).digest()) for data in candidates)


def _is(value: str, digest: bytes) -> bool:
    spellings = (base64.b64encode(digest), base64.urlsafe_b64encode(digest))
    return (
        value.upper() == base64.b32encode(digest).decode().rstrip("=")
        or value.lower() == digest.hex()
        or value in {spelling.decode().rstrip("=") for spelling in spellings}
    )
