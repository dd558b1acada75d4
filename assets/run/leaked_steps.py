"""Find the training steps that see the pages which a gate found benchmark items in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assets.state.cell import Comparison
from training.contract.job import DataError, RefusedInput
from training.data.checksum_cache import known_under
from training.provenance.lineage import lineage_of, planned_of, trainings_of
from training.provenance.trace import Tracer

PLANNED = {"base_model": "training_plan", "long_context_model": "long_context_plan"}


def with_steps(refusal: Mapping[str, Any], comparison: Comparison) -> dict[str, Any]:
    """Return a refusal with the steps that see each page among its findings, as `seen` of the finding.

    Before a training, they are the steps of its plan. If they cannot be computed, `steps_not_known` of the evidence
    says why.
    """
    evidence = dict(refusal["evidence"])
    findings = evidence.get("findings", ())
    if any(map(_is_page, findings)):
        try:
            with known_under(comparison.root):
                tracer = _tracer(comparison)
                evidence["findings"] = [{**one, **_seen(tracer, one)} for one in findings]
        except (DataError, RefusedInput) as error:
            evidence["steps_not_known"] = str(error)
    return {**refusal, "evidence": evidence}


def _is_page(finding: Mapping[str, Any]) -> bool:
    return "warc_offset" in finding and "document" in finding


def _tracer(comparison: Comparison) -> Tracer:
    """Return a tracer for a recipe's trainings, and for its plans by which nothing was trained yet."""
    made = []
    for names in PLANNED.items():
        cells = [comparison.cells.get((name, comparison.recipe.name)) for name in names]
        made += [cell.artifact for cell in cells if cell is not None and cell.artifact is not None][:1]
    if not made:
        raise DataError("training_plan is not made, so no step sees them yet")
    lineage = lineage_of(comparison.root, *made)
    tracer = Tracer(lineage)
    tracer.trainings = [*trainings_of(lineage), *planned_of(lineage)]
    return tracer


def _seen(tracer: Tracer, finding: Mapping[str, Any]) -> dict[str, Any]:
    """Return, for a page, the steps of each training that see it; nothing for a row of post-training."""
    if not _is_page(finding):
        return {}
    seen = [one for page in tracer.document(finding["document"])["pages"] for one in page["seen"]]
    return {"seen": [{"training": one["training"], "held_out": one["held_out"], "steps": _steps(one)} for one in seen]}


def _steps(seen: Mapping[str, Any]) -> list[int]:
    return sorted({one["step"] for one in seen["steps"] if not one["skipped"]})
