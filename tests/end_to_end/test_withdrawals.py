"""`pedigree takedown` through the real command, on small roots with texts that are easily mistaken for others."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from assets.answers.status.verify import verified
from assets.answers.takedown.lines import lines_of
from assets.answers.takedown.report import reports_under
from assets.state.compare import compare
from assets.state.recipe_folders import SHIPPED, load_recipe
from resources.tracking.reports import Tracking
from tests.small_kitchen import RECIPES, linked_copy, pedigree
from training.contract.artifact import damaged_files
from training.contract.files.checksums import sha256_of
from training.contract.files.erased import ERASED_FILE, ErasedState, note_erased
from training.data.documents import read_documents
from training.provenance.lineage import artifacts_under

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
WHY = ("--reason", "asked by its author")
RECIPE = """\
extends: base
name: withdrawals
snapshots: [{{name: one, source: jsonl, paths: ["{folder}/pages.jsonl"]}}]
filter: {{rules: [], languages: [], personal_data: []}}
tokenizer: {{vocabulary: 512, min_bytes_per_token: 1.0}}
"""
NOUNS = [f"{random.Random(number).getrandbits(32):x}" for number in range(500)]
NUMBERS = "Counted: 0 1 2 3 4 5 6 7 8 9 10 11 12"
ALPHABET = "t h e i n e r a o n"
SAID = "The aunt of Mr Smith keeps nine silver spoons under the third stair of her house"
QUOTE = "Nobody in the village of Aldby has ever seen the captain of the broken ferry smile"
QUOTED = {
    "as it is": lambda text: text,
    "capitals": str.upper,
    "wrapped lines": lambda text: text.replace(" ", "\n", 3).replace(" of ", "\n  of "),
    "doubled blanks": lambda text: text.replace(" ", "  "),
    "soft hyphens": lambda text: text.replace("broken", "bro\u00adken").replace("ferry", "fer\u00adry"),
    "small capitals": lambda text: text.translate(str.maketrans("abdeimnorstvy", "ᴀʙᴅᴇɪᴍɴᴏʀꜱᴛᴠʏ")),
    "entities and accents": lambda text: text.replace(" ", "&nbsp;").replace("captain", "càptaïn"),
}
HYPHENATED = QUOTE.replace("captain", "cap\u00adtain")


def prose(seed: object) -> str:
    """Sixty words that no other text has in this order."""
    return " ".join(random.Random(str(seed)).choices(NOUNS, k=60))


def root_of(
    folder: Path, pages: dict[str, str], *, more: str = "", until: tuple[str, ...] = ("provenance_index",)
) -> Path:
    """Make a root with the corpus of these pages, given as text by address; `more` is added to the recipe."""
    rows = [{"url": url, "text": text} for url, text in pages.items()]
    (folder / "pages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (folder / "withdrawals.yaml").write_text(RECIPE.format(folder=folder) + more, "utf-8")
    for asset in until:
        ran = pedigree("run", str(folder / "withdrawals.yaml"), "--until", asset, root=folder / "root")
        assert ran.code == 0, ran.errors
    return folder / "root"


def withdrawn(place: Path, *asked: str) -> dict[str, Any]:
    ran = pedigree("takedown", *asked, *WHY, "--yes", root=place)
    assert ran.code == 0, ran.errors
    return ran.answer


def files_of(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file() and path.suffix != ".lock"}


def of_url(place: Path, url: str) -> dict[str, Any]:
    ran = pedigree("takedown", "--url", url, *WHY, "--dry-run", root=place)
    assert ran.code == 0, ran.errors
    return ran.answer


def shard_texts(place: Path) -> str:
    """All texts that the shards were made from now."""
    (reference,) = (place / "refs" / "decontaminated_documents").glob("*.json")
    folder = place / "decontaminated_documents" / json.loads(reference.read_text("utf-8"))["fingerprint"]
    return "\n".join(
        row["text"] for path in sorted(folder.glob("documents/*.parquet")) for row in read_documents(path, ("text",))
    )


@pytest.mark.parametrize("policy", ["cluster", "twin"])
def test_a_text_goes_with_all_its_copies_whichever_of_them_is_named(tmp_path, policy):
    text = f"{SAID}. {prose('twins')}"
    twins = [f"http://mirror{number}.example/a" for number in range(4)]
    near = text.replace(" nine ", " ten ")
    pages = {f"http://stays.example/{number}": prose(number) for number in range(20)}
    pages |= dict.fromkeys(twins, text) | {"http://near.example/": near}
    place = root_of(tmp_path, pages, more=f"withdrawals: {{duplicates: {policy}}}\n")
    for url in (twins[0], twins[3], "http://near.example/"):  # of what was kept, and of what was dropped
        told = of_url(place, url)
        assert told["duplicates"]["pages"] == 4 and told["duplicates"]["in_shards"] == (url != twins[0])
        (page,) = pedigree("trace", "withdrawals", "--url", url, root=place).answer["pages"]
        assert {one["url"] for one in page["cluster"]["pages"]} == {*twins, "http://near.example/"} - {url}
    report = withdrawn(place, "--url", twins[2])["report"]
    (text,) = [path.read_text("utf-8") for path in place.glob("takedowns/*.report.md")]
    elsewhere = f"Of its runs of words {report['proof']['runs_elsewhere']} also stand in pages or data"
    if policy == "cluster":
        assert SAID not in shard_texts(place)
        assert report["proof"]["is_proved"] and report["proof"]["runs"] > 50
        assert report["proof"]["runs_elsewhere"] == 0 and elsewhere not in text
    else:
        assert SAID in shard_texts(place)
        assert not report["proof"]["is_proved"] and report["proof"]["verdict"] == "nothing to prove"
        assert report["proof"]["runs_elsewhere"] > 50 and elsewhere in text
        assert "Nothing to prove" in text and "with a letter" in text and "None of them is left" not in text


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A root with a page of numbers, letters and a sentence of its own, another page, and a tokenizer registered."""
    pages = {f"http://stays.example/{number}": prose(number) for number in range(20)}
    pages["http://goes.example/0"] = f"{NUMBERS} {ALPHABET} {SAID}. {prose('goes')}"
    pages |= {"http://said.example/": f"{prose('a')} {QUOTE}. {prose('b')}"}
    pages |= {"http://mirror.example/": f"Once {HYPHENATED}."}
    place = root_of(tmp_path_factory.mktemp("withdrawals"), pages, until=("provenance_index", "text_index"))
    (source,) = place.glob("tokenizer/*/tokenizer.json")
    for copy in ("model", "components"):  # as the registry keeps a model
        (place / "mlflow-artifacts" / copy).mkdir(parents=True)
        shutil.copyfile(source, place / "mlflow-artifacts" / copy / "tokenizer.json")
    (place / os.fsdecode(b"notes-\xff.txt")).write_text(SAID, "utf-8")
    notes = [{"said": SAID, "n": [0, 1, 2, 3, 4, 5, 6, 7]}, json.dumps({"within": [1.50, SAID]})]
    (place / "mlflow-artifacts" / "samples.json").write_text(json.dumps(notes), "utf-8")
    (place / "mlflow-artifacts" / "notes.yaml").write_text(f"said: >-\n  {SAID}\nsteps: 07\n", "utf-8")
    with closing(sqlite3.connect(place / "notes.db")) as database:
        database.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, body TEXT)")
        database.executemany("INSERT INTO notes (body) VALUES (?)", [(json.dumps(notes),), ("stays",)])
        database.commit()
    return place


@pytest.mark.parametrize("spelling", QUOTED)
def test_a_quotation_is_found_and_withdrawn_in_any_letters_lines_and_blanks(made, spelling):
    said = QUOTED[spelling](QUOTE)
    traced = pedigree("trace", "withdrawals", "--text", said, root=made)
    assert traced.code == 0, traced.errors
    exact = {page["url"] for span in traced.answer["spans"] if span["text"] == said for page in span["pages"]}
    folded = {page["url"] for span in traced.answer["folded"] for page in span["pages"]}
    if spelling == "as it is":  # what was found word for word is not looked for in other letters
        assert exact == {"http://said.example/"} and not folded
    else:
        assert exact | folded == {"http://said.example/", "http://mirror.example/"} and folded
    asked = pedigree("takedown", "--text", said, *WHY, "--dry-run", root=made)
    assert asked.code == 0 and asked.answer["pages"] == 2, asked.errors


def test_a_text_that_stands_nowhere_or_is_short_is_refused_in_one_sentence(made):
    nowhere = " ".join(reversed(QUOTE.split()))
    assert not pedigree("trace", "withdrawals", "--text", nowhere, root=made).answer["folded"]
    for text, sentence in (
        (nowhere, "no page and no row holds this text"),
        ("the broken ferry", "give at least 8 of it"),
    ):
        asked = pedigree("takedown", "--text", text, *WHY, "--dry-run", root=made)
        assert asked.code == 2 and sentence in asked.errors


def test_a_takedown_that_cannot_finish_leaves_everything_as_it_was_and_says_so(made, tmp_path):
    place = tmp_path / "root"
    shutil.copytree(made, place)
    assert pedigree("takedown", "--domain", "goes.example", *WHY, "--yes", "--no-rebuild", root=place).code == 0
    for index in ("provenance_index", "text_index"):  # so that nothing is left to rebuild
        ran = pedigree("run", str(made.parent / "withdrawals.yaml"), "--until", index, root=place)
        assert ran.code == 0, ran.errors
    Tracking("", place).flush(180)
    before = files_of(place)  # whoever closes a file ends its process's locks of it
    with closing(sqlite3.connect(place / "notes.db")) as database:
        database.execute("BEGIN IMMEDIATE")
        ran = pedigree("takedown", "--domain", "goes.example", *WHY, "--yes", root=place)
        assert ran.code == 2 and "nothing was erased or masked" in ran.errors and "locked" in ran.errors
    after = files_of(place)
    changed = {name for name, content in before.items() if after.get(name) != content}
    assert not {name for name in changed if "/takedowns/" not in name and "/sources.sqlite" not in name}
    assert not list(place.rglob("*.tmp")) and not list(place.glob("*/*/erased.json"))
    assert withdrawn(place, "--domain", "goes.example")["report"]["proof"]["is_proved"]


def test_files_stay_what_they_are_and_a_vocabulary_is_no_text(made):
    tokenizers = {path: path.read_bytes() for path in made.rglob("tokenizer.json")}
    report = withdrawn(made, "--domain", "goes.example")["report"]
    assert report["proof"]["is_proved"] and report["proof"]["runs"] > 60
    assert len(tokenizers) == 3 and all(path.read_bytes() == content for path, content in tokenizers.items())
    assert all(Tokenizer.from_file(str(path)).get_vocab_size() for path in tokenizers)
    samples = json.loads((made / "mlflow-artifacts" / "samples.json").read_text("utf-8"))
    assert samples[0]["n"] == [0, 1, 2, 3, 4, 5, 6, 7] and "spoons" not in samples[0]["said"]
    assert json.loads(samples[1])["within"][0] == 1.5 and "spoons" not in samples[1]
    with closing(sqlite3.connect(made / "notes.db")) as database:
        (first,), (second,) = database.execute("SELECT body FROM notes ORDER BY id").fetchall()
        assert json.loads(first) == samples and second == "stays"
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert "steps: 07" in (made / "mlflow-artifacts" / "notes.yaml").read_text("utf-8")
    recipe = load_recipe(str(made.parent / "withdrawals.yaml"), (RECIPES, SHIPPED))
    assert not verified(compare(recipe, made), Tracking("", made, in_background=False)).problems
    assert all(not damaged_files(one) for one in artifacts_under(made))
    again = pedigree("run", str(made.parent / "withdrawals.yaml"), "--until", "provenance_index", root=made)
    assert again.code == 0, again.errors


def test_a_list_beside_an_artifact_excuses_nothing_that_no_takedown_wrote(made):
    """The root has takedown 1, anybody can write such a list, and the takedown itself noted other files."""
    recipe, (archive,) = made.parent / "withdrawals.yaml", made.glob("crawl_archives/*/archives/*")
    folder, data = archive.parents[1], archive.read_bytes()
    told, name = (folder / ERASED_FILE).read_bytes(), archive.relative_to(folder).as_posix()
    try:
        archive.write_bytes(data + b" ")
        size, sha256 = len(data) + 1, sha256_of(archive)
        note_erased(folder, name, ErasedState(takedown=1, bytes=size, sha256=sha256, is_input=True, pages=1))
        said = pedigree("verify", str(recipe), root=made)
        assert said.code == 1 and f"{name}: erased.json says that takedown 1" in json.dumps(said.answer)
        state = pedigree("status", str(recipe), root=made).answer["assets"]["crawl_archives"]
        assert state["withdrawals@one"]["state"] == "damaged"  # so no job reads it
    finally:
        archive.write_bytes(data)
        (folder / ERASED_FILE).write_bytes(told)
    assert pedigree("verify", str(recipe), root=made).code == 0


def test_a_text_is_withdrawn_for_good_and_may_be_asked_for_again(made):
    told = withdrawn(made, "--text", QUOTE.upper())
    assert told["report"]["proof"]["is_proved"] and "VILLAGE" not in json.dumps(told["report"]).upper()
    assert "village" not in shard_texts(made)
    assert withdrawn(made, "--text", QUOTE)["done"] == "was withdrawn before"


ROWS = """\
sft: {{data: [{{uri: "{folder}/said.jsonl", format: messages}}, {{uri: "{folder}/more.jsonl", format: messages}}]}}
preferences: {{data: [{{uri: "{folder}/pairs.jsonl", format: chosen_rejected}}]}}
align: {{method: grpo, prompts: "{folder}/asked.jsonl"}}
"""


REPEATING = [f"http://repeats{number}.example/" for number in (1, 2)]
TWINS = {"said.jsonl#0000001", "more.jsonl#0000001"}
OF_SOURCE = {f"more.jsonl#{row:07d}" for row in range(10)} | {"said.jsonl#0000002"}  # a row of it has a twin


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


@pytest.fixture(scope="module")
def with_rows(tmp_path_factory) -> Path:
    """A root with ten rows of two sources of instructions, of one of pairs, and of one of prompts.

    Rows 1 and 2 of both sources of instructions are the same, and two equal pages have an answer.
    """
    folder, ten = tmp_path_factory.mktemp("rows"), range(10)
    for name in ("said", "more"):
        own = [f"said {row}" if row in (1, 2) else f"{name} {row}" for row in ten]
        turns = [[("user", prose(f"ask {one}")), ("assistant", prose(one))] for one in own]
        lines(
            folder / f"{name}.jsonl",
            [{"messages": [{"role": role, "content": text} for role, text in one]} for one in turns],
        )
    pairs = [{one: prose(f"{one} {row}") for one in ("prompt", "chosen", "rejected")} for row in ten]
    lines(folder / "pairs.jsonl", pairs)
    lines(folder / "asked.jsonl", [{"prompt": prose(f"asked {row}"), "answer": f"{row}"} for row in ten])
    pages = {f"http://stays.example/{number}": prose(number) for number in range(20)}
    pages |= dict.fromkeys(REPEATING, f"{prose('before')} {prose('more 4')}")
    return root_of(folder, pages, more=ROWS.format(folder=folder), until=("provenance_index", "row_index"))


@pytest.mark.parametrize("policy", ["cluster", "twin"])
def test_rows_that_repeat_a_withdrawn_one_are_withdrawn_with_it_or_named(with_rows, tmp_path, policy):
    root = linked_copy(with_rows, tmp_path / "root")
    recipe = root / "recipes" / "withdrawals.yaml"
    text = recipe.read_text("utf-8")
    recipe.unlink()
    recipe.write_text(text.replace("duplicates: cluster", f"duplicates: {policy}"), "utf-8")
    told = pedigree("takedown", "--document", "said.jsonl#0000002", *WHY, "--dry-run", root=root).answer
    gone, named = ({row["id"] for row in told[name]} for name in ("asked_rows", "rows"))
    twins = ({"said.jsonl#0000002"}, {"more.jsonl#0000002"})
    assert (gone, named) == (twins if policy == "twin" else (twins[0] | twins[1], set()))


def test_pages_with_words_of_a_withdrawn_row_are_named_and_a_text_withdraws_both(with_rows):
    row = ("--document", "more.jsonl#0000004")
    told = pedigree("takedown", *row, *WHY, "--dry-run", root=with_rows).answer
    assert told["pages"] == 0 and told["pages_repeating_rows"]["runs"] == 106
    first, second = told["pages_repeating_rows"]["pages"]
    assert {first["url"], second["url"]} == {*REPEATING} and first["is_kept"] and not second["is_kept"]
    assert first["shared"] == second["shared"] == 53 and first["runs"] == 113
    said = "\n".join(lines_of(told))
    assert "2 pages with eight words in a row of these rows, not withdrawn" in said
    assert f"{first['url']} (in a shard): 53 of its 113 runs" in " ".join(said.split())
    both = pedigree("takedown", "--text", prose("more 4"), *WHY, "--dry-run", root=with_rows).answer
    assert (both["pages"], len(both["asked_rows"]), both["pages_repeating_rows"]["pages"]) == (2, 1, [])
    none = pedigree("takedown", "--document", "said.jsonl#0000004", *WHY, "--dry-run", root=with_rows).answer
    assert "No page has eight words in a row of these rows." in lines_of(none)


@pytest.mark.parametrize(
    ("asset", "asked", "gone", "words"),
    [
        ("preference_data", ("--document", "pairs.jsonl#0000003"), {"pairs.jsonl#0000003"}, "rejected 3"),
        ("preference_data", ("--text", prose("chosen 5").upper()), {"pairs.jsonl#0000005"}, "prompt 5"),
        ("prompt_data", ("--document", "asked.jsonl#0000002"), {"asked.jsonl#0000002"}, "asked 2"),
        ("prompt_data", ("--text", prose("asked 7")), {"asked.jsonl#0000007"}, "asked 7"),
        ("instruction_data", ("--document", "said.jsonl#0000001"), TWINS, "said 1"),
        ("instruction_data", ("--source", "more.jsonl"), OF_SOURCE, "more 9"),
    ],
    ids="pair-by-id pair-by-text prompt-by-id prompt-by-text twin source".split(),
)
def test_rows_of_each_kind_are_withdrawn_from_what_is_made_and_from_what_was(with_rows, asset, asked, gone, words):
    (before,) = [place for place in with_rows.glob(f"{asset}/*") if place.name == reference_of(with_rows, asset)]
    told = withdrawn(with_rows, *asked)
    number = max(one["takedowns"][-1] for one in reports_under(with_rows))
    report = (with_rows / "takedowns" / f"{number:06d}.report.md").read_text("utf-8")
    assert ("2 pages with eight words in a row of these rows, 1 in shards" in report) == (asked[0] == "--source")
    assert {row["id"] for row in told["asked_rows"]} == gone
    assert told["report"]["proof"]["verdict"] == "proved" and told["report"]["proof"]["runs"] > 40
    after = with_rows / asset / reference_of(with_rows, asset)
    kept, dropped = rows_in(after, dropped=False), rows_in(after, dropped=True)
    assert after != before and not gone & kept.keys() and gone <= dropped.keys()
    assert all(dropped[one]["row"] == {} and dropped[one]["reason"].startswith("takedown:") for one in gone)
    assert kept.keys() == rows_in(before, dropped=False).keys() - gone  # of the others none is lost
    said = " ".join(prose(words).split()[:8]).encode()
    assert not [path for path in with_rows.rglob("*") if path.is_file() and said in path.read_bytes()]
    assert pedigree("verify", str(with_rows.parent / "withdrawals.yaml"), root=with_rows).code == 0
    again = withdrawn(with_rows, *asked)
    assert again["done"] == "was withdrawn before"
    assert (told["report_is_new"], again["report_is_new"]) == (True, False) and again["report"] == told["report"]
    assert "No page was searched for these rows: no text of eight words is left of them." in lines_of(again)


def reference_of(place: Path, asset: str) -> str:
    (reference,) = (place / "refs" / asset).glob("*.json")
    return json.loads(reference.read_text("utf-8"))["fingerprint"]


def rows_in(folder: Path, *, dropped: bool) -> dict[str, Any]:
    names = ("dropped",) if dropped else ("instructions", "train", "held_out", "prompts")
    paths = [path for path in folder.glob("*.jsonl") if path.stem in names]
    rows = [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]
    return {row["id"]: row for row in rows}
