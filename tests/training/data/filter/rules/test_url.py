import pytest

from tests.training.data.filter.pages import GOOD, reason_of
from training.data.filter.rule import KEPT
from training.data.filter.settings import FilterRecipe


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://spam.example/a", "url:blocked_domain"),
        ("https://www.Shop.SPAM.example:8080/a", "url:blocked_domain"),
        ("http://notspam.example/a", KEPT),
        ("https://inn.example/menu#top", "url:blocked_url"),
        ("https://inn.example/menus", KEPT),
        ("http://inn.example/private/a/b", "url:blocked_url"),
        ("http://[broken", KEPT),
        ("", KEPT),
    ],
)
def test_addresses_are_blocked_by_domain_exactly_or_below(url, reason):
    recipe = FilterRecipe(
        rules=("url",),
        blocked_domains=("spam.example",),
        blocked_urls=("http://inn.example/menu", "http://www.inn.example/private/"),
    )
    assert reason_of(GOOD, recipe, url=url) == reason
