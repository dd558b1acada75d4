from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from dagster._serdes import serialize_value

from assets.definitions import definitions
from assets.graph.declare import TRAINING_POOL
from assets.state.chain import CHAIN, GROUPS
from assets.state.recipe_folders import SHIPPED, load_recipe
from tests.examples import EXAMPLES, example
from training.contract.scopes import WHOLE

GRAPH = Path(__file__).with_name("graph.json")


@pytest.fixture(scope="module")
def defs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEDIGREE_RECIPES", f"{EXAMPLES}:{SHIPPED}")  # the examples have every optional section
        return definitions(tmp_path_factory.mktemp("root"), "local")


def graph_of(defs):
    """Keys, groups, kinds, dependencies, partitions' kind and gates: what must not change by accident."""
    graph = defs.resolve_asset_graph()
    result = {}
    for key in sorted(graph.materializable_asset_keys, key=str):
        node = graph.get(key)
        result[key.to_user_string()] = {
            "group": node.group_name,
            "kinds": sorted(node.kinds),
            "inputs": sorted(parent.to_user_string() for parent in node.parent_keys),
            "gates": sorted(check.name for check in node.check_keys),
            "scope": CHAIN[key.path[-1]].scope,
            "sections": list(CHAIN[key.path[-1]].sections),
        }
    return result


def test_the_graph_is_the_recorded_one(defs):
    assert graph_of(defs) == json.loads(GRAPH.read_text())


def test_no_asset_reads_one_of_a_later_group():
    assert {one.group for one in CHAIN.values()} == set(GROUPS)
    for one in CHAIN.values():
        for item in (*one.inputs, *one.guards):
            assert GROUPS.index(CHAIN[item.asset].group) <= GROUPS.index(one.group), f"{one.name} reads {item.asset}"


def test_every_asset_says_what_it_is_for_the_person_looking_at_the_graph(defs):
    graph = defs.resolve_asset_graph()
    for name in CHAIN:
        node = next(graph.get(key) for key in graph.materializable_asset_keys if key.path[-1] == name)
        assert node.description and node.code_version and node.group_name and node.kinds and node.owners
        (source,) = node.metadata["dagster/code_references"].code_references
        assert Path(source.file_path).is_file() and source.label == CHAIN[name].stage.module


def test_one_entry_of_the_chain_is_an_asset(tmp_path, monkeypatch):
    stage = replace(CHAIN["token_shards"].stage, gates=("shards_decode",))
    declared = replace(CHAIN["token_shards"], name="second_shards", description="The same again.", stage=stage)
    monkeypatch.setitem(CHAIN, declared.name, declared)
    node = definitions(tmp_path, "local").resolve_asset_graph().get(dg.AssetKey(declared.name))
    assert node.is_executable and node.description == "The same again.\n\nMade by training.data.tokens.tokenize."
    assert {key.to_user_string() for key in node.parent_keys} == {
        "decontaminated_documents",
        "tokenizer",
        "recipes",
    }
    assert "kitchen@kitchen-1" in node.partitions_def.get_partition_keys()
    assert [key.name for key in node.check_keys] == ["shards_decode"]


def test_each_check_has_the_partitions_of_its_asset_and_says_what_it_asks(defs):
    graph = defs.resolve_asset_graph()
    checks = [graph.get(key) for key in graph.asset_check_keys]
    assert len(checks) == sum(len(one.stage.gates) for one in CHAIN.values())
    for check in checks:
        assert check.partitions_def == graph.get(check.key.asset_key).partitions_def and check.blocking
        assert check.description, f"assets/graph/checks.py: ASKS lacks {check.key.name}"


def test_only_trainings_wait_for_each_other(defs):
    pools = {one.key.path[-1]: one.op.pool for one in defs.assets if isinstance(one, dg.AssetsDefinition)}
    trained = {*WHOLE, "base_model", "long_context_model", "ladder_model", "reference_model", "sft_model"}
    assert {name for name, pool in pools.items() if pool == TRAINING_POOL} == {
        *trained,
        "reward_model",
        "aligned_model",
    }
    assert {pool for pool in pools.values() if pool} == {TRAINING_POOL}


def test_partitions_are_what_recipes_name_and_nothing_else(defs):
    graph = defs.resolve_asset_graph()
    keys = {
        key.path[-1]: set(graph.get(key).partitions_def.get_partition_keys()) for key in graph.materializable_asset_keys
    }
    kitchen = load_recipe("kitchen")
    assert {key for key in keys["crawl_archives"] if key.startswith("kitchen@")} == {
        f"kitchen@{snapshot.name}" for snapshot in kitchen.snapshots
    }
    assert {"kitchen", "kitchen-rl", "kitchen-leak"} <= keys["base_model"]
    rungs = example("kitchen-ladder").ladder.rungs
    assert keys["ladder_model"] == {f"kitchen-ladder@{rung.name}" for rung in rungs}
    assert keys["scaling_fit"] == {"kitchen-ladder"}
    assert keys["mixture_weights"] == {"kitchen-mixture"}


def test_dedup_reads_earlier_snapshots_and_not_later_ones(defs):
    graph = defs.resolve_asset_graph()
    asset = graph.get(dg.AssetKey("deduplicated_documents"))
    mapping = asset.partition_mappings[dg.AssetKey("document_signatures")]
    upstream = graph.get(dg.AssetKey("document_signatures")).partitions_def

    def read_by(partition):
        subset = asset.partitions_def.empty_subset().with_partition_keys([partition])
        with dg.DagsterInstance.ephemeral() as instance:
            found = mapping.get_upstream_mapped_partitions_result_for_partitions(
                subset, asset.partitions_def, upstream, dynamic_partitions_store=instance
            )
        return set(found.partitions_subset.get_partition_keys())

    assert read_by("kitchen@kitchen-1") == {"kitchen@kitchen-1"}
    assert read_by("kitchen@kitchen-2") == {"kitchen@kitchen-1", "kitchen@kitchen-2"}


def test_mappings_pass_dagster_s_own_checks_and_are_stored_and_answer_as_its_own(defs):
    graph = defs.resolve_asset_graph()
    edges = [
        (graph.get(key).partitions_def, graph.get(parent).partitions_def, mapping)
        for key in graph.materializable_asset_keys
        for parent, mapping in graph.get(key).partition_mappings.items()
        if isinstance(mapping, dg.StaticPartitionMapping)
    ]
    assert len(edges) > len(CHAIN)
    for here, upstream, mapping in edges:
        own = dg.StaticPartitionMapping(*mapping)
        own.validate_partition_mapping(upstream, here)
        assert serialize_value(mapping) == serialize_value(own)
        down, up = here.subset_with_all_partitions(), upstream.subset_with_all_partitions()
        answers = [
            (
                one.get_downstream_partitions_for_partitions(up, upstream, here),
                one.get_upstream_mapped_partitions_result_for_partitions(down, here, upstream).partitions_subset,
            )
            for one in (mapping, own)
        ]
        assert answers[0] == answers[1]


def test_automation_is_off_until_somebody_switches_it_on(defs):
    launching = [sensor for sensor in defs.sensors if sensor.targets or sensor.asset_selection]
    assert [sensor.default_status for sensor in launching] == [dg.DefaultSensorStatus.STOPPED]
    assert {sensor.name for sensor in defs.sensors} - {sensor.name for sensor in launching} == {
        "asked_settings",
        "failed_runs",
        "shared_artifacts",
    }
    assert [schedule.default_status for schedule in defs.schedules] == [dg.DefaultScheduleStatus.STOPPED]


def test_loading_the_code_location_and_comparing_a_recipe_import_no_library_of_a_stage(tmp_path):
    forbidden = [
        "torch",
        "datatrove",
        "transformers",
        "trl",
        "peft",
        "lm_eval",
        "mlflow",
        "datasets",
        "pyarrow",
        "numpy",
    ]
    script = (
        "import sys, pathlib, assets.definitions; from assets.state.recipe_folders import SHIPPED, load_recipe\n"
        "assets.state.compare.compare(load_recipe('kitchen'), pathlib.Path(sys.argv[1]))\n"
        f"print([name for name in {forbidden} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_broken_recipe_file_takes_only_itself_from_the_code_location(tmp_path, caplog):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "broken.yaml").write_text("name: broken\nsnapshot: []\n")
    loaded = definitions(tmp_path, "local")
    assert "broken.yaml: " in caplog.text and "did you mean `snapshots`?" in caplog.text
    graph = loaded.resolve_asset_graph()
    key = next(key for key in graph.materializable_asset_keys if key.path[-1] == "base_model")
    assert "kitchen" in graph.get(key).partitions_def.get_partition_keys()
