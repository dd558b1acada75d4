"""Drops pages by their URL, according to the recipe's lists of domains and URLs."""

from __future__ import annotations

from dataclasses import dataclass

from training.data.filter.rule import KEPT, Answer, CommonSettings, Page, Rule
from training.data.hosts import host_of
from training.records import RecipeError


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Domains and URLs whose pages are dropped."""

    blocked_domains: tuple[str, ...] = ()
    blocked_urls: tuple[str, ...] = ()


def check(settings: Settings) -> None:
    """Raise RecipeError if domains or URLs are given but `filter.rules` lacks url."""
    if (settings.blocked_domains or settings.blocked_urls) and "url" not in settings.rules:
        raise RecipeError("filter.blocked_domains, filter.blocked_urls: without effect; add 'url' to filter.rules")


def decide(settings: Settings) -> Answer:
    """Return a function that drops pages of blocked domains, their subdomains, and blocked URLs.

    A blocked URL that ends in / also blocks every URL below it.
    """
    domains = frozenset(domain.lower().removeprefix("www.").strip(".") for domain in settings.blocked_domains)
    addresses = frozenset(map(_plain_url, settings.blocked_urls))
    folders = tuple(sorted(address for address in addresses if address.endswith("/")))

    def decided(page: Page) -> str:
        labels = host_of(page.url).split(".")
        if any(".".join(labels[i:]) in domains for i in range(len(labels))):
            return "blocked_domain"
        plain = _plain_url(page.url)
        return "blocked_url" if plain in addresses or (folders and plain.startswith(folders)) else KEPT

    return decided


def _plain_url(url: str) -> str:
    """Return a URL without scheme, `www.` and fragment, for comparison."""
    rest = url.partition("#")[0].partition("://")[2] or url.partition("#")[0]
    return rest.removeprefix("www.")


RULE = Rule(settings=Settings, check=check, decide=decide)
