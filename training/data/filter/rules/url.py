"""Drops pages by their address: the recipe's lists of domains and addresses."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from training.data.filter.rule import KEPT, Answer, CommonSettings, Page, Rule
from training.records import RecipeError


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Addresses whose pages go."""

    blocked_domains: tuple[str, ...] = ()
    blocked_urls: tuple[str, ...] = ()


def check(settings: Settings) -> None:
    """RecipeError for lists without the rule."""
    if (settings.blocked_domains or settings.blocked_urls) and "url" not in settings.rules:
        raise RecipeError("filter.blocked_domains, filter.blocked_urls: without effect; add 'url' to filter.rules")


def decide(settings: Settings) -> Answer:
    """Drops pages of blocked domains and their subdomains, and blocked addresses: equal, or below one ending in /."""
    domains = frozenset(domain.lower().removeprefix("www.").strip(".") for domain in settings.blocked_domains)
    addresses = frozenset(map(_plain_url, settings.blocked_urls))
    folders = tuple(sorted(address for address in addresses if address.endswith("/")))

    def decided(page: Page) -> str:
        host = (urlsplit(page.url).hostname or "") if _has_host(page.url) else ""
        labels = host.lower().strip(".").split(".")
        if any(".".join(labels[i:]) in domains for i in range(len(labels))):
            return "blocked_domain"
        plain = _plain_url(page.url)
        return "blocked_url" if plain in addresses or (folders and plain.startswith(folders)) else KEPT

    return decided


def _has_host(url: str) -> bool:
    try:
        return urlsplit(url).hostname is not None
    except ValueError:  # "http://[broken": an address that cannot be read is in no list
        return False


def _plain_url(url: str) -> str:
    """An address without scheme, `www.` and fragment: what stays the same between two ways to write it."""
    rest = url.partition("#")[0].partition("://")[2] or url.partition("#")[0]
    return rest.removeprefix("www.")


RULE = Rule(settings=Settings, check=check, decide=decide)
