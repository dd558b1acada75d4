"""The benchmark of references says when the two sides differ, or when archives are sent twice."""

from __future__ import annotations

import pytest

from benchmarks.archives import report


def pair(local: str, http: str) -> dict[str, dict[str, object]]:
    return {"local": {"seconds": 2.0, "digest": local}, "http": {"seconds": 3.0, "digest": http}}


@pytest.mark.parametrize(
    ("digests", "sent", "code"), [(("a", "a"), 1.0, 0), (("a", "b"), 1.0, 1), (("a", "a"), 1.2, 1)]
)
def test_different_documents_and_repeated_requests_are_failures(digests, sent, code, capsys):
    assert report([pair(*digests)], sent, archives=10) == code
    said = capsys.readouterr().out
    assert "http ÷ local 1.500" in said and "100.0 ms more for each archive" in said
