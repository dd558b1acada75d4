"""Ask whether anybody can register names below a domain, by the list of public suffixes in the package `tldextract`.

The package itself is not imported: it imports `requests`, which takes longer than most questions.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

LIST_FILE = ".tld_set_snapshot"
RULE = re.compile(r"^[.*!]*\w\S*", re.MULTILINE)


def is_public_suffix(domain: str) -> bool:
    """Whether anybody can register names below a domain. A name without a dot, which is no address, counts as one.

    Private suffixes such as `github.io` are included; nothing is fetched.
    """
    if "." not in domain:
        return ":" not in domain and not domain.isdigit()
    labels = [_decoded(label) for label in domain.split(".")]
    name, above = ".".join(labels), ".".join(labels[1:])
    rules = _rules()
    return name in rules or (f"*.{above}" in rules and f"!{name}" not in rules)


def _decoded(label: str) -> str:
    lower = label.lower()
    try:
        return lower.encode("ascii").decode("idna") if lower.startswith("xn--") else lower
    except UnicodeError:
        return lower


@cache
def _rules() -> frozenset[str]:
    spec = find_spec("tldextract")
    assert spec is not None and spec.origin is not None
    return frozenset(RULE.findall(Path(spec.origin).with_name(LIST_FILE).read_text("utf-8")))
