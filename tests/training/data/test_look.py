"""What `pedigree init` finds in folders of several formats, and the recipe that it writes."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import socket
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets.answers.own_data import name_of, recipe_for, write_recipe
from assets.state.recipe_folders import load_recipe
from tests.own_model import write_model, write_tokenizer
from tests.own_pages import sentences, write_warc
from training.contract.job import DataError
from training.contract.records import RecipeError
from training.contract.user_input.plain_data import yaml_value
from training.data.crawl.crawl import source_files
from training.data.crawl.folder import folder_files
from training.data.look import look_at

GERMAN = "Der Kuchen steht auf dem Tisch, und die Kinder warten schon lange auf ihre Mutter, die noch kochen will. " * 2


def rows(folder, name, rows):
    folder.mkdir(parents=True, exist_ok=True)
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), folder / name)
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (folder / name).write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)


@pytest.fixture
def folders(tmp_path):
    """A folder of each format, with five documents or more."""
    (tmp_path / "warc").mkdir()
    write_warc(tmp_path / "warc" / "one.warc.gz", pages=5)
    english = [{"text": sentences(number), "url": f"https://a.example/{number}"} for number in range(5)]
    rows(tmp_path / "hub" / "data", "train-00000-of-00001.parquet", english)
    rows(tmp_path / "hub" / "data", "test-00000-of-00001.parquet", english[:1])
    rows(tmp_path / "lines", "a.jsonl.gz", [{"id": "x", "words": GERMAN, "link": "https://b.example"}] * 5)
    rows(tmp_path / "twice" / "monday", "a.jsonl", english)
    rows(tmp_path / "twice" / "tuesday", "a.jsonl", english)
    (tmp_path / "texts" / "deep").mkdir(parents=True)
    (tmp_path / "texts" / "a.txt").write_text(sentences(1))
    (tmp_path / "texts" / "deep" / "b.txt.gz").write_bytes(gzip.compress(sentences(2).encode()))
    (tmp_path / "texts" / ".hidden.txt").write_text("no")
    return tmp_path


def test_each_format_is_found_with_its_columns_languages_and_files(folders):
    places = {path.name: look_at(str(path)) for path in folders.iterdir()}
    found = {name: one.data[0] for name, one in places.items()}
    assert {name: one.source for name, one in found.items()} == {
        "warc": "warc", "hub": "parquet", "lines": "jsonl", "twice": "jsonl", "texts": "files"
    }  # fmt: skip
    assert {name: one.files for name, one in found.items()} == {"warc": 1, "hub": 1, "lines": 1, "twice": 2, "texts": 2}
    assert {name: one.languages for name, one in places.items() if name != "lines"} == dict.fromkeys(
        ("warc", "hub", "twice", "texts"), ("en",)
    )
    lines = found["lines"]
    assert (lines.text_field, lines.url_field, places["lines"].languages) == ("words", "link", ("de",))
    assert places["hub"].left == {("another split than train", ".parquet"): 1}
    assert len(found["twice"].snapshots) == 2


def test_every_file_of_a_folder_is_counted_as_read_or_with_the_reason(folders):
    rows(folders, "chat.jsonl", [{"messages": []}])
    rows(folders, "seconds.jsonl", [{"machine": "a", "seconds": 3}])
    (folders / "README.md").write_text("# About")
    (folders / "guide.md").write_text(f"# Guide\n\n{sentences(3)}")
    (folders / "x.csv").write_text("a,b")
    (folders / "out.md").symlink_to("/etc/hostname")
    found = look_at(str(folders))
    assert {(one.source, *sorted(one.endings)): one.files for one in found.data} == {
        ("warc", ".warc.gz"): 1, ("parquet", ".parquet"): 1, ("jsonl", ".jsonl.gz"): 1, ("jsonl", ".jsonl"): 2,
        ("files", ".md", ".txt", ".txt.gz"): 4,
    }  # fmt: skip
    assert found.talks == (str(folders / "chat.jsonl"),)
    assert sum(found.left.values()) + found.files + len(found.talks) == sum(
        path.is_file() for path in folders.rglob("*")
    )
    (folders / "lines/README.md").write_text("# About")
    assert look_at(str(folders / "lines")).left == {("about the data", ".md"): 1}
    text = recipe_for(str(folders), "all", "all.yaml")
    for said in (
        "# Read: 3 .jsonl, 3 .md, 1 ", "it has machine, seconds: 1 .jsonl",
        "write texts as .jsonl: 1 .csv", "hidden: 1 .txt",
        "a link out of the folder: 1 .md", "another split than train: 1 .parquet", "sft:\n  data:\n    - {uri: ",
    ):  # fmt: skip
        assert said in text, text


def test_a_language_enters_only_with_a_share_that_mistakes_do_not_reach(tmp_path):
    for number in range(10):
        (tmp_path / f"{number}.md").write_text(f"# Note\n\n{sentences(number)}")
    (tmp_path / "3.md").write_text(GERMAN * 3)
    one = look_at(str(tmp_path))
    assert (one.languages, one.doubtful) == (("en",), {"de": 1})
    for number in range(4):
        (tmp_path / f"{number}.md").write_text(GERMAN * 3 + sentences(number)[:9])
    assert look_at(str(tmp_path)).languages == ("en", "de")
    assert "in few texts: de 1" not in recipe_for(str(tmp_path), "all", "all.yaml")


TALK = {"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]}
ALPACA = {"instruction": "Why?", "input": "", "output": "So.", "text": "Why? So."}
PAIR = {"prompt": "Why?", "chosen": "So.", "rejected": "No."}


@pytest.mark.parametrize(
    ("name", "row", "section", "entry"),
    [
        ("a.jsonl", TALK, "sft", "format: messages"),
        ("a.json", ALPACA, "sft", "format: alpaca, ignore: [text]"),
        ("a.parquet", {"question": "Why?", "answer": "So."}, "sft", "format: question_answer"),
        ("a.jsonl", {"prompt": "Why?", "response": "So."}, "sft", "format: prompt_answer, answer_field: response"),
        ("a.json", PAIR, "preferences", "format: chosen_rejected"),
        ("a.jsonl", {"prompt": "Why?", "completion": "So.", "label": True}, "preferences", "format: unpaired"),
    ],
)  # fmt: skip
def test_conversations_and_pairs_are_named_with_their_format_for_the_model_that_is_given(
    name, row, section, entry, tmp_path
):
    write_model(tmp_path / "model")
    (tmp_path / "chats").mkdir()
    if name.endswith(".json"):
        (tmp_path / "chats" / name).write_text(json.dumps([row] * 3))
        (tmp_path / "chats" / "settings.json").write_text('{"messages": 3}')
    else:
        rows(tmp_path / "chats", name, [row] * 3)
    text = recipe_for(str(tmp_path / "chats"), "own", "own.yaml", str(tmp_path / "model"))
    assert f'{section}:\n  data:\n    - {{uri: "{tmp_path}/chats/{name}", {entry}}}\n' in text
    if entry == "format: unpaired":
        return
    (tmp_path / "own.yaml").write_text(text)
    recipe = load_recipe(str(tmp_path / "own.yaml"))
    assert recipe.sft.data and bool(recipe.preferences.data) == (section == "preferences")


def test_a_text_file_is_no_split_whatever_its_name(tmp_path):
    for name in ("post-training.txt", "other.txt"):
        (tmp_path / name).write_text(sentences(name))
    assert (look_at(str(tmp_path)).files, look_at(str(tmp_path)).left) == (2, {})


def test_many_small_files_are_extracted_together(tmp_path):
    for number in range(16):
        (tmp_path / f"{number}.txt").write_text(sentences(number))
    recipe = load_recipe(str(write_recipe(str(tmp_path), "", tmp_path / "many.yaml")))
    assert recipe.extract.min_file_bytes == 16_000_000
    (tmp_path / "0.txt").unlink()
    few = load_recipe(str(write_recipe(str(tmp_path), "few", tmp_path / "few.yaml")))
    assert few.extract.min_file_bytes is None


def test_the_recipe_is_ten_lines_that_read_exactly_these_files(folders, tmp_path):
    for path in sorted(folders.iterdir()):
        file = write_recipe(str(path), "", folders / f"{path.name}.yaml")
        recipe = load_recipe(str(file))
        assert recipe.name == path.name and len(file.read_text().splitlines()) in (11, 12)
        assert recipe.filter.languages == look_at(str(path)).languages and recipe.pretrain.tokens == "auto"
        files = [entry["name"] for snapshot in recipe.snapshots for entry in source_files(snapshot)]
        assert len(files) == look_at(str(path)).files
        with pytest.raises(RecipeError, match="exists; choose another name with --name"):
            write_recipe(str(path), "", file)
    text = recipe_for("CC-MAIN-2024-22", "cc", "cc.yaml")
    assert "{name: cc-main-2024-22, source: commoncrawl, crawl: CC-MAIN-2024-22, num_files: 1}" in text
    assert [name_of(one) for one in ("/a/My Crawl/", "s3://b/x.jsonl.gz", "/")] == ["my-crawl", "x", "own"]


def test_what_stands_under_the_name_of_a_recipe_is_never_written_over(tmp_path, open_folder):
    (tmp_path / "a.txt").write_text(sentences(1))
    (tmp_path / "theirs.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    with pytest.raises(RecipeError, match=r"theirs\.yaml exists; choose another name"):
        write_recipe(str(tmp_path / "a.txt"), "", tmp_path / "theirs.yaml")
    assert not (tmp_path / "elsewhere.yaml").exists()
    (open_folder / "a.txt").write_text(sentences(1))
    with pytest.raises(DataError, match=r"mine\.yaml: Permission denied"):
        as_nobody(lambda: write_recipe(str(open_folder / "a.txt"), "", open_folder / "mine.yaml"))


def test_a_folder_of_token_shards_becomes_a_recipe_with_their_tokenizer(tmp_path):
    (tmp_path / "shards").mkdir()
    for name in ("a.ds", "a.ds.index", "alone.bin"):
        (tmp_path / "shards" / name).write_bytes(b"\0" * 16)
    with pytest.raises(DataError, match=r"1 file of tokens; put the tokenizer\.json"):
        look_at(str(tmp_path / "shards"))
    write_tokenizer(tmp_path / "shards")
    assert look_at(str(tmp_path / "shards")).left == {("beside token shards", ".bin"): 1}
    file = write_recipe(str(tmp_path / "shards"), "", tmp_path / "own.yaml")
    recipe = load_recipe(str(file))
    assert recipe.adopt.tokenizer == recipe.snapshots[0].tokenizer == str(tmp_path / "shards")
    assert (recipe.snapshots[0].source, recipe.filter.rules, recipe.tokenizer.vocabulary) == ("shards", (), 406)
    names = {one["name"] for one in source_files(replace(recipe.snapshots[0], paths=(f"{tmp_path}/shards/*.ds",)))}
    assert names == {"a.ds", "a.ds.index", "tokenizer.json"}


def test_what_is_no_documents_is_said_with_the_way_out(tmp_path):
    rows(tmp_path / "chat", "a.jsonl", [{"messages": []}])
    rows(tmp_path / "numbers", "a.parquet", [{"n": 1}])
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "data-00000-of-00001.arrow").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.warc.gz").write_bytes(b"zzzz" * 100)
    for place, said in (
        (tmp_path / "numbers", "no column with text; it has n"),
        (tmp_path / "saved", "files of `save_to_disk`, which are not supported; write them again .* `to_parquet`"),
        ("", "an empty text; name a folder"),
        (tmp_path / "a.warc.gz", "no text can be read in the files that were opened"),
        (tmp_path / "empty", "no documents that can be read; a name must end in one of .jsonl,"),
        (tmp_path / "none", "no such file or folder"),
        ("https://huggingface.co/datasets/a/b", "a page of the hub, not a file; download the data set first"),
    ):
        with pytest.raises(DataError, match=said):
            look_at(str(place))
    with pytest.raises(DataError, match=r"1 file of conversations or pairs, and no documents .* --model FOLDER"):
        recipe_for(str(tmp_path / "chat"), "own", "own.yaml")


def test_no_name_in_a_folder_writes_a_line_of_the_recipe(tmp_path):
    (tmp_path / "a.txt").write_text("Bread rises when the dough is warm. " * 20)
    (tmp_path / "b.x\nadopt: {model: other}").write_text("")
    (tmp_path / "c.jsonl").write_text('{"x\\nadopt: {model: other}": 1}\n')
    text = recipe_for(str(tmp_path), "own", "own.yaml")
    assert "adopt" not in yaml_value(text.encode(), "own.yaml")
    assert text.count(r"\nadopt: {model: other}") == 2


def test_a_file_whose_name_is_no_text_is_named_and_not_read(tmp_path):
    (tmp_path / "a.txt").write_text("Bread rises when the dough is warm. " * 20)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")).write_text("Bread")
    assert [file.name for file in folder_files([str(tmp_path)])] == ["a.txt"]
    assert "# Not read, a name that is not UTF-8: 1 .txt." in recipe_for(str(tmp_path), "own", "own.yaml")
    with pytest.raises(DataError, match=r"is not UTF-8; rename the file"):
        folder_files([f"{tmp_path}/*.txt"])


def test_a_file_without_an_ending_is_read_if_it_may_be_text(tmp_path):
    (tmp_path / "notes").write_text("Bread rises when the dough is warm. " * 20)
    (tmp_path / "blob").write_bytes(b"\0\1" * 400)
    assert look_at(str(tmp_path / "notes")).files == 1
    with pytest.raises(DataError):
        look_at(str(tmp_path / "blob"))


@pytest.fixture
def open_folder():
    """A folder that everybody may open, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def as_nobody(call):
    """Return what a call returns, or raise what it raises, in a process that may open only what everybody may."""
    ours, theirs = multiprocessing.Pipe()

    def ask():
        if not os.getuid():
            os.setgroups([]), os.setgid(65534), os.setuid(65534)
        try:
            theirs.send(call())
        except DataError as error:
            theirs.send(error)

    process = multiprocessing.get_context("fork").Process(target=ask)
    process.start()
    theirs.close()
    said = ours.recv()
    process.join()
    if isinstance(said, DataError):
        raise said
    return said


def test_what_cannot_be_opened_is_counted_and_ends_nothing(open_folder):
    place = open_folder / "mine"
    place.mkdir()
    for name in ("a.md", "b.md", "locked.md", "rows.jsonl", "README", "locked"):
        (place / name).write_text('{"text": "a"}\n')
    (place / "closed").mkdir()
    (place / "closed/in.md").write_text("a")
    for name in ("locked.md", "rows.jsonl", "README", "locked", "closed"):
        (place / name).chmod(0)
    for folder, names, mode in (("listed", ("in.md", "in.jsonl", b"\xff.jsonl"), 0o744), (".hidden", ("in.md",), 0)):
        (place / folder).mkdir()
        for name in names:
            Path(os.fsdecode(os.path.join(os.fsencode(place / folder), os.fsencode(name)))).write_text("a")
        (place / folder).chmod(mode)
    (place / "gone.md").symlink_to(place / "nowhere.md")
    (place / "round.md").symlink_to(place / "round.md")
    os.mkfifo(place / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place / "socket.md"))
    found = as_nobody(lambda: look_at(str(place)))
    assert found.left == {
        ("cannot be opened", ".md"): 2,
        ("cannot be opened", ".jsonl"): 3,
        ("cannot be opened", ""): 3,
        ("no file", ".md"): 3,
        ("no file", ".txt"): 1,
        ("hidden", ""): 1,
    }
    read = as_nobody(lambda: [file.path for file in folder_files([str(place)])])
    assert found.files == 2 and read == ["a.md", "b.md"]
    for name, why in (("rows.jsonl", "is no file that can be opened"), ("closed", "cannot be opened")):
        with pytest.raises(DataError, match=f"{name}: {why}"):
            as_nobody(lambda name=name: look_at(str(place / name)))


@pytest.mark.parametrize("name", ["one.warc.gz", "rows.jsonl", "rows.parquet"])
def test_a_file_of_no_bytes_is_named_and_enters_no_recipe(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=f"{name}: is empty: 0 bytes"):
        look_at(str(tmp_path))
    (tmp_path / "a.md").write_text(sentences(1))
    found = look_at(str(tmp_path))
    assert [one.source for one in found.data] == ["files"]
    assert found.left == {("is empty: 0 bytes", name[name.index(".") :]): 1}


@pytest.mark.parametrize("before", [0, 3, 40], ids=["first", "third", "beyond_the_columns"])
@pytest.mark.parametrize("damaged", [b'{"text": "cut', b"[1, 2]", b'{"text": "\xff"}'], ids=["cut", "list", "bytes"])
def test_a_damaged_line_keeps_no_file_from_being_read(before, damaged, tmp_path):
    lines = [json.dumps({"text": sentences(number)}).encode() for number in range(60)]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*lines[:before], damaged, *lines[before:]]))
    found = look_at(str(tmp_path))
    assert (found.files, found.left, found.samples) == (1, {}, 50)
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([damaged] * 20))
    with pytest.raises(DataError, match=r"a.jsonl: line 1 is no"):
        look_at(str(tmp_path))


def test_a_damaged_line_keeps_no_conversations_from_being_named(tmp_path):
    lines = [json.dumps({"prompt": "How far?", "answer": "A mile."})] * 3
    (tmp_path / "a.jsonl").write_text("\n".join([lines[0], '{"cut', *lines[1:]]))
    write_model(tmp_path / "model")
    said = recipe_for(str(tmp_path), "own", "own.yaml", str(tmp_path / "model"))
    assert f'{{uri: "{tmp_path}/a.jsonl", format: prompt_answer}}' in said
