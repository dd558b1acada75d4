"""`pedigree compare` of models that the command line made: a recipe, its version, and a recipe without its guard."""

from __future__ import annotations

from tests.browser import chromium
from tests.small_kitchen import pedigree


def test_a_recipe_and_its_version_are_one_model(first, untouched, tmp_path):
    page = tmp_path / "page.html"
    told = pedigree("compare", "kitchen-small", "kitchen-small@champion", "--html", str(page), root=untouched)
    assert told.code == 0 and {row["agree"] for row in told.answer["artifacts"]} == {"same"}
    assert told.answer["compute"]["is_matched"] and told.answer["recipes"][0]["differences"] == []
    against = [row["sides"][1]["against"] for row in told.answer["scores"]]
    assert against and all(one["difference"] == one["won"] == one["lost"] == 0 for one in against)
    losses = [curve["loss"] for curve in told.answer["losses"]["curves"]]
    assert losses[0] == losses[1] and len(losses[0]) == 40
    with chromium() as browser:
        for width in (1280, 390):
            browser.set_viewport_size({"width": width, "height": 900})
            browser.goto(page.as_uri())
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            assert browser.locator("svg path.line").count() == 4
