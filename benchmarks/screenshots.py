"""Photograph the pages of docs/: `python -m benchmarks.screenshots RECIPE --root runs --dagster http://127.0.0.1:3000`.

RECIPE was run under the root, and `pedigree dev` serves the root. Needs Chromium.

| file in docs/images | shows |
|---|---|
| `dagster-graph.png` | the groups of the asset graph |
| `dagster-asset.png` | the page of `filtered_documents`: numbers and the funnel |
| `dagster-check.png` | the check `counts_balance` of `filtered_documents` |
| `dagster-picture.png` | the picture of `base_model`: loss by step |
| `report-1280.png`, `report-390.png` | the report, by day at 1280 pixels and by night at 390 |
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import FloatRect, Page, expect, sync_playwright

from assets.recipe_folders import load_recipe, recipe_folders
from assets.status import compare
from benchmarks.pictures import FOLDER

WIDE, LOW = 1280, 960


def main() -> int:
    """Photograph all pages, or the named ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("only", nargs="*", help="names of pictures, such as dagster-graph; default: all")
    parser.add_argument("--root", type=Path, default=Path("runs"))
    parser.add_argument("--dagster", default="http://127.0.0.1:3000")
    parser.add_argument("--to", type=Path, default=FOLDER)
    options = parser.parse_args()
    pages: dict[str, Callable[[Page], FloatRect | None]] = {
        "dagster-graph": lambda page: graph(page, options.dagster),
        "dagster-asset": lambda page: asset(page, options.dagster),
        "dagster-check": lambda page: check(page, options.dagster),
        "dagster-picture": lambda page: picture(page, options.dagster),
        "report-1280": lambda page: by_day(page, report_of(options.recipe, options.root.resolve())),
        "report-390": lambda page: by_night(page, report_of(options.recipe, options.root.resolve())),
    }
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in options.only or pages:
            page = browser.new_page(viewport={"width": WIDE, "height": LOW})
            page.set_default_timeout(120_000)
            part = pages[name](page)
            page.screenshot(path=options.to / f"{name}.png", clip=part)
            print(f"{options.to / name}.png", flush=True)
            page.close()
        browser.close()
    return 0


def report_of(name: str, root: Path) -> str:
    """Return the address of the report of a recipe that was run under a root."""
    decision = compare(load_recipe(name, recipe_folders(root)), root).cells["promoted_model", name].artifact
    assert decision is not None, f"{name} was not run under {root}"
    return (decision.path / "report.html").as_uri()


def graph(page: Page, dagster: str) -> FloatRect:
    """The asset graph alone, its groups folded, from top to bottom: its names can be read at half the size."""
    page.set_viewport_size({"width": 1700, "height": 1120})
    page.goto(f"{dagster}/asset-groups")
    page.wait_for_selector("text=corpus")
    page.get_by_text("Hide navigation").click()
    page.locator("button:has([aria-label=settings])").last.click()
    page.get_by_text("Change graph to vertical orientation").click()
    page.wait_for_timeout(3000)  # the browser keeps the choice, and fits the graph to its place when it loads the page
    page.reload()
    page.get_by_text("Reload definitions").wait_for()
    page.get_by_text("corpus").first.wait_for()
    page.wait_for_timeout(8000)
    expect(page.get_by_text("fetching statuses")).to_have_count(0, timeout=120_000)
    return {"x": 415, "y": 220, "width": 1240, "height": 730}


def asset(page: Page, dagster: str) -> None:
    """The page of an asset, from its title to its funnel."""
    page.goto(f"{dagster}/assets/filtered_documents?view=overview")
    page.get_by_text("records_in").wait_for()
    page.get_by_text("funnel", exact=True).scroll_into_view_if_needed()
    page.wait_for_timeout(3000)


def check(page: Page, dagster: str) -> None:
    """The page of a check: its question, its verdict for a partition, its evidence."""
    page.goto(f"{dagster}/assets/filtered_documents?view=checks&checkDetail=counts_balance")
    page.get_by_text("Latest execution").wait_for()


def picture(page: Page, dagster: str) -> None:
    """The picture in a materialization's metadata, opened."""
    page.goto(f"{dagster}/assets/base_model?view=overview")
    page.get_by_text("Show Markdown").first.click()
    page.get_by_role("button", name="Close").wait_for()
    page.wait_for_timeout(3000)  # the dialog appears slowly


def by_day(page: Page, report: str) -> None:
    """The beginning of the report on a screen of 1280 pixels."""
    page.set_viewport_size({"width": 1280, "height": 1180})
    page.goto(report)


def by_night(page: Page, report: str) -> None:
    """What became of the records, on a telephone by night."""
    page.set_viewport_size({"width": 390, "height": 1180})
    page.emulate_media(color_scheme="dark")
    page.goto(f"{report}#documents")


if __name__ == "__main__":
    sys.exit(main())
