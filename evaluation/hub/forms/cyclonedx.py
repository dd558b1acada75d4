"""A model's bill of materials in CycloneDX's form for machine learning (ML-BOM), version 1.6.

https://cyclonedx.org/docs/1.6/json. The model is the subject, with its model card; data sets, files and libraries are
components that it depends on. There is no time in it, and the serial number follows from the model's digest.
"""

from __future__ import annotations

import uuid
from typing import Any

from evaluation.hub.forms.bill import LIMITS, ModelBill, package_url

FILE = "bom.cdx.json"
GRAMS_PER_TON = 1e6


def document_of(bill: ModelBill) -> dict[str, Any]:
    """Return the bill as a CycloneDX document."""
    data = [_data(place, bill) for place in range(len(bill.datasets))]
    files = [_file(name, sha256) for name, sha256 in bill.files.items()]
    libraries = [_library(name, version) for name, version in bill.libraries.items()]
    components = [*data, *files, *libraries]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.UUID(bill.digest[:32])}",
        "version": 1,
        "metadata": {"component": _model(bill, [one["bom-ref"] for one in data])},
        "components": components,
        "dependencies": [{"ref": "model", "dependsOn": [one["bom-ref"] for one in components]}],
    }


def _model(bill: ModelBill, datasets: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": bill.name,
        "version": bill.version,
        "description": bill.description,
        "properties": [
            {"name": "pedigree:asset", "value": bill.asset},
            {"name": "pedigree:digest", "value": bill.digest},
            *({"name": f"pedigree:{name}", "value": value} for name, value in bill.settings.items()),
        ],
        "modelCard": {
            "modelParameters": {
                "approach": {"type": bill.approach},
                "task": "text-generation",
                "architectureFamily": "transformer",
                "modelArchitecture": bill.architecture,
                "datasets": [{"ref": ref} for ref in datasets],
                "inputs": [{"format": "text"}],
                "outputs": [{"format": "text"}],
            },
            "quantitativeAnalysis": {"performanceMetrics": [_metric(one) for one in bill.scores]},
            "considerations": {"technicalLimitations": [LIMITS], **_energy(bill)},
        },
    }
    if bill.licence:
        found["licenses"] = [{"expression": bill.licence}]
    if bill.supplier:
        found["supplier"] = {"name": bill.supplier, **({"url": [bill.url]} if bill.url else {})}
    if bill.base:
        found["pedigree"] = {"ancestors": [{"type": "machine-learning-model", "name": bill.base}]}
    return found


def _energy(bill: ModelBill) -> dict[str, Any]:
    """Return the measured energy with its emissions; empty without a measurement. CycloneDX asks who delivered it."""
    if bill.kilowatt_hours is None:
        return {}
    cost = {"value": bill.kilowatt_hours, "unit": "kWh"}
    by = {"organization": {"name": "not stated"}, "energySource": "unknown", "energyProvided": cost}
    used: dict[str, Any] = {"activity": "training", "energyProviders": [by], "activityEnergyCost": cost}
    if bill.emissions_grams is not None:
        used["co2CostEquivalent"] = {"value": bill.emissions_grams / GRAMS_PER_TON, "unit": "tCO2eq"}
    return {"environmentalConsiderations": {"energyConsumptions": [used]}}


def _metric(score: Any) -> dict[str, Any]:
    return {
        "type": score.metric,
        "value": str(score.value),
        "slice": f"{score.suite}, {score.items} items",
        "confidenceInterval": {"lowerBound": str(score.low), "upperBound": str(score.high)},
    }


def _data(place: int, bill: ModelBill) -> dict[str, Any]:
    one = bill.datasets[place]
    properties = [{"name": "pedigree:digest", "value": one.digest}, {"name": "pedigree:source", "value": one.kind}]
    return {
        "type": "data",
        "bom-ref": f"data-{place}",
        "name": one.name,
        "data": [{"type": "dataset", "name": one.name, "description": one.sentence}],
        "properties": properties,
    }


def _file(name: str, sha256: str) -> dict[str, Any]:
    return {
        "type": "file",
        "bom-ref": f"file-{name}",
        "name": name,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
    }


def _library(name: str, version: str) -> dict[str, Any]:
    purl = package_url(name, version)
    if purl is None:
        return {"type": "file", "bom-ref": f"list-{name}", "name": name, "version": version}
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
