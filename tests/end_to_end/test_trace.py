"""`pedigree trace` on the small kitchen: from WARC records to steps and back, and every way in which it must refuse."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fastwarc.warc import ArchiveIterator

from assets.answers.trace.lines import lines_of
from assets.answers.trace.trace import answer
from benchmarks.both_ways import alter_rows, both_ways
from resources.tracking.reports import Tracking
from tests.small_kitchen import RECIPES, linked_copy, pedigree
from training.contract import artifact
from training.contract.job import DataError
from training.data.documents import read_documents
from training.order.ledger import LEDGER_FILE, Ledger, LedgerEntry, write_ledger
from training.provenance import trace
from training.provenance.lineage import artifacts_under, lineage_of
from training.provenance.steps import Steps
from training.provenance.trace import Tracer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MODEL = "kitchen-small"


@pytest.fixture(scope="module")
def place(first, untouched, tmp_path_factory) -> Path:
    """A copy of the root that this module may damage, of links as long as it does not."""
    assert first.code == 0
    return linked_copy(untouched, tmp_path_factory.mktemp("trace") / "root")


@pytest.fixture(autouse=True)
def recipes(monkeypatch):
    monkeypatch.setenv("PEDIGREE_RECIPES", str(RECIPES))


@pytest.fixture
def copy(place, tmp_path) -> Path:
    return linked_copy(place, tmp_path / "root")


def ask(place: Path, model: str = MODEL, *, texts: bool = False, shown: int = 10, training: str = "", **asked):
    tracking = Tracking("", place, in_background=False)
    return answer(model, asked, root=place, tracking=tracking, texts=texts, shown=shown, training=training)


@pytest.fixture(scope="module")
def tracer(place) -> Tracer:
    (made,) = artifacts_under(place, lambda asset: asset == "aligned_model")
    return Tracer(lineage_of(place, made))


def rows_of(place: Path, asset: str, folder: str, *columns: str) -> list[dict]:
    files = sorted(place.glob(f"{asset}/*/{folder}/*.parquet"))
    return [row for file in files for row in read_documents(file, columns)]


def test_random_documents_are_followed_from_their_warc_record_to_steps_and_back(place, tracer):
    pages = rows_of(place, "extracted_documents", "documents", "id", "url", "warc_file", "warc_offset")
    chosen = random.Random(0).sample(pages, 60)
    seen = 0
    for row in chosen:
        (archive,) = place.glob(f"crawl_archives/*/**/{row['warc_file']}")
        with open(archive, "rb") as stream:
            stream.seek(row["warc_offset"])
            record = next(iter(ArchiveIterator(stream, parse_http=False)))
            assert record.headers["WARC-Target-URI"] == row["url"]
        (page,) = tracer.document(row["id"])["pages"]
        assert [page[name] for name in row] == list(row.values())
        for training in page["seen"]:
            for step in {one["step"] for one in training["steps"]}:
                (back,) = [one for one in tracer.step(step)["documents"] if one["id"] == row["id"]]
                wanted = [one for one in training["steps"] if one["step"] == step]
                assert [(one["row"], one["at"], one["start"], one["tokens"]) for one in back["pieces"]] == [
                    (one["row"], one["at"], one["start"], one["tokens"]) for one in wanted
                ]
                assert all(back[name] == value for name, value in row.items())
                seen += 1
    assert seen > 20


def test_the_program_that_follows_pages_both_ways_notices_a_row_that_is_too_high(place, tracer, monkeypatch, capsys):
    rows = tracer.step(3)["documents"][:5]
    assert both_ways(tracer, rows, place) == 5
    monkeypatch.setattr(Steps, "seen", Steps.seen)  # restores what the control alters
    alter_rows()
    with pytest.raises(SystemExit):
        both_ways(tracer, rows, place)
    assert "differs" in capsys.readouterr().err


def test_the_text_of_a_document_in_its_steps_is_the_text_that_was_tokenized(place, tracer):
    texts = {row["id"]: row["text"] for row in rows_of(place, "decontaminated_documents", "documents", "id", "text")}
    whole = 0
    for step in range(0, 40, 7):
        for one in tracer.step(step, texts=True)["documents"]:
            (page,) = tracer.document(one["id"])["pages"]
            (seen,) = page["seen"]
            steps = {piece["step"]: piece for piece in seen["steps"]}
            pieces = [
                piece
                for other in sorted(steps)
                for found in tracer.step(other, texts=True)["documents"]
                if found["id"] == one["id"]
                for piece in found["pieces"]
            ]
            told = "".join(piece["text"] for piece in sorted(pieces, key=lambda piece: piece["start"]))
            if sum(piece["tokens"] for piece in pieces) == page["shard"]["tokens"] and texts[one["id"]].isascii():
                assert told == texts[one["id"]]
                whole += 1
            elif texts[one["id"]].isascii():
                assert told in texts[one["id"]]
    assert whole > 10


def test_every_page_that_any_stage_dropped_is_answered_with_stage_and_reason(place, tracer):
    told = Counter()
    for asset in ("extracted_documents", "filtered_documents", "deduplicated_documents", "decontaminated_documents"):
        for row in rows_of(place, asset, "dropped", "id", "url", "reason"):
            pages = {page["id"]: page for page in tracer.url(row["url"])["pages"]}
            page = pages[row["id"]]
            assert (page["stage"], page["stages"][-1]["reason"], page["seen"]) == (asset, row["reason"], [])
            told[asset] += 1
    assert len(told) == 4
    quarantined = [
        (line["warc_file"], line["warc_offset"], file.parts[-4])
        for file in place.glob("extracted_documents/*/quarantine/*.jsonl")
        for line in map(json.loads, file.read_text().splitlines())
    ]
    for name, offset, _ in quarantined:
        id_ = f"{name.rpartition('-')[0]}/{name}/{offset:012d}"
        (page,) = tracer.document(id_)["pages"]
        assert page["outcome"] == "quarantined" and page["facts"]["detail"]
    assert quarantined


def test_a_duplicate_names_the_page_that_was_kept_and_is_named_by_it(place, tracer):
    dropped = rows_of(place, "deduplicated_documents", "dropped", "id", "duplicate_of")
    for row in dropped[:10]:
        (page,) = tracer.document(row["id"])["pages"]
        (kept,) = tracer.document(page["facts"]["duplicate_of"])["pages"]
        assert page["facts"]["duplicate_of"] == row["duplicate_of"] and row["id"] in {
            one["id"] for one in kept["cluster"]["pages"]
        }
        assert kept["id"] in {one["id"] for one in page["cluster"]["pages"]}


def test_redactions_are_counted(place, tracer):
    rows = rows_of(place, "decontaminated_documents", "documents", "id", "redactions")
    redacted = [row for row in rows if row["redactions"]]
    (page,) = tracer.document(redacted[0]["id"])["pages"]
    assert page["redactions"] == json.loads(redacted[0]["redactions"])
    assert f"redacted: {next(iter(page['redactions']))} " in "\n".join(lines_of(ask(place, document=redacted[0]["id"])))


def test_the_command_answers_in_json_and_names_the_versions(root, first, place):
    url = rows_of(place, "token_shards", "shards", "url")[0]["url"]
    spelled = url.replace("https://", "http://www.").replace("www.www.", "www.") + "?#a"
    ran = pedigree("trace", f"{MODEL}@champion", "--url", spelled, root=place)
    assert ran.code == 0, ran.errors
    (page, *_) = [one for one in ran.answer["pages"] if one["url"] == url]
    assert page["outcome"] == "kept" and page["is_exact"] is False
    (version,) = ran.answer["versions"]
    assert (version["name"], version["version"]) == (MODEL, "1") and "champion" in version["aliases"]
    assert version["times"] == sum(one["times"] for one in page["seen"])
    none = pedigree("trace", MODEL, "--url", "https://absent.example/", root=place)
    assert none.code == 2 and "no snapshot" in none.answer["error"]


@pytest.mark.parametrize("asked", [{"step": 3}, {"domain": "thebakersregister.example"}, {"lineage": True}])
def test_answers_have_no_line_above_80_columns(place, asked):
    lines = lines_of(ask(place, **asked))
    assert len(lines) > 10 and max(map(len, lines)) <= 80


def test_a_lineage_reaches_the_crawl_and_comes_back(place):
    told = ask(place, f"{MODEL}/1", lineage=True)
    assets = Counter(node["asset"] for node in told["nodes"].values())
    assert assets["crawl_archives"] == assets["token_shards"] == 2 and assets["base_model"] == 1
    assert all(
        node["sections"] and node["code_revision"] for node in told["nodes"].values() if node["asset"] == "base_model"
    )
    assert told["price"]["cpu_seconds"] > 1 and [one["version"] for one in told["versions"]] == ["1"]
    crawl = next(name for name, node in told["nodes"].items() if node["asset"] == "crawl_archives")
    back = ask(place, f"crawl_archives/{crawl[:12]}", lineage=True)
    made = {one["asset"] for one in back["made_from_it"]}
    assert {"provenance_index", "token_shards", "base_model", "promoted_model"} <= made
    assert [one["version"] for one in back["versions"]] == ["1"] and len(back["nodes"]) == 1


@pytest.mark.parametrize(
    ("model", "asked", "said"),
    [
        ("kitchen-small/7", {"step": 1}, r"kitchen-small/7: no such version is registered; there is kitchen-small/1"),
        ("kitchen-small@none", {"step": 1}, "kitchen-small@none: no such version"),
        ("nobody", {"step": 1}, "nobody: no model of this name is registered"),
        (MODEL, {"step": 40}, "base_model has steps 0 to 39; there is no step 40"),
        (MODEL, {"step": 0, "training": "long_context_model"}, "no training long_context_model"),
        (
            MODEL,
            {"document": "kitchen-1/x/000000000000"},
            r"no snapshot has a page with this id; .*kitchen-2 \(220 pages",
        ),
        (MODEL, {"domain": "absent.example"}, "no snapshot has a page of absent.example"),
        (MODEL, {"domain": "co.uk"}, "co.uk: is a public suffix"),
        (MODEL, {"domain": "co.uk"}, "co.uk: is a public suffix"),
        (MODEL, {"domain": "example"}, r"such as \w+.*example or "),
        (MODEL, {"domain": "not a domain"}, "is no domain"),
        ("base_model/abcdef", {"lineage": True}, "0 artifacts under"),
        ("kitchen", {"step": 1}, "recipe kitchen has made no model and no shards under"),
    ],
)
def test_what_does_not_exist_is_said(place, model, asked, said):
    training = asked.pop("training", "") if "training" in asked else ""
    with pytest.raises(DataError, match=said):
        ask(place, model, training=training, **asked)


def test_skipped_steps_trained_on_nothing(tracer):
    (page,) = [page for one in tracer.step(3)["documents"][1:2] for page in tracer.document(one["id"])["pages"]]
    (training,) = tracer.trainings
    entry = LedgerEntry(first=3, last=3, reason="spike", onset=3, seen_at=4, loss=9.0, gradient_norm=1.0)
    skipping = Tracer(tracer.lineage)
    skipping.trainings = [type(training)(training.node, training.plan_item, training.plan, Ledger((entry,)))]
    told = skipping.step(3)
    assert (told["trained"], told["skipped"]) == (False, ["spike"])
    assert [one["id"] for one in told["documents"]] == [one["id"] for one in tracer.step(3)["documents"]]
    (after,) = skipping.document(page["id"])["pages"]
    (before_seen,), (seen,) = page["seen"], after["seen"]
    lost = sum(one["tokens"] for one in seen["steps"] if one["skipped"])
    assert seen["tokens"] == before_seen["tokens"] - lost and lost > 0
    host = page["url"].split("/")[2]
    (of_all,), (of_rest,) = tracer.domain(host)["seen"], skipping.domain(host)["seen"]
    assert of_rest["tokens"] < of_all["tokens"]


def test_the_ledger_is_the_one_that_the_record_of_the_training_lists(copy, tmp_path):
    """One that somebody put there is not read; one that is listed is read, and refused if it was changed."""
    (node,) = lineage_of(copy, *artifacts_under(copy, lambda asset: asset == "aligned_model")).of("base_model")
    entry = LedgerEntry(first=3, last=3, reason="spike", onset=3, seen_at=4, loss=9.0, gradient_norm=1.0)
    write_ledger(Path(node.item.path), Ledger((entry,)))
    assert ask(copy, f"{MODEL}/1", step=3)["trained"]
    record = node.made.record
    files = [*record["files"], *artifact.manifest(Path(node.item.path), [LEDGER_FILE])]
    files.sort(key=lambda one: one["path"])
    kept = {name: value for name, value in record.items() if name not in ("record_digest", "checksum")}
    for name in ("artifact.json", "artifact.copy.json"):
        Path(node.item.path, name).unlink()
    digest = artifact.digest_of_files(files)
    artifact.commit_record(Path(node.item.path), kept | {"files": files, "digest": digest})
    listed = f"base_model/{node.item.fingerprint}"
    told = ask(copy, listed, step=3)
    assert (told["trained"], told["skipped"]) == (False, ["spike"]) and "was skipped (spike)" in "\n".join(
        lines_of(told)
    )
    assert ask(copy, listed, step=4)["trained"]
    changed(Path(node.item.path, LEDGER_FILE), at=-20)
    with pytest.raises(DataError, match=f"{LEDGER_FILE}: content differs"):
        ask(copy, listed, step=4)


def test_a_large_domain_is_counted_part_by_part(tracer, monkeypatch):
    (whole,) = tracer.domain("thebakersregister.example")["seen"]
    monkeypatch.setattr(trace, "DOCUMENTS_AT_ONCE", 3)
    (in_parts,) = tracer.domain("thebakersregister.example")["seen"]
    assert in_parts == whole and whole["documents"] == 21 and whole["trained"] > 10


def changed(file: Path, at: int = -1) -> None:
    """Change one byte of a file that is a link to another root's."""
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.unlink()
    file.write_bytes(data)


URL = {"url": "https://ovenpost.example/latest/xelbury-gratin-200130.html"}


@pytest.mark.parametrize(
    ("pattern", "asked", "said"),
    [
        ("provenance_index/*/ids.npy", URL, "ids.npy: content differs from its checksum"),
        ("provenance_index/*/hosts.dat", URL, "hosts.dat: content differs"),
        ("training_plan/*/positions.npy", {"step": 1}, "positions.npy: content differs"),
        ("token_shards/*/shards/*.documents.parquet", {"step": 1}, "documents.parquet: content differs"),
        ("training_plan/*/artifact.json", {"step": 1}, "training_plan .*artifact.json"),
    ],
)
def test_a_changed_byte_is_refused_where_it_is_read(copy, pattern, asked, said):
    ask(copy, **asked)  # the table of known files must not hide the change
    files = list(copy.glob(pattern))
    assert files
    for file in files:
        changed(file)
    with pytest.raises(DataError, match=said):
        ask(copy, f"{MODEL}/1", **asked)


@pytest.mark.parametrize(
    ("gone", "asked", "said"),
    [
        ("training_plan", {"step": 1}, r"training_plan \[kitchen-small\]: the artifact \w+ is not under"),
        ("token_shards", {"step": 1}, r"token_shards \[kitchen-small@kitchen-1\]: the artifact"),
        ("deduplicated_documents", URL, "deduplicated_documents .* is not under"),
        (
            "provenance_index",
            URL,
            r"provenance_index \[.*\] of these shards .* is not made; `pedigree run kitchen-small --until",
        ),
        ("aligned_model", {"step": 1}, "its model .* is not under"),
    ],
)
def test_what_was_removed_is_named(copy, gone, asked, said):
    shutil.rmtree(copy / gone)
    with pytest.raises(DataError, match=said):
        ask(copy, f"{MODEL}/1", **asked)
    if gone == "training_plan":
        told = ask(copy, f"{MODEL}/1", lineage=True)
        (node,) = [one for one in told["nodes"].values() if one["asset"] == gone]
        assert "is not under" in node["problem"] and "MISSING" in "\n".join(lines_of(told))


def test_an_index_of_other_shards_is_not_used(copy):
    for folder in (copy / "provenance_index").iterdir():
        record = artifact.find(folder).record
        others = [
            entry | {"digest": "0" * 64} if entry["asset"] == "token_shards" else entry for entry in record["inputs"]
        ]
        for name in ("artifact.json", "artifact.copy.json"):
            (folder / name).unlink()
        kept = {name: value for name, value in record.items() if name not in ("record_digest", "checksum")}
        artifact.commit_record(folder, kept | {"inputs": others})
    with pytest.raises(DataError, match=r"of other shards; `pedigree run"):
        ask(copy, **URL)


def test_a_plan_of_other_shards_is_not_used(tracer, monkeypatch):
    (training,) = tracer.trainings
    shards = tuple(
        type(one)(**{name: getattr(one, name) for name in one.__slots__} | {"digest": "0" * 64})
        for one in training.plan.record.shards
    )
    record = type(training.plan.record)(
        **{name: getattr(training.plan.record, name) for name in training.plan.record.__slots__} | {"shards": shards}
    )
    other = Tracer(tracer.lineage)
    other.trainings = [
        type(training)(training.node, training.plan_item, training.plan.with_record(record), training.ledger)
    ]
    with pytest.raises(DataError, match="digest 000000000000"):
        other.step(1)


def test_sidecars_and_index_agree_on_how_many_pages_there_are(place, tracer):
    sidecars = sum(pq.read_metadata(file).num_rows for file in place.glob("token_shards/*/shards/*.parquet"))
    kept = sum(
        count
        for index in tracer.indexes
        for (kind, _), count in index.outcomes(index.pages_of_hosts(0, index.num_hosts)).items()
        if kind == 0
    )
    assert kept == sidecars


# Texts


def sentence_of(place: Path) -> tuple[dict, str]:
    """A page that was trained on, and a sentence from its middle."""
    rows = rows_of(place, "decontaminated_documents", "documents", "id", "url", "warc_offset", "text")
    row = next(row for row in rows if len(row["text"]) > 2_000 and row["text"].isascii())
    middle = row["text"].index(". ", 900) + 2
    return row, row["text"][middle : row["text"].index(". ", middle + 80) + 1]


def test_a_sentence_is_traced_to_its_page_and_to_the_steps_that_saw_these_very_tokens(place, tracer):
    row, sentence = sentence_of(place)
    told = ask(place, text=f"Somebody said: {sentence} Unheard-of zyx.")
    span = max(told["spans"], key=lambda one: one["tokens"])
    assert sentence in told["text"][span["start"] : span["stop"]] and span["text"].strip() in row["text"]
    page = next(one for one in span["pages"] if one["id"] == row["id"])
    assert (page["url"], page["warc_offset"]) == (row["url"], row["warc_offset"])
    assert page["before"][-20:] + span["text"] + page["after"][:20] in row["text"]
    (seen,) = page["seen"]
    for step in {one["step"] for one in seen["steps"]}:
        (back,) = [one for one in tracer.step(step, texts=True)["documents"] if one["id"] == row["id"]]
        assert any(set(piece["text"].split()) & set(sentence.split()) for piece in back["pieces"])
    (whole,) = tracer.document(row["id"])["pages"]
    assert seen["tokens"] <= span["tokens"] < whole["shard"]["tokens"]
    assert max(map(len, lines_of(told))) <= 80


def test_the_command_writes_a_page_and_refuses_what_it_cannot_search(place, tmp_path):
    _, sentence = sentence_of(place)
    page = tmp_path / "answer.html"
    ran = pedigree("trace", f"{MODEL}/1", "--text", f"<b>{sentence}", "--html", str(page), root=place)
    assert ran.code == 0 and len(ran.answer["spans"]) >= 1, ran.errors
    shown = page.read_text()
    assert "&lt;b&gt;" in shown and "<script" not in shown and ran.answer["spans"][0]["pages"][0]["url"] in shown
    assert pedigree("trace", MODEL, "--step", "1", "--html", str(page), root=place).code == 2


def test_a_text_needs_the_index_of_these_very_shards(copy):
    index = next(copy.glob("text_index/*/artifact.json")).parent
    array = next(index.glob("suffixes/*0.npy"))
    whole = array.read_bytes()
    array.unlink()
    array.write_bytes(whole[:-4] + bytes(4))
    with pytest.raises(DataError, match=r"suffixes/00000.npy: content differs"):
        ask(copy, text="warm bread")
    shutil.rmtree(index)
    with pytest.raises(DataError, match=r"text_index \[.*\] of these shards .* `pedigree run kitchen-small --until"):
        ask(copy, text="warm bread")


# Rows of post-training

ROW = "kitchen://dialogues#0000001"


def test_a_row_of_post_training_is_answered_with_its_source_its_generator_and_the_models_trained_on_it(place):
    told = ask(place, document=ROW)
    (row,) = told["rows"]
    assert (row["asset"], row["source"], row["outcome"]) == ("instruction_data", "kitchen://dialogues", "kept")
    assert row["generator"] and [name.split()[0] for name in row["models"]] == ["sft_model"]
    (file,) = place.glob("instruction_data/*/instructions.jsonl")
    said = json.loads(file.read_text("utf-8").splitlines()[row["line"]])
    assert said["id"] == ROW
    by_source = {(one["asset"], one["source"]): one["rows"] for one in ask(place, lineage=True)["rows"]}
    assert sum(by_source.values()) == len(file.read_text("utf-8").splitlines()) + sum(
        len(one.read_text("utf-8").splitlines())
        for one in place.glob("*_data/*/*.jsonl")
        if one.name in ("train.jsonl", "held_out.jsonl", "dropped.jsonl", "quarantine.jsonl")
    )
    text = " ".join(one["content"] for one in said["messages"])
    found = ask(place, text=text)
    assert ROW in {one["id"] for one in found["rows"]} and not found["rows_not_known"]
    assert any(ROW in line for line in lines_of(found))


def test_without_the_index_of_rows_the_answer_says_that_they_were_not_searched(copy):
    shutil.rmtree(copy / "row_index")
    told = ask(copy, text="Then it was put into the oven for an hour or so, as everybody knows.")
    assert told["num_rows"] is None and "pedigree run kitchen-small --until row_index" in told["rows_not_known"]
    with pytest.raises(DataError, match="row_index of these rows is not made"):
        ask(copy, document=ROW)
