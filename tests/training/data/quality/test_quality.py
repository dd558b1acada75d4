import json

import pytest

from tests.training.data import chain
from training.contract.job import DataError
from training.contract.records import RecipeError
from training.data.kitchen.settings import KitchenWorld
from training.data.quality.arpa import write_arpa
from training.data.quality.perplexity import train
from training.data.quality.quality import load_models, page_sized
from training.data.quality.settings import LabelledRecipe, NgramFileRecipe, QualityRecipe, ToxicityRecipe
from training.data.sources import read_rows
from training.data.words.language import model_path

REFERENCE = [
    f"In chapter {n} the author explains how the dough is kneaded, why it rests, and what the heat does to it."
    for n in range(40)
]
CRAWL = [
    f"Best deal number {n}: buy cheap pans now and save money, click here for free shipping today." for n in range(60)
]
GERMAN = [
    f"Im Kapitel {n} erklärt der Verfasser, wie der Teig geknetet wird und warum er ruhen muss." for n in range(60)
]


def write_reference(folder, texts=REFERENCE, field="text"):
    path = folder / "reference.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts), "utf-8")
    return str(path)


def make(root, files=(CRAWL,), **fields):
    recipe = QualityRecipe(**{"snapshots": ("s1",), "classifier_buckets": 4096, "negatives": 40} | fields)
    extracted = chain.documents(root, "s1", files, asset="extracted_documents")
    return chain.run(root, "quality", "quality_models", "tiny", {"quality": recipe}, [extracted])


def test_models_tell_reference_from_crawl(tmp_path):
    made = make(tmp_path, reference=(write_reference(tmp_path),))
    record = made.record()
    assert record["metrics"]["classifier_auc"] == 1.0
    assert record["metrics"]["reference_texts"] == 40 and record["metrics"]["negative_texts"] == 40
    assert record["metrics"]["held_out_reference_perplexity"] < record["metrics"]["crawl_perplexity"]
    models = load_models(made)
    assert models.classifier.score(REFERENCE[0]) > 0.8 > 0.2 > models.classifier.score(CRAWL[0])
    assert models.ngrams[""].bucket(0.0) == "head" and models.ngrams[""].bucket(float("inf")) == "tail"


def test_buckets_part_the_crawl_in_three(tmp_path):
    crawl = [" ".join([*REFERENCE[n].split()[: 24 - n % 20], *["quux"] * (n % 20)]) for n in range(40)]
    made = make(tmp_path, files=(crawl,), reference=(write_reference(tmp_path),), min_auc=0.0)
    models = load_models(made)
    buckets = [models.perplexity(text, "en")[1] for text in crawl]
    assert min(buckets.count(bucket) for bucket in ("head", "middle", "tail")) >= 10


def test_each_named_language_has_a_model_and_buckets_of_its_own(tmp_path):
    reference = write_reference(tmp_path, [*REFERENCE, *(f"{text} Sehr ausführlich und gut." for text in GERMAN[:30])])
    made = make(tmp_path, files=(CRAWL, GERMAN), reference=(reference,), ngram_languages=("en", "de"), min_auc=0.0)
    models = load_models(made)
    assert set(models.ngrams) == {"en", "de"}
    assert models.perplexity(GERMAN[40], "de")[0] < models.perplexity(GERMAN[40], "en")[0]
    limits = [models.ngrams[code].bucket_limits for code in ("en", "de")]
    assert limits[0][0] > limits[1][1]  # the German pages are like their reference, the English ones are not
    value, bucket = models.perplexity(GERMAN[40], "fr")
    assert value != value and bucket is None  # not a number, so no limit drops it
    with pytest.raises(RecipeError, match=r"0 reference texts .*'fr'"):
        make(tmp_path / "other", files=(CRAWL, GERMAN), reference=(reference,), ngram_languages=("fr",))


def test_a_fasttext_model_stands_in_for_the_classifier_and_is_measured(tmp_path):
    # the one that this environment has tells languages, so `English` is what it takes for good
    model = {"classifier_model": str(model_path()), "classifier_label": "__label__en"}
    made = make(tmp_path, reference=(write_reference(tmp_path),), min_auc=0.0, **model)
    assert 0.0 <= made.record()["metrics"]["classifier_auc"] <= 1.0
    models = load_models(made)
    assert models.classifier.score(REFERENCE[0]) > 0.8 > 0.2 > models.classifier.score(GERMAN[0])
    assert models.classifier.score(" ") == 0.0
    model["classifier_label"] = "__label__hq"
    with pytest.raises(DataError, match="'__label__hq'"):
        make(tmp_path / "other", reference=(write_reference(tmp_path),), **model)
    with pytest.raises(RecipeError, match="without effect"):
        QualityRecipe(**model)


def test_a_classifier_that_cannot_tell_fails_its_gate(tmp_path):
    made = make(
        tmp_path, files=(REFERENCE,), reference=(write_reference(tmp_path),), held_out_fraction=0.5, min_auc=0.9
    )
    gates = {gate["name"]: gate for gate in made.record()["gates"]}
    assert not gates["classifier_auc"]["passed"]
    assert gates["classifier_auc"]["evidence"]["min_auc"] == 0.9


def test_negatives_may_be_named(tmp_path):
    shop = [f"Cheap shoes in size {n}, order before noon and get them on the same day!" for n in range(40)]
    named = write_reference(tmp_path / "negative", shop, field="body")
    reference = write_reference(tmp_path)
    made = make(tmp_path, files=(GERMAN, CRAWL), reference=(reference,), negative=(named,), negative_field="body")
    assert made.record()["metrics"]["negative_texts"] == 40 and made.record()["metrics"]["classifier_auc"] == 1.0
    assert made.record()["notes"]["negative"] == [named]
    scores = [load_models(made).classifier.score(texts[0]) for texts in (REFERENCE, shop, GERMAN)]
    assert scores[0] > 0.8 and scores[1] < 0.2 and 0.2 < scores[2] < 0.8  # of the crawl it has learned nothing
    with pytest.raises(DataError, match="40 texts"):
        make(tmp_path / "both", reference=(reference,), negative=(reference,))


def labelled(folder, rows, **fields):
    path = folder / "labelled.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows), "utf-8")
    sides = {"positive": (str(path),), "negative": (str(path),)}
    return LabelledRecipe(**{"name": "people", "label_field": "label"} | sides | fields)


def test_what_people_labelled_is_a_gate_and_is_never_trained_on(tmp_path):
    reference = write_reference(tmp_path)
    rows = [*((text, 1) for text in REFERENCE[:15]), *((text, 0) for text in CRAWL[:20]), ("Neither.", 2)]
    people = labelled(tmp_path, rows)
    turned = labelled(tmp_path, rows, name="turned", positive_label="0", negative_label="1", min_auc=0.1)
    made = make(tmp_path, reference=(reference,), negatives=1000, labelled=(people, turned))
    metrics, gates = made.record()["metrics"], {gate["name"]: gate for gate in made.record()["gates"]}
    assert metrics["reference_texts"] == 40 - 15 and metrics["negative_texts"] == 60 - 20
    assert metrics["labelled_auc_people"] == 1.0 and metrics["labelled_texts_people"] == 35
    assert not gates["labelled_auc"]["passed"] and gates["classifier_auc"]["passed"]
    assert gates["labelled_auc"]["evidence"]["labelled_auc"] == {"people": 1.0, "turned": 0.0}
    with pytest.raises(DataError, match="0 texts in"):
        make(tmp_path / "none", reference=(reference,), labelled=(labelled(tmp_path, rows, positive_label="yes"),))
    with pytest.raises(DataError, match=r"quality\.labelled\.people: 35 texts|36 texts"):
        make(tmp_path / "same", reference=(reference,), labelled=(labelled(tmp_path, rows, label_field=None),))
    with pytest.raises(RecipeError, match="1 positive and 0 negative"):
        labelled(tmp_path, rows, negative=())
    with pytest.raises(RecipeError, match="without effect"):
        QualityRecipe(labelled=(people,))


@pytest.mark.data
def test_models_of_real_texts_agree_with_people_and_part_a_real_crawl_in_three(tmp_path):
    uri = "data://filters/dclm_human_quality_agreement_data.jsonl.gz"
    rows = [(row["text"], row["label"]) for row in read_rows(uri)]
    sides = [
        write_reference(tmp_path / name, [text for text, label in rows[::2] if label == side])
        for name, side in (("good", 1), ("bad", 0))
    ]
    crawl = [row["text"] for row in read_rows("data://text/c4_demo.jsonl.gz")]
    asked = [row["chosen"] for row in read_rows("data://preference/hh_rlhf_harmless_base_test.jsonl.gz")][::3]
    others = [row["text"] for row in read_rows("data://sft/oasst1_en_validation.jsonl.gz") if row["role"] == "prompter"]
    toxic = write_reference(tmp_path / "toxic", [text.split("\n\n")[1].removeprefix("Human: ") for text in asked])
    recipe = {
        "reference": (sides[0],),
        "negative": (sides[1],),
        "negatives": 300,
        "labelled": (labelled(tmp_path, rows[1::2], min_auc=0.9),),
        "toxicity": ToxicityRecipe(positive=(toxic,), negative=(write_reference(tmp_path / "others", others),)),
    }
    made = make(tmp_path, files=(crawl,), **recipe)
    gates = {gate["name"]: gate["passed"] for gate in made.record()["gates"]}
    assert all(gates.values()) and {"classifier_auc", "labelled_auc", "toxicity_auc"} <= set(gates)
    assert made.record()["metrics"]["labelled_texts_people"] == len(rows[1::2])
    models = load_models(made)
    buckets = [models.perplexity(text, "en")[1] for text in crawl]
    assert all(80 <= buckets.count(bucket) <= 115 for bucket in ("head", "middle", "tail"))
    impossible = recipe | {"labelled": (labelled(tmp_path, rows[1::2], min_auc=0.9999),), "toxicity": ToxicityRecipe()}
    gates = {gate["name"]: gate for gate in make(tmp_path, files=(crawl,), **impossible).record()["gates"]}
    assert not gates["labelled_auc"]["passed"] and gates["classifier_auc"]["passed"]
    assert 0.9 < gates["labelled_auc"]["evidence"]["labelled_auc"]["people"] < 0.9999


def test_a_model_file_is_taken_instead_of_estimating_one(tmp_path):
    reference = write_reference(tmp_path)
    with open(tmp_path / "en.arpa", "w", encoding="utf-8") as stream:
        write_arpa(train(CRAWL, order=2), stream)
    files = (NgramFileRecipe(uri=str(tmp_path / "en.arpa")),)
    given = load_models(make(tmp_path, reference=(reference,), ngram_files=files)).ngrams[""]
    assert given.ngram.order == 2 and given.ngram.perplexity(CRAWL[0]) < given.ngram.perplexity(REFERENCE[0])
    assert given.bucket_limits[1] < given.ngram.perplexity(REFERENCE[0])  # the buckets are of the crawl as ever
    with pytest.raises(RecipeError, match="only null"):
        QualityRecipe(reference=(reference,), ngram_files=(NgramFileRecipe(uri="a.arpa", language="en"),))


def test_negatives_are_in_the_references_language(tmp_path):
    made = make(tmp_path, files=(CRAWL, GERMAN), reference=(write_reference(tmp_path),), negatives=1000)
    assert made.record()["notes"]["language"] == "en"
    assert made.record()["metrics"]["negative_texts"] == 60


def test_the_order_of_files_and_texts_changes_nothing(tmp_path):
    one = make(tmp_path / "one", reference=(write_reference(tmp_path / "one"),))
    other_reference = write_reference(tmp_path / "other", REFERENCE[::-1])
    other = make(tmp_path / "other", reference=(other_reference,))
    assert one.record()["files"] == other.record()["files"]


def test_without_a_reference_there_are_no_models_and_it_says_so(tmp_path):
    made = make(tmp_path)
    assert load_models(made) is None
    assert "quality.reference is empty" in made.record()["notes"]["models"]


def test_kitchen_texts_can_be_the_reference(tmp_path):
    recipe = QualityRecipe(reference=("kitchen://reference",), snapshots=("s1",), classifier_buckets=4096, negatives=40)
    extracted = chain.documents(tmp_path, "s1", [CRAWL], asset="extracted_documents")
    settings = {"quality": recipe, "kitchen": KitchenWorld(dishes=16, tested_per_value=1, pages=100)}
    made = chain.run(tmp_path, "quality", "quality_models", "tiny", settings, [extracted])
    assert made.record()["metrics"]["classifier_auc"] > 0.9


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match=r"row 0 .*'text'.* body"):
        make(tmp_path / "a", reference=(write_reference(tmp_path / "a", field="body"),))
    with pytest.raises(DataError, match="3 texts"):
        make(tmp_path / "b", reference=(write_reference(tmp_path / "b", REFERENCE[:3]),))
    with pytest.raises(DataError, match="0 pages of s1"):
        make(tmp_path / "c", files=(GERMAN,), reference=(write_reference(tmp_path / "c"),))
    with pytest.raises(RecipeError, match=r"quality\.snapshots: empty"):
        make(tmp_path / "d", snapshots=(), reference=(write_reference(tmp_path / "d"),))


def test_a_book_is_cut_into_pages_at_line_ends():
    lines = [f"Line {n} of the book." for n in range(1000)]
    pieces = list(page_sized("\n".join(lines)))
    assert [line for piece in pieces for line in piece.split("\n")] == lines
    assert len(pieces) > 1 and max(map(len, pieces)) <= 4000
    assert list(page_sized(" \n ")) == []


def toxicity_model(root, **fields):
    settings = {
        "quality": QualityRecipe(toxicity=ToxicityRecipe(buckets=4096, **fields)),
        "kitchen": KitchenWorld(dishes=16, tested_per_value=1, pages=100),
    }
    return chain.run(root, "quality", "quality_models", "tiny", settings)


def test_abuse_is_told_from_other_texts_without_a_reference(tmp_path):
    made = toxicity_model(tmp_path, positive=("kitchen://abuse",), negative=("kitchen://reference",))
    record = made.record()
    gates = {gate["name"]: gate for gate in record["gates"]}
    assert gates["toxicity_auc"]["passed"] and gates["toxicity_auc"]["evidence"]["toxicity_auc"] > 0.99
    assert record["metrics"]["toxic_texts"] == 100 and record["metrics"]["other_texts"] == 300
    models = load_models(made)
    assert models.classifier is None and not models.ngrams
    assert models.toxicity.score("Shut up, you stupid moron, nobody wants to read you.") > 0.5
    assert models.toxicity.score(REFERENCE[0]) < 0.5


def test_a_toxicity_model_that_cannot_tell_fails_its_gate(tmp_path):
    same = [write_reference(tmp_path / side, REFERENCE[start::2]) for side, start in (("a", 0), ("b", 1))]
    made = toxicity_model(tmp_path, positive=(same[0],), negative=(same[1],), min_auc=0.9)
    assert [(gate["name"], gate["passed"]) for gate in made.record()["gates"]] == [("toxicity_auc", False)]


def test_toxic_texts_and_others_are_two_sets(tmp_path):
    path = write_reference(tmp_path)
    with pytest.raises(DataError, match=r"quality\.toxicity: 40 texts"):
        toxicity_model(tmp_path, positive=(path,), negative=(path,))
    with pytest.raises(RecipeError, match="1 positive and 0"):
        ToxicityRecipe(positive=(path,))
    with pytest.raises(DataError, match=r"quality\.toxicity\.negative: .*'body'"):
        toxicity_model(tmp_path, positive=(path,), negative=(path,), negative_field="body")
