"""Ask whether a domain has one owner, who may speak for all names below it.

A public suffix of a registry, such as `co.uk`, has none. One that a company has put on the list of public suffixes,
such as `github.io`, belongs to the company, although others have names below it.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from training.data.public_suffixes import LIST_FILE, is_public_suffix
from training.data.urls import normal_host

PRIVATE = re.compile(r"BEGIN PRIVATE DOMAINS.*END PRIVATE DOMAINS", re.DOTALL)
RULE = re.compile(r"^\w\S*", re.MULTILINE)


def has_owner(domain: str) -> bool:
    """Whether a domain is no public suffix, or one that a company has named for itself."""
    return not is_public_suffix(domain) or normal_host(domain) in _of_companies()


@cache
def _of_companies() -> frozenset[str]:
    spec = find_spec("tldextract")
    assert spec is not None and spec.origin is not None
    found = PRIVATE.search(Path(spec.origin).with_name(LIST_FILE).read_text("utf-8"))
    assert found is not None, "the list of public suffixes has no section of private domains"
    return frozenset(map(normal_host, RULE.findall(found.group())))
