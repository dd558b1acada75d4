"""The host of a URL, in the one form in which hosts are compared and counted. Standard library only."""

from __future__ import annotations

from urllib.parse import urlsplit


def host_of(url: str | None) -> str:
    """Return the host of a URL in lower case, without dots at its ends; empty if it has none or cannot be parsed."""
    try:
        return (urlsplit(url or "").hostname or "").lower().strip(".")
    except ValueError:  # "http://[broken"
        return ""
