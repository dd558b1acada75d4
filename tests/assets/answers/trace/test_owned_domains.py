"""Domains that somebody owns: a registry's suffix has no owner, a company's has one."""

from __future__ import annotations

import pytest

from assets.answers.trace.owned_domains import has_owner


@pytest.mark.parametrize(
    "domain", ["github.io", "GITHUB.io", "blogspot.com", "example.co.uk", "me.github.io", "1.2.3.4"]
)
def test_a_company_owns_its_suffix_and_everybody_a_name(domain):
    assert has_owner(domain)


@pytest.mark.parametrize("domain", ["co.uk", "com", "some.ck", "\u516c\u53f8.cn"])
def test_nobody_owns_the_suffix_of_a_registry(domain):
    assert not has_owner(domain)
