"""A model's bill of materials as an SPDX 3.0.1 document with the profiles AI and Dataset, in JSON-LD.

https://spdx.github.io/spdx-spec/v3.0.1. The names of elements follow from the model's digest. SPDX asks for a time of
creation: it is the time of the export, which the caller gives.
"""

from __future__ import annotations

from typing import Any

from evaluation.hub.forms.bill import LIMITS, ModelBill, package_url

FILE = "bom.spdx.json"
CONTEXT = "https://spdx.org/rdf/3.0.1/spdx-context.jsonld"
CREATION = "_:creation"
PROFILES = ["core", "software", "ai", "dataset", "simpleLicensing"]


def document_of(bill: ModelBill, created: str) -> dict[str, Any]:
    """Return the bill as an SPDX document. `created` is the time of the export, YYYY-MM-DDThh:mm:ssZ."""
    space = f"urn:pedigree:{bill.digest}:"
    agent = {"type": "Organization", "spdxId": f"{space}supplier", "name": bill.supplier or "not stated"}
    model = _model(bill, space)
    data = [_data(place, bill, space) for place in range(len(bill.datasets))]
    files = [_file(name, sha256, place, space) for place, (name, sha256) in enumerate(bill.files.items())]
    libraries = [_library(name, version, space) for name, version in bill.libraries.items()]
    licences: list[dict[str, Any]] = []
    related = {"trainedOn": data, "contains": files, "dependsOn": libraries}
    if bill.licence:
        licences = [
            {
                "type": "simplelicensing_LicenseExpression",
                "spdxId": f"{space}licence",
                "simplelicensing_licenseExpression": bill.licence,
            }
        ]
        related["hasDeclaredLicense"] = licences
    elements = [agent, model, *data, *files, *libraries, *licences]
    elements += [_relationship(kind, space, to) for kind, to in related.items() if to]
    document = {
        "type": "SpdxDocument",
        "spdxId": f"{space}document",
        "name": bill.name,
        "profileConformance": PROFILES,
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
    return {
        "type": "dataset_DatasetPackage",
        "spdxId": f"{space}data-{place}",
        "name": one.name,
        "software_primaryPurpose": "data",
        "dataset_datasetType": ["text"],
        "dataset_dataCollectionProcess": f"source {one.kind}",
        "description": one.sentence,
        "comment": f"artifact with the digest {one.digest} over its files",
    }


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
