"""The tags of a run: recipe, snapshot and price."""

import dagster as dg
import pytest

from assets.graph.budget import tag_run


@pytest.mark.parametrize(
    ("reused", "price"), [((False, False), "3"), ((True, False), "2"), ((False, True), "1"), ((True, True), None)]
)
def test_the_price_of_a_run_is_that_of_all_that_it_made(reused, price):
    partitions = dg.StaticPartitionsDefinition(["kitchen@kitchen-1"])

    def asset(name: str, metadata: dict[str, object], **more: object) -> dg.AssetsDefinition:
        @dg.asset(name=name, partitions_def=partitions, **more)
        def made(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
            tag_run(context, metadata)
            return dg.MaterializeResult(metadata=metadata)

        return made

    first, second = ({"price": cost, "reused": was} for cost, was in zip((1.0, 2.0), reused, strict=True))
    assets = [asset("crawl_archives", first), asset("extracted_documents", second, deps=["crawl_archives"])]
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize(assets, partition_key="kitchen@kitchen-1", instance=instance)
        tags = instance.get_run_by_id(done.run_id).tags
    named = {name: tags.get(f"pedigree/{name}") for name in ("recipe", "snapshot", "price")}
    assert named == {"recipe": "kitchen", "snapshot": "kitchen-1", "price": price}
