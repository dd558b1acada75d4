"""A model's bill of materials as an SPDX 3.0.1 document with the profiles AI and Dataset, in JSON-LD.

https://spdx.github.io/spdx-spec/v3.0.1. The names of elements follow from the model's digest. SPDX asks for a time of
creation: it is the time of the export, which the caller gives. The declared licence is the provider's; nobody concluded
one.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from evaluation.hub.forms.bill import LIMITS, ModelBill, package_url

FILE = "bom.spdx.json"
CONTEXT = "https://spdx.org/rdf/3.0.1/spdx-context.jsonld"
CREATION = "_:creation"
PROFILES = ["core", "software", "simpleLicensing"]
NEEDED = {  # what two more profiles ask of every package of their class; a profile that lacks one of these is not named
    "ai": ("ai_AIPackage", ("suppliedBy", "releaseTime", "software_downloadLocation")),
    "dataset": ("dataset_DatasetPackage", ("originatedBy", "builtTime", "releaseTime", "software_downloadLocation")),
}
NO_LICENCE = {"spdxId": "expandedlicensing_NoAssertionLicense"}


def document_of(bill: ModelBill, created: str) -> dict[str, Any]:
    """Return the bill as an SPDX document. `created` is the time of the export, YYYY-MM-DDThh:mm:ssZ."""
    space = f"urn:pedigree:{bill.digest}:"
    agent = {"type": "Organization", "spdxId": f"{space}supplier", "name": bill.supplier or "not stated"}
    model = _model(bill, space) | {"releaseTime": created}
    if bill.supplier:
        model["suppliedBy"] = agent["spdxId"]
    operators = {one.operator: _operator(one.operator, space) for one in bill.datasets if one.operator}
    data = [_data(place, bill, space) for place in range(len(bill.datasets))]
    files = [_file(name, sha256, place, space) for place, (name, sha256) in enumerate(bill.files.items())]
    libraries = [_library(name, version, space) for name, version in bill.libraries.items()]
    licences = [_licence(bill.licence, space)] if bill.licence else []
    related = {"trainedOn": data, "contains": files, "dependsOn": libraries}
    related |= {"hasDeclaredLicense": licences or [NO_LICENCE], "hasConcludedLicense": [NO_LICENCE]}
    elements = [agent, *operators.values(), model, *data, *files, *libraries, *licences]
    elements += [_relationship(kind, space, to) for kind, to in related.items() if to]
    document = {
        "type": "SpdxDocument",
        "spdxId": f"{space}document",
        "name": bill.name,
        "profileConformance": [*PROFILES, *(name for name in NEEDED if _conforms(name, elements))],
        "rootElement": [model["spdxId"]],
        "element": [one["spdxId"] for one in elements],
    }
    creation = {
        "type": "CreationInfo",
        "@id": CREATION,
        "specVersion": "3.0.1",
        "created": created,
        "createdBy": [agent["spdxId"]],
    }
    return {
        "@context": CONTEXT,
        "@graph": [creation, *({"creationInfo": CREATION, **one} for one in (document, *elements))],
    }


def _conforms(profile: str, elements: list[dict[str, Any]]) -> bool:
    kind, needed = NEEDED[profile]
    packages = [one for one in elements if one["type"] == kind]
    return bool(packages) and all(name in one for one in packages for name in needed)


def _licence(expression: str, space: str) -> dict[str, Any]:
    kind = "simplelicensing_LicenseExpression"
    return {"type": kind, "spdxId": f"{space}licence", "simplelicensing_licenseExpression": expression}


def _operator(name: str, space: str) -> dict[str, Any]:
    return {"type": "Agent", "spdxId": f"{space}operator-{sha256(name.encode()).hexdigest()[:12]}", "name": name}


def _model(bill: ModelBill, space: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "ai_AIPackage",
        "spdxId": f"{space}model",
        "name": bill.name,
        "software_packageVersion": bill.version,
        "software_primaryPurpose": "model",
        "ai_typeOfModel": ["transformer", bill.architecture],
        "ai_domain": ["text generation"],
        "ai_limitation": LIMITS,
        "ai_hyperparameter": [_entry(name, value) for name, value in bill.settings.items()],
        "ai_modelDataPreprocessing": list(bill.steps),
        "ai_metric": [_entry(f"{one.suite} ({one.metric}), {one.items} items", str(one.value)) for one in bill.scores],
        "verifiedUsing": [],
        "comment": f"{bill.asset} with the digest {bill.digest} over its files",
    }
    if bill.description:
        found["description"] = bill.description
    if bill.url:
        found["software_downloadLocation"] = bill.url
    if bill.kilowatt_hours is not None:
        used = {"ai_energyQuantity": bill.kilowatt_hours, "ai_energyUnit": "kilowattHour"}
        spent = {"type": "ai_EnergyConsumptionDescription", **used}
        found["ai_energyConsumption"] = {"type": "ai_EnergyConsumption", "ai_trainingEnergyConsumption": [spent]}
    if bill.base:
        found["ai_informationAboutTraining"] = f"The weights begin with those of {bill.base}."
    return {name: value for name, value in found.items() if value != []}


def _entry(key: str, value: str) -> dict[str, str]:
    return {"type": "DictionaryEntry", "key": key, "value": value}


def _data(place: int, bill: ModelBill, space: str) -> dict[str, Any]:
    one = bill.datasets[place]
    found: dict[str, Any] = {
        "type": "dataset_DatasetPackage",
        "spdxId": f"{space}data-{place}",
        "name": one.name,
        "software_primaryPurpose": "data",
        "dataset_datasetType": ["text"],
        "dataset_dataCollectionProcess": "; ".join(filter(None, (f"source {one.kind}", one.collected))),
        "description": one.sentence,
        "comment": f"artifact with the digest {one.digest} over its files",
    }
    if one.operator:
        found["originatedBy"] = [_operator(one.operator, space)["spdxId"]]
    if one.last_day:
        found["builtTime"] = f"{one.last_day}T00:00:00Z"
    return found


def _file(name: str, sha256: str, place: int, space: str) -> dict[str, Any]:
    checksum = {"type": "Hash", "algorithm": "sha256", "hashValue": sha256}
    return {"type": "software_File", "spdxId": f"{space}file-{place}", "name": name, "verifiedUsing": [checksum]}


def _library(name: str, version: str, space: str) -> dict[str, Any]:
    purl = package_url(name, version)
    return {
        "type": "software_Package",
        "spdxId": f"{space}library-{name}",
        "name": name,
        "software_packageVersion": version,
        **({"software_packageUrl": purl} if purl else {}),
    }


def _relationship(kind: str, space: str, to: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "type": "Relationship",
        "spdxId": f"{space}{kind}",
        "from": f"{space}model",
        "relationshipType": kind,
        "to": [one["spdxId"] for one in to],
    }
