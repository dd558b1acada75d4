"""Photograph the pages of docs/: `python -m benchmarks.screenshots RECIPE OTHER --root runs`.

`pedigree dev` serves the root on its usual ports, or those of --dagster and --mlflow. Both recipes were run under the
root, a backfill was launched in the UI, and RECIPE's filter was edited after all that. Needs Chromium.

| file in docs/images | shows |
|---|---|
| `dagster-graph.png` | the groups of the asset graph |
| `dagster-asset.png` | the page of `filtered_documents`: numbers and the funnel |
| `dagster-check.png` | the check `counts_balance` of `filtered_documents` |
| `dagster-picture.png` | the picture of `base_model`: loss by step |
| `dagster-backfill.png` | the newest backfill |
| `unsynced.png` | a partition of `filtered_documents` that the edit made outdated |
| `mlflow-runs.png` | the first launch of RECIPE, and under it a run of each asset |
| `mlflow-compare.png` | the launches of RECIPE and OTHER side by side |
| `mlflow-model.png` | the first version of RECIPE's model |
| `report-1280.png`, `report-390.png` | the report, by day at 1280 pixels and by night at 390 |

With `--sizes` each page is photographed as a whole instead, at SIZES and by day and by night, for somebody who looks
at them: `dagster-asset-dark-900.png`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from playwright.sync_api import FloatRect, Page, expect, sync_playwright

from assets.state.cell import last_made
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe, recipe_folders
from benchmarks.pictures import FOLDER
from resources.tracking.store import experiment_of

WIDE, LOW = 1280, 960
SIZES = ((1440, 900), (900, 900), (390, 844))
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def main() -> int:
    """Photograph all pages, or the named ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("other")
    parser.add_argument("only", nargs="*", help="names of pictures, such as dagster-graph; default: all")
    parser.add_argument("--root", type=Path, default=Path("runs"))
    parser.add_argument("--dagster", default="http://127.0.0.1:3000")
    parser.add_argument("--mlflow", default="http://127.0.0.1:5000")
    parser.add_argument("--to", type=Path, default=FOLDER)
    parser.add_argument("--sizes", action="store_true", help="whole pages at every size, by day and by night")
    options = parser.parse_args()
    pages: dict[str, Callable[[Page], FloatRect | None]] = {
        "dagster-graph": lambda page: graph(page, options.dagster),
        "dagster-asset": lambda page: asset(page, options.dagster),
        "dagster-check": lambda page: check(page, options.dagster),
        "dagster-picture": lambda page: picture(page, options.dagster),
        "dagster-backfill": lambda page: backfill(page, options.dagster),
        "unsynced": lambda page: unsynced(page, options.dagster, options.recipe),
        "mlflow-runs": lambda page: runs(page, options.mlflow, options.recipe),
        "mlflow-compare": lambda page: launches(page, options.mlflow, (options.recipe, options.other)),
        "mlflow-model": lambda page: version(page, options.mlflow, options.recipe),
        "report-1280": lambda page: by_day(page, report_of(options.recipe, options.root.resolve())),
        "report-390": lambda page: by_night(page, report_of(options.recipe, options.root.resolve())),
    }
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in options.only or pages:
            for theme in THEMES if options.sizes else THEMES[:1]:
                page = browser.new_page(viewport={"width": WIDE, "height": LOW}, color_scheme=theme)
                page.set_default_timeout(120_000)
                page.add_init_script(f"localStorage._mlflow_dark_mode_toggle_enabled = {json.dumps(theme == 'dark')}")
                part = pages[name](page)
                shots = sized(page, f"{name}-{theme}") if options.sizes else [(f"{name}.png", part)]
                for file, clip in shots:
                    page.screenshot(path=options.to / file, clip=clip)
                    print(options.to / file, flush=True)
                page.close()
        browser.close()
    return 0


def sized(page: Page, name: str) -> Iterator[tuple[str, None]]:
    """Give the window of an open page every size; yield the name of a picture for each."""
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(1500)
        yield f"{name}-{width}.png", None


def report_of(name: str, root: Path) -> str:
    """Return the address of the report of a recipe that was run under a root."""
    decision = last_made(compare(load_recipe(name, recipe_folders(root)), root).cells["promoted_model", name], root)
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
    page.get_by_text("kept_fraction_by_group").first.wait_for()
    page.get_by_text("Every record that came in").wait_for()
    page.wait_for_timeout(5000)  # for icons


def picture(page: Page, dagster: str) -> FloatRect | None:
    """The picture in a materialization's metadata, opened, without the page behind it."""
    page.goto(f"{dagster}/assets/base_model?view=overview")
    page.get_by_text("Show Markdown").first.click()
    page.get_by_role("button", name="Close").wait_for()
    page.wait_for_timeout(3000)  # the dialog appears slowly
    return page.get_by_role("dialog").last.bounding_box()


def backfill(page: Page, dagster: str) -> None:
    """The page of the newest backfill."""
    page.set_viewport_size({"width": WIDE, "height": 800})
    page.goto(f"{dagster}/runs?view=backfills")
    page.locator("a[href*='/runs/b/']").first.click()
    page.get_by_text("Partition selection").wait_for()
    page.wait_for_timeout(3000)


def unsynced(page: Page, dagster: str, recipe: str) -> None:
    """A partition that an edit of the recipe made outdated, with the cause, which shows under the pointer."""
    page.set_viewport_size({"width": WIDE, "height": 800})
    snapshot = load_recipe(recipe, recipe_folders()).snapshots[0].name
    page.goto(f"{dagster}/assets/filtered_documents?view=partitions&partition={recipe}@{snapshot}")
    page.get_by_text("Unsynced (").first.hover()
    page.get_by_text("has a new data version").wait_for()
    page.wait_for_timeout(1000)


def runs(page: Page, mlflow: str, recipe: str) -> FloatRect:
    """The runs of an experiment: its first launch, and under it a run of each asset with its inputs."""
    page.set_viewport_size({"width": 1280, "height": 860})
    open_page(page, f"{mlflow}/#/experiments/{experiment(page, mlflow, recipe)}/runs")
    page.get_by_text("matching runs").wait_for()
    page.locator('.ag-row [col-id*="Run Name"] button').last.click()
    page.get_by_text("aligned_model [").first.wait_for()
    page.wait_for_timeout(2000)
    return {"x": 205, "y": 14, "width": 1062, "height": 792}


def launches(page: Page, mlflow: str, recipes: tuple[str, str]) -> FloatRect:
    """What differs between the launches of two recipes: parameters and metrics, without the page around them."""
    page.set_viewport_size({"width": 1000, "height": 2400})
    places = [experiment(page, mlflow, recipe) for recipe in recipes]
    found = [launch(page, mlflow, place) for place in places]
    open_page(page, f"{mlflow}/#/compare-runs?runs={json.dumps(found)}&experiments={json.dumps(places)}")
    page.get_by_text("Parameters", exact=True).last.wait_for()
    for number in range(2):  # of parameters and of metrics
        page.get_by_text("Show diff only").nth(number).click()
    page.wait_for_timeout(2000)
    top = page.get_by_text("Parameters", exact=True).last.bounding_box()
    assert top is not None
    return {"x": top["x"] - 44, "y": top["y"] - 14, "width": 1000 - top["x"] + 44, "height": 686}


def version(page: Page, mlflow: str, recipe: str) -> FloatRect:
    """The first version of a recipe's model: aliases, decision, verdict on contamination, scores."""
    open_page(page, f"{mlflow}/#/models/{recipe}/versions/1")
    page.get_by_text("Digest").first.wait_for()
    page.wait_for_timeout(3000)
    return {"x": 0, "y": 0, "width": 1040, "height": 450}


def open_page(page: Page, address: str) -> None:
    """Open a page of MLflow without its assistant beside it."""
    kept = {
        "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
        "mlflow.assistant.panelOpen_v1": "false",
    }
    page.add_init_script(f"for (const [key, value] of Object.entries({json.dumps(kept)})) localStorage[key] = value;")
    page.goto(address)


def experiment(page: Page, mlflow: str, recipe: str) -> str:
    """Return the id of the experiment with a recipe's runs."""
    said = page.request.get(
        f"{mlflow}/api/2.0/mlflow/experiments/get-by-name", params={"experiment_name": experiment_of(recipe)}
    )
    return said.json()["experiment"]["experiment_id"]


def launch(page: Page, mlflow: str, place: str) -> str:
    """Return the id of the first launch in an experiment, which has every stage's time."""
    asked = {"experiment_ids": [place], "order_by": ["start_time ASC"], "max_results": 1}
    said = page.request.post(f"{mlflow}/api/2.0/mlflow/runs/search", data=asked)
    return said.json()["runs"][0]["info"]["run_id"]


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
