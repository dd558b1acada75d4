"""The forms that other tools read are valid by their publishers' own schemas, and hold what the records say."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import io
import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from evaluation.hub.forms import croissant, cyclonedx, spdx
from evaluation.hub.forms.bill import DataSet, ModelBill, SuiteScore
from evaluation.hub.repository import FINEWEB_SCHEMA
from training.contract.artifact import sha256_of
from training.recipe.settings.provider import ProviderRecipe

DIGEST = "3182f584bbfe0bf2545127d4a93cc5de58ef95ed1ce3cb36128dee7485b80d49"
BILL = ModelBill(
    name="tiny",
    version="2",
    description="A tiny model.",
    asset="sft_model",
    digest=DIGEST,
    licence="Apache-2.0",
    supplier="Example <Models>",
    url="https://models.example/tiny",
    architecture="Qwen3ForCausalLM",
    approach="supervised",
    base="Other 7B r1",
    files={"config.json": "0" * 64, "model.safetensors": "f" * 64},
    libraries={"torch": "2.13.0+cpu", "numpy": "2.4.6"},
    settings={"sft.epochs": "2.0"},
    datasets=[
        DataSet(
            "may", DIGEST, "58 of 108 pages, 900 tokens read", "warc", "crawler: pot 1", "Kitchen crawler", "2026-05-31"
        ),
        DataSet("rows, sft_model", DIGEST, "22 rows read", "rows"),
    ],
    scores=[SuiteScore("cloze", "acc", 0.328125, 0.2257, 0.45, 64)],
    steps=["filtered_documents: stage filter, version 3"],
    kilowatt_hours=0.0125,
    emissions_grams=4.5,
)
BARE = dataclasses.replace(
    BILL,
    **dict.fromkeys(("licence", "supplier", "url", "base", "description"), ""),
    **dict.fromkeys(("kilowatt_hours", "emissions_grams")),
    datasets=[],
    scores=[],
    settings={},
)
NOW = "2026-01-02T03:04:05Z"


@pytest.fixture
def is_cyclonedx():
    version = pytest.importorskip("cyclonedx.schema", reason="make env installs it").SchemaVersion.V1_6
    validator = pytest.importorskip("cyclonedx.validation.json").JsonStrictValidator(version)
    return lambda document: validator.validate_str(json.dumps(document)) is None


@pytest.fixture
def read_spdx():
    model = pytest.importorskip("spdx_python_model", reason="make env installs it").v3_0_1

    def read(document):
        """The objects of a document; writing them again checks that no required property is missing."""
        objects = model.SHACLObjectSet()
        model.JSONLDDeserializer().read(io.BytesIO(json.dumps(document).encode()), objects)
        model.JSONLDSerializer().write(objects, io.BytesIO())
        assert not objects.missing_ids
        return {one.get_type().rpartition("/")[2]: one for one in objects.foreach()}

    return read


@pytest.mark.parametrize("bill", [BILL, BARE, dataclasses.replace(BILL, licence="MIT OR LicenseRef-own")])
def test_a_bill_is_a_cyclonedx_document(bill, is_cyclonedx):
    document = cyclonedx.document_of(bill)
    assert is_cyclonedx(document)
    assert not is_cyclonedx({**document, "serialNumber": "one"})  # the schema was asked
    names = {one["name"] for one in document["components"]}
    assert names == {one.name for one in bill.datasets} | bill.files.keys() | bill.libraries.keys()


@pytest.mark.parametrize("bill", [BILL, BARE])
def test_a_bill_is_an_spdx_document(bill, read_spdx):
    document = spdx.document_of(bill, NOW)
    read = read_spdx(document)
    assert read["AIPackage"].name == "tiny" and len(read["AIPackage"].ai_metric) == len(bill.scores)
    assert ("DatasetPackage" in read) == bool(bill.datasets)
    spent = read["AIPackage"].ai_energyConsumption
    used = [one.ai_energyQuantity for one in spent.ai_trainingEnergyConsumption] if spent else []
    assert used == ([] if bill.kilowatt_hours is None else [bill.kilowatt_hours])
    ours, named = spdx.NEEDED.keys(), {str(one).rpartition("/")[2] for one in read["SpdxDocument"].profileConformance}
    # Of data nobody says from where a copy could be got: a profile is named only where it has all that it asks for.
    assert ours & named == ({"ai"} if bill is BILL else set())
    broken = copy.deepcopy(document)
    del broken["@graph"][0]["created"]
    with pytest.raises(ValueError, match="created"):
        read_spdx(broken)


def test_a_bill_says_what_the_records_say():
    model = cyclonedx.document_of(BILL)["metadata"]["component"]
    (metric,) = model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert (metric["value"], metric["slice"]) == ("0.328125", "cloze, 64 items")
    assert model["licenses"] == [{"expression": "Apache-2.0"}]
    (energy,) = model["modelCard"]["considerations"]["environmentalConsiderations"]["energyConsumptions"]
    assert energy["activityEnergyCost"]["value"] == 0.0125 and energy["co2CostEquivalent"]["value"] == 4.5e-6
    bare = cyclonedx.document_of(BARE)["metadata"]["component"]
    assert "licenses" not in bare and "environmentalConsiderations" not in bare["modelCard"]["considerations"]
    graph = spdx.document_of(BILL, NOW)["@graph"]
    kinds = {one["relationshipType"]: len(one["to"]) for one in graph if one["type"] == "Relationship"}
    licences = {"hasDeclaredLicense": 1, "hasConcludedLicense": 1}
    assert kinds == {"trainedOn": 2, "contains": 2, "dependsOn": 2, **licences}
    assert spdx.document_of(BILL, NOW) == spdx.document_of(BILL, NOW)


# In a process of its own: mlcroissant brings a library that writes all that is logged to what was standard error then.
READ = """
import json, sys
import mlcroissant
try:
    corpus = mlcroissant.Dataset(sys.argv[1])
except mlcroissant.ValidationError:
    sys.exit(7)
texts = sorted(one["pages/text"].decode() for one in corpus.records("pages"))
print(json.dumps([list(corpus.metadata.issues.errors), texts]))
"""


def test_a_corpus_is_read_by_its_description(tmp_path):
    if importlib.util.find_spec("mlcroissant") is None:
        pytest.skip("make env installs mlcroissant")
    names = ("data/may/0.parquet", "data/june/0.parquet")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True)
        row = {"text": [name], "id": ["a"], "dump": ["may"], "url": [""], "date": [""], "file_path": ["f"]}
        row |= {"language": ["en"], "language_score": [0.5], "token_count": [3]}
        pq.write_table(FINEWEB_SCHEMA.empty_table().from_pydict(row, schema=FINEWEB_SCHEMA), tmp_path / name)
    files = {name: ((tmp_path / name).stat().st_size, sha256_of(tmp_path / name)) for name in names}
    stated = ProviderRecipe(name="Example", corpus_licence="ODC-By-1.0", url="https://models.example")
    document = croissant.document_of(
        "corpus", "Pages.", files, FINEWEB_SCHEMA, stated, digests=[DIGEST], day="2026-01-02"
    )
    assert (document["license"], document["creator"]["name"]) == ("ODC-By-1.0", "Example")
    assert read_by_mlcroissant(tmp_path, document) == (0, [[], sorted(names)])
    document["recordSet"][0]["field"][0]["source"]["fileSet"]["@id"] = "nothing"
    assert read_by_mlcroissant(tmp_path, document) == (7, None)


def read_by_mlcroissant(folder, document):
    """Return the exit code, and the errors and the texts of the pages."""
    (folder / croissant.FILE).write_text(json.dumps(document))
    command = [sys.executable, "-c", READ, str(folder / croissant.FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]) if done.stdout else None
