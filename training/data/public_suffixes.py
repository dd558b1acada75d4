"""Ask whether anybody can register names below a domain, by the list of public suffixes in the package `tldextract`.

The package itself is not imported: it imports `requests`, which takes longer than most questions.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from training.data.urls import normal_host

LIST_FILE = ".tld_set_snapshot"
RULE = re.compile(r"^[.*!]*\w\S*", re.MULTILINE)


def is_public_suffix(domain: str) -> bool:
    """Whether anybody can register names below a domain. A name without a dot, which is no address, counts as one.

    Private suffixes such as `github.io` are included; nothing is fetched.
    """
    name = normal_host(domain)
    if "." not in name:
        return ":" not in domain and not name.isdigit()
    rules = _rules()
    above = name.partition(".")[2]
    return name in rules or (f"*.{above}" in rules and f"!{name}" not in rules)


def is_top_level(name: str) -> bool:
    """Whether a name of letters is a top-level domain that exists, such as `museum`."""
    return name.lower() in _rules()


@cache
def _rules() -> frozenset[str]:
    """Return the rules of the public suffix list, with domains of other letters in Punycode."""
    spec = find_spec("tldextract")
    assert spec is not None and spec.origin is not None
    written = RULE.findall(Path(spec.origin).with_name(LIST_FILE).read_text("utf-8"))
    return frozenset(
        one if one.isascii() else one[: -len(one.lstrip("*.!"))] + normal_host(one.lstrip("*.!")) for one in written
    )
