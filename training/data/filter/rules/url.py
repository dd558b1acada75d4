"""Drops pages by their URL, according to the recipe's lists of domains and URLs."""

from __future__ import annotations

from dataclasses import dataclass

from training.contract.job import DataError
from training.contract.records import RecipeError
from training.data.address_lists import AddressList, Kind, address_list
from training.data.filter.rule import KEPT, Answer, CommonSettings, Page, Rule


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Domains and URLs whose pages are dropped (training/data/address_lists.py)."""

    blocked_domains: tuple[str, ...] = ()
    blocked_urls: tuple[str, ...] = ()


def check(settings: Settings) -> None:
    """Raise RecipeError for an entry that can match no page, and if `filter.rules` lacks url."""
    if (settings.blocked_domains or settings.blocked_urls) and "url" not in settings.rules:
        raise RecipeError("filter.blocked_domains, filter.blocked_urls: without effect; add 'url' to filter.rules")
    _ = _lists(settings)  # checks itself


def decide(settings: Settings) -> Answer:
    """Return a function that drops pages of blocked domains, their subdomains, and blocked URLs.

    A blocked URL that ends in / also blocks every URL below it, and one without a path its host.
    """
    domains, addresses = _lists(settings)

    def decided(page: Page) -> str:
        if domains.find(page.url) is not None:
            return "blocked_domain"
        return KEPT if addresses.find(page.url) is None else "blocked_url"

    return decided


def _lists(settings: Settings) -> tuple[AddressList, AddressList]:
    return (
        _list("blocked_domains", settings.blocked_domains, "domain"),
        _list("blocked_urls", settings.blocked_urls, "url", "folder", "domain"),
    )


def _list(name: str, entries: tuple[str, ...], *kinds: Kind) -> AddressList:
    try:
        return address_list(entries, *kinds)
    except DataError as error:
        raise RecipeError(f"filter.{name}: {error}") from None


RULE = Rule(settings=Settings, reasons=("blocked_domain", "blocked_url"), check=check, decide=decide)
