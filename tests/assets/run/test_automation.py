"""What automation launches, by the real sensor and real backfills in a Dagster instance; nothing is executed."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus

from assets.definitions import definitions
from assets.materialize.watchers import Watching
from assets.run.automation import add_backfills
from assets.state.chain import CHAIN
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe
from resources.profile import load_profile
from tests.assets.fabricate import make_one
from tests.examples import RECIPE_FILES
from training.contract import artifact
from training.contract.records import RecipeError
from training.recipe.settings.automation import AutomationRecipe


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """The asset graph of a root with a recipe `asking`."""
    root = tmp_path_factory.mktemp("graph")
    write(root, "{rebuild: all, node_hours_per_day: 1}")
    return definitions(root, "local").resolve_asset_graph()


@pytest.fixture
def instance():
    with dg.instance_for_test() as made:
        yield made


@pytest.fixture
def ask(tmp_path, graph, instance):
    """What is said of the recipe `asking`, with that automation, when a sensor asks for its backfill."""

    def rebuild(automation):
        write(tmp_path, automation)
        return list(add_backfills(instance, graph, tmp_path, load_profile("local"), "nightly_rebuild"))

    return rebuild


def write(root, automation):
    (root / "recipes").mkdir(exist_ok=True)
    text = f"extends: kitchen\nname: asking\nautomation: {automation}\n"
    (root / "recipes" / "asking.yaml").write_text(text)


def read(root):
    return compare(load_recipe(str(root / "recipes" / "asking.yaml")), root)


def make(root, *assets):
    """Cells of `asking` as a person makes them by hand."""
    for asset in assets:
        for key in [key for key in read(root).cells if key[0] == asset]:
            comparison = read(root)
            make_one(comparison, comparison.cells[key])


def targets(backfill):
    subset = backfill.asset_backfill_data.target_subset
    return {(one.asset_key.path[-1], one.partition_key) for one in subset.iterate_asset_partitions()}


def end(instance, status):
    """The one open backfill ends so."""
    (backfill,) = [one for one in instance.get_backfills() if one.status == BulkActionStatus.REQUESTED]
    instance.update_backfill(backfill.with_status(status))


ALL = "{rebuild: all, node_hours_per_day: 1}"


def test_a_recipe_that_nobody_has_run_is_not_begun(ask, instance):
    assert ask(ALL) == [] and instance.get_backfills() == []


def test_corpus_makes_the_corpus_and_all_makes_all_but_the_promotion(ask, instance, tmp_path):
    write(tmp_path, ALL)
    make(tmp_path, "crawl_archives")
    made = {}
    for automation in ("{rebuild: corpus, node_hours_per_day: 1}", ALL, ALL.replace("1}", "1, promote: true}")):
        ask(automation)
        backfill = instance.get_backfills()[0]
        made[backfill.title] = {asset for asset, _ in targets(backfill)}
        end(instance, BulkActionStatus.COMPLETED_FAILED)
    scopes = ("corpus only", "without promotion", "with promotion")
    corpus, unpromoted, promoted = (made[f"asking: what is missing ({one}, by nightly_rebuild)"] for one in scopes)
    assert {CHAIN[asset].group for asset in corpus} == {"corpus"} and "crawl_archives" not in corpus
    assert "aligned_model" in unpromoted and promoted - unpromoted == {"promoted_model"}


def test_one_backfill_is_open_also_when_what_is_missing_changes(ask, instance, tmp_path):
    write(tmp_path, ALL)
    make(tmp_path, "crawl_archives")
    ask(ALL)
    make(tmp_path, "extracted_documents")
    assert "is open" in ask(ALL)[0] and len(instance.get_backfills()) == 1
    assert instance.get_backfills()[0].tags["pedigree/automation"] == "nightly_rebuild"


def test_what_failed_is_tried_again_after_progress_only_and_what_was_cancelled_is_not(ask, instance, tmp_path):
    write(tmp_path, ALL)
    make(tmp_path, "crawl_archives")
    ask(ALL)
    end(instance, BulkActionStatus.COMPLETED_FAILED)
    assert "nothing" in ask(ALL)[0]
    make(tmp_path, "extracted_documents")
    assert ask(ALL)[0].startswith("added")
    end(instance, BulkActionStatus.CANCELED)
    make(tmp_path, "benchmark_index")
    assert "was cancelled" in ask(ALL)[0] and len(instance.get_backfills()) == 2


def test_what_somebody_makes_now_and_what_waits_for_it_is_left_out(ask, instance, tmp_path):
    write(tmp_path, ALL)
    make(tmp_path, "crawl_archives")
    cell = read(tmp_path).cells["extracted_documents", "asking@kitchen-1"]
    folder = artifact.folder_of(tmp_path, cell.asset, cell.fingerprint)
    with Watching(folder, run_id="terminal"):
        ask(ALL)
    found = targets(instance.get_backfills()[0])
    assert ("extracted_documents", "asking@kitchen-2") in found and ("benchmark_index", "asking") in found
    assert not found & {cell.key, ("tokenizer", "asking"), ("document_scores", "asking@kitchen-1")}


def test_what_a_person_has_asked_dagster_for_is_left_out(ask, instance, tmp_path):
    write(tmp_path, ALL)
    make(tmp_path, "crawl_archives")
    run = dg.DagsterRun(
        job_name="by hand",
        status=dg.DagsterRunStatus.STARTED,
        asset_selection=frozenset({dg.AssetKey("benchmark_index")}),
        tags={"dagster/partition": "asking"},
    )
    instance.add_run(run)
    ask(ALL)
    assert ("benchmark_index", "asking") not in targets(instance.get_backfills()[0])


def test_automation_changes_no_fingerprint(tmp_path):
    for name, path in {path.stem: str(path) for path in RECIPE_FILES if path.stem.startswith("kitchen")}.items():
        recipe = load_recipe(path)
        asked = AutomationRecipe(rebuild="all", promote=True, node_hours_per_day=7)
        found = [
            {key: cell.fingerprint for key, cell in compare(one, tmp_path, skip_unavailable=True).cells.items()}
            for one in (replace(recipe, automation=AutomationRecipe()), replace(recipe, automation=asked))
        ]
        assert found[0] == found[1] and any(found[0].values()), name


def test_a_variant_of_a_recipe_that_asks_for_automation_asks_for_none(tmp_path):
    write(tmp_path, ALL)
    (tmp_path / "recipes" / "variant.yaml").write_text("extends: asking\nname: variant\n")
    assert load_recipe(str(tmp_path / "recipes" / "variant.yaml")).automation == AutomationRecipe()


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"rebuild": "corpus"}, "needs a budget"),
        ({"rebuild": "corpus", "node_hours_per_day": 1.0, "promote": True}, "needs rebuild: all"),
        ({"node_hours_per_day": 1.0}, "leave the budget at 0"),
        ({"rebuild": "all", "node_hours_per_day": float("nan")}, "must be 0 or more"),
    ],
)
def test_an_automation_that_means_nothing_is_refused(written, said):
    with pytest.raises(RecipeError, match=said):
        AutomationRecipe(**written)
