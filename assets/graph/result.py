"""The result of a materialization, and how Dagster shows it: metadata, data version and checks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dagster as dg

from assets.graph.bill import node_hours
from assets.graph.budget import OF_RUN
from assets.graph.evidence import evidence_of, table
from assets.graph.pictures import picture_of
from assets.graph.requested import OTHER_CODE
from assets.registry.numbers import committed_at
from assets.registry.refusal import refusal_by, refusal_sentence
from assets.state.cell import Cell
from assets.state.chain import GUARDS
from training.contract.artifact import Artifact
from training.contract.running import reuse
from training.contract.stage import Asset


@dataclass(frozen=True, kw_only=True)
class Made:
    """The result of materializing a cell.

    It has the artifact, whether it was made or reused, the seconds taken, and the MLflow URL ("" if no run took the
    artifact).
    """

    cell: Cell
    artifact: Artifact
    reused: bool
    seconds: float
    mlflow_url: str
    other_code: tuple[str, ...] = ()  # modules that have changed since a reused artifact was made

    @cached_property
    def record(self) -> dict[str, Any]:
        """The artifact's `artifact.json`."""
        return self.artifact.record


def result_of(declared: Asset, made: Made) -> dg.MaterializeResult:
    """Dagster's result of one materialization: metadata, data version and one check per gate."""
    return dg.MaterializeResult(
        metadata=metadata_of(made),
        data_version=dg.DataVersion(version_of(made.artifact)),
        check_results=verdicts(declared, made),
    )


def verdicts(declared: Asset, made: Made) -> list[dg.AssetCheckResult]:
    """Return the result of one check for each gate of an asset, in the order of the record."""
    places = {gate["name"]: place for place, gate in enumerate(made.record["gates"])}
    names = sorted(declared.stage.gates, key=lambda name: places.get(name, len(places)))
    return [_check(declared, made, name) for name in names]


def version_of(made: Artifact) -> str:
    """Return Dagster's data version of an artifact: its digest or, for a guard, whether its gates passed.

    Otherwise Dagster would call a trained model unsynced after a new scan with the same verdict.
    """
    if made.record["asset"] not in GUARDS:
        return made.digest
    return "refused" if made.failed_gates else "passed"


def _check(declared: Asset, made: Made, name: str) -> dg.AssetCheckResult:
    verdict = next((gate for gate in made.record["gates"] if gate["name"] == name), None)
    if verdict is None:
        return dg.AssetCheckResult(check_name=name, passed=True, metadata={"verdict": "not asked for by this recipe"})
    return dg.AssetCheckResult(
        check_name=name,
        passed=verdict["passed"],
        description=None if verdict["passed"] else refusal_sentence(refusal_by(verdict, made.cell)),
        metadata=evidence_of(verdict["evidence"]),
        severity=dg.AssetCheckSeverity.ERROR,
    )


def metadata_of(made: Made) -> dict[str, Any]:
    """Dagster metadata of a materialization: numbers first (Dagster plots them over time), then links, then hashes.

    Before the numbers of a reused artifact stands for which partition it was made, and when.
    """
    record = made.record
    values: dict[str, Any] = {}
    if made.reused:
        at = dg.MetadataValue.timestamp(committed_at(made.artifact))
        values |= {"reused_from": record["partition"], "made_at": at}
    values |= _count_metadata(record["counts"]) if record["counts"] else {}
    values |= {"reused": made.reused, "seconds": float(record["seconds"])}
    values |= {name: float(record["cost"][name]) for name in ("node_hours", "price") if name in record["cost"]}
    values |= {"attempts_without_end": record["cost"]["least"]} if record["cost"].get("least") else {}
    if rows := record["cost"].get("attempts"):
        values[OF_RUN] = node_hours(row for row in rows if row["run"] == rows[-1]["run"])
    values |= {"reused_ranks": taken} if (taken := reuse.in_words(record)) else {}
    values["bytes"] = sum(entry["bytes"] for entry in record["files"])
    values |= {"dagster/column_schema": schema} if (schema := columns_of(made.artifact)) else {}
    numbers = {name: value for name, value in record["metrics"].items() if value is not None}
    values |= {name: readable(value) for name, value in numbers.items() if name not in values}
    if picture := picture_of(made.artifact):
        values["picture"] = dg.MetadataValue.md(picture)
    values |= {"mlflow_run": dg.MetadataValue.url(made.mlflow_url)} if made.mlflow_url else {}
    report = made.artifact.path / "report.html"
    if report.exists():
        values["report"] = dg.MetadataValue.path(str(report))
    values["folder"] = dg.MetadataValue.path(str(made.artifact.path))
    values["log"] = dg.MetadataValue.path(str(made.artifact.path / "log.txt"))
    found = made.artifact
    values |= {"code": found.record["code"]["digest"]} if "code" in found.record else {}
    values |= {OTHER_CODE: ", ".join(made.other_code)} if made.other_code else {}
    return values | {
        "fingerprint": found.fingerprint,
        "digest": found.digest,
        "record_digest": found.record_digest,
    }


def columns_of(made: Artifact) -> dg.TableSchema | None:
    """The columns of an artifact's first table that holds no dropped records; None if it has no table."""
    tables = [entry["path"] for entry in made.record["files"] if entry["path"].endswith(".parquet")]
    kept = [path for path in tables if not path.startswith("dropped/")]
    if not kept or not (made.path / kept[0]).exists():
        return None
    from pyarrow.parquet import read_schema

    fields = read_schema(made.path / kept[0])
    return dg.TableSchema(
        [
            dg.TableColumn(one.name, str(one.type), constraints=dg.TableColumnConstraints(nullable=one.nullable))
            for one in fields
        ]
    )


def readable(value: float) -> dg.FloatMetadataValue:
    """Round a metric to six significant digits, for people and plots; the record keeps all digits."""
    return dg.MetadataValue.float(value if value.is_integer() else float(f"{value:.6g}"))


def _count_metadata(counts: dict[str, Any]) -> dict[str, Any]:
    dropped, quarantined = sum(counts["dropped"].values()), sum(counts["quarantined"].values())
    # Numbers first, and rules without their single reasons or the word `dropped`: at 1,280 pixels the page cuts off
    # what is longer than 24 characters. The check `counts_balance` lists all reasons.
    rows: list[dict[str, Any]] = [{"number": counts[name], "records": name} for name in ("in", "kept")]
    for kind, note in (("dropped", ""), ("quarantined", ", quarantined")):
        lost: Counter[str] = Counter()
        for reason, number in counts[kind].items():
            lost[reason.partition(":")[0]] += number
        rows += [{"number": number, "records": f"{rule}{note}"} for rule, number in lost.most_common()]
    return {
        "dagster/row_count": counts["kept"],
        "records_in": counts["in"],
        "dropped": dropped,
        "quarantined": quarantined,
        "kept_fraction": round(counts["kept"] / counts["in"], 4) if counts["in"] else 0.0,
        "funnel": table(rows),
    }
