"""The scan finds withdrawn words in every kind of file under a root, and masks them where a text may be changed."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sqlite3
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from safetensors.numpy import save_file

from assets.answers.takedown import report as takedown_report
from assets.answers.takedown.erasing import Eraser, Gone, grams_file, scan
from assets.answers.takedown.masking import mask, masked_text, texts_of_program
from assets.answers.takedown.report import finish
from assets.state.tombstones import Tombstone, append, is_masked, note_overwritten
from resources.tracking.reports import Tracking
from resources.tracking.spool import SPOOL_FILE, nothing_applied, read_applied, read_spool, spool_bytes, write_applied
from tests.training.data.extract.test_extract import response
from tests.training.pretrain import tiny
from training.contract.artifact import (
    ARTIFACT_FILE,
    Damaged,
    commit_record,
    damaged_files,
    digest_of_files,
    find,
    find_copy,
    manifest,
    record_digest,
    write_json,
)
from training.contract.files.writing import write_sealed
from training.data.tokens.tokenizer import TOKENIZER_FILE, load_tokenizer
from training.data.words.ngrams import Hashes
from training.provenance.grams import count_in, grams_of, runs_with_letters
from training.provenance.swap import Swap
from training.provenance.text.suffixes import first_places, suffix_array

SECRET = "The aunt of Mr Öztürk keeps nine silver spoons under the third stair"
HARMLESS = "Nine people keep spoons, and the stair under the roof has a third step of silver"
WANTED: Hashes = np.unique(grams_of([SECRET])[0])


def in_parquet(folder: Path, text: str) -> Path:
    pq.write_table(pa.table({"id": ["a", "b"], "answers": [["no"], ["no", text]]}), path := folder / "rows.parquet")
    return path


def in_sqlite(folder: Path, text: str) -> Path:
    with sqlite3.connect(path := folder / "runs.db") as database:
        database.execute("CREATE TABLE events (id INTEGER, body TEXT)")
        database.executemany("INSERT INTO events VALUES (?, ?)", [(1, "x"), (2, json.dumps({"said": text}))])
    database.close()
    return path


def in_free_pages_of_sqlite(folder: Path, text: str) -> Path:
    path = in_sqlite(folder, text)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA secure_delete = OFF")
        database.execute("DELETE FROM events")
    database.close()
    return path


def in_zip(folder: Path, text: str) -> Path:
    with zipfile.ZipFile(path := folder / "logs.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.txt", text)
    return path


def in_bytes(suffix: str, pack: Callable[[bytes], bytes]) -> Callable[[Path, str], Path]:
    def write(folder: Path, text: str) -> Path:
        (path := folder / f"file{suffix}").write_bytes(pack(text.encode()))
        return path

    return write


def in_tokens(folder: Path, text: str, *, shuffled: bool = False) -> Path:
    """A shard of three documents; with `shuffled`, only the suffix array over it."""
    tokenizer = tiny.make_tokenizer(folder / "tokenizer" / ("7" * 32))
    encoder = load_tokenizer(Path(tokenizer.path, TOKENIZER_FILE))
    documents = [encoder.encode(one).ids for one in ("Bread.", text, "Cheese.")]
    tokens = np.array([token for one in documents for token in (*one, 0)], np.uint16)
    shards, index = folder / "token_shards" / ("8" * 32), folder / "text_index" / ("9" * 32)
    (shards / "shards").mkdir(parents=True)
    write_json(shards / "shards.json", {"dtype": "uint16", "vocab_size": 1 << 16, "shards": []})
    write_sealed(shards / "artifact.json", {"inputs": [{"asset": "tokenizer", "fingerprint": "7" * 32}]})
    if shuffled:
        (index / "suffixes").mkdir(parents=True)
        entry = {"suffixes": "suffixes/00000.npy", "first": "suffixes/00000.first.npy"}
        write_json(index / "text_index.json", {"dtype": "uint16", "shards": [entry]})
        write_sealed(index / "artifact.json", {"inputs": [{"asset": "token_shards", "fingerprint": "8" * 32}]})
        np.save(index / "suffixes/00000.first.npy", first_places(tokens, 1 << 16))
        np.save(path := index / "suffixes/00000.npy", suffix_array(tokens, 1 << 16))
        return path
    np.save(shards / "shards/00000.offsets.npy", np.cumsum([0, *(len(one) + 1 for one in documents)]))
    tokens.tofile(path := shards / "shards/00000.bin")
    return path


def escaped(data: bytes) -> bytes:
    """JSON with \\u escapes, and with a line end in the middle of the words."""
    return json.dumps({"a": data.decode().replace("nine ", "nine\n")}).encode()


def marked_up(data: bytes) -> bytes:
    return data.replace(b"nine", b"<a href='?q=%3Ebold'>nine</a>&nbsp;").replace(b"stair", b"st&#97;ir")


def packed_page(data: bytes) -> bytes:
    return response("a", b"<html>") + response("b", gzip.compress(data), Content_Encoding="gzip")


def zipped(data: bytes) -> bytes:
    with zipfile.ZipFile(content := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("word/document.xml", data)
    return content.getvalue()


def tarred(data: bytes, *, name: str = "a", form: int = tarfile.PAX_FORMAT) -> bytes:
    with tarfile.open(fileobj=(content := io.BytesIO()), mode="w", format=form) as packed:
        (member := tarfile.TarInfo(name)).size = len(data)
        packed.addfile(tarfile.TarInfo("first"))
        packed.addfile(member, io.BytesIO(data))
    return content.getvalue()


def without_magic(tar: bytes) -> bytes:
    """The first header of a tar as it was written before POSIX."""
    header = bytearray(tar[:512])
    header[257:265], header[148:156] = bytes(8), b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + tar[512:]


def table(data: bytes) -> bytes:
    pq.write_table(
        pa.table({"text": ["no", data.decode()]}), content := io.BytesIO(), compression="gzip", write_statistics=False
    )
    return content.getvalue()


def in_array(folder: Path, text: str) -> Path:
    np.save(path := folder / "said.npy", np.array([["no", text]]))
    return path


def in_header(folder: Path, text: str) -> Path:
    save_file({"weight": np.zeros(3, np.float32)}, path := folder / "step.safetensors", metadata={"said": text})
    return path


KINDS: dict[str, Callable[[Path, str], Path]] = {
    "array of texts": in_array,
    "header of weights": in_header,
    "two bytes a character": in_bytes(".log", lambda data: data.decode().encode("utf-16")),
    "four bytes a character": in_bytes(".dat", lambda data: data.decode().encode("utf-32")),
    "text": in_bytes(".log", bytes),
    "words in another case, folded and in other spaces": in_bytes(
        ".txt", lambda data: data.upper().replace(b" ", b",\n")
    ),
    "json": in_bytes(".json", escaped),
    "json in json": in_bytes(".jsonl", lambda data: json.dumps({"b": escaped(data).decode()}).encode()),
    "html": in_bytes(".html", marked_up),
    "address": in_bytes(".log", lambda data: b"GET /?q=" + quote(data.decode()).encode() + b"&n=%C3%BC HTTP/1.1"),
    "gzip": in_bytes(".jsonl.gz", lambda data: gzip.compress(b"{}\n") + gzip.compress(escaped(data))),
    "zstd": in_bytes(".jsonl.zst", lambda data: zstandard.compress(escaped(data))),
    "a file of a killed writer": in_bytes(".jsonl.gz.1-2-3.tmp", gzip.compress),
    "warc": in_bytes(".warc.gz", packed_page),
    "binary": in_bytes(".dat", lambda data: b"\x00\x01\xff" * 900 + data + b"\x00" * 90),
    "without a name": in_bytes("", bytes),
    "after many bytes": in_bytes(".out", lambda data: b"word " * 900_000 + data + b" word" * 9),
    "parquet": in_parquet,
    "sqlite": in_sqlite,
    "removed rows of sqlite": in_free_pages_of_sqlite,
    "zip": in_zip,
    "zip of another name, in gzip": in_bytes(".docx.bak", lambda data: gzip.compress(zipped(bz2.compress(data)))),
    "bzip2": in_bytes(".tar.bz2", bz2.compress),
    "xz": in_bytes("", lzma.compress),
    "gzip of another name": in_bytes(".tgz", gzip.compress),
    "gzip in tar": in_bytes(".tar", lambda data: tarred(gzip.compress(data))),
    "zip in tar in zstd in tar": in_bytes(".bak", lambda data: tarred(zstandard.compress(tarred(zipped(data))))),
    "bzip2 in an old tar, in xz": in_bytes(
        ".txz", lambda data: lzma.compress(without_magic(tarred(bz2.compress(data))))
    ),
    "gzip in a tar behind another tar": in_bytes("", lambda data: tarred(b"no") + tarred(gzip.compress(data))),
    "name in a tar": in_bytes(".tar", lambda data: tarred(b"no", name=data.decode())),
    "tar in zip": in_bytes(".zip", lambda data: zipped(tarred(gzip.compress(data)))),
    "table of another name": in_bytes(".parquet.bak", table),
    "table in tar, in gzip": in_bytes(".tgz", lambda data: gzip.compress(tarred(table(data)))),
    "tokens": in_tokens,
    "suffix array": lambda folder, text: in_tokens(folder, text, shuffled=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_text_is_found_in_every_kind_of_file(tmp_path, kind):
    path = KINDS[kind](tmp_path, SECRET)
    (hit,) = {one["path"] for one in scan(tmp_path, WANTED).hits}
    assert tmp_path / hit == path
    (tmp_path / "other").mkdir()
    KINDS[kind](tmp_path / "other", HARMLESS)
    assert {one["path"] for one in scan(tmp_path, WANTED).hits} == {hit}


@pytest.mark.parametrize(
    ("words", "encoding"),
    [
        ("девять ложек под чужой лестницей ждут своего хозяина вечером", "utf-16"),
        ("neun Löffel für die Gäste hängen hübsch über der Tür", "latin-1"),
        ("neuf cuillères à l’œuf où l’été dernier déjà brûla", "cp1252"),
    ],
)
def test_a_text_in_another_encoding_is_found_and_left_as_it_is(tmp_path, words, encoding):
    (tmp_path / "a.log").write_bytes(words.encode(encoding))
    (wanted := grams_of([words])[0]).sort()
    assert scan(tmp_path, wanted).hits and "UnicodeDecodeError" in mask_at_once(tmp_path, wanted)["a.log"]
    assert (tmp_path / "a.log").read_bytes() == words.encode(encoding)


def test_of_weights_the_header_alone_is_read_and_a_damaged_file_is_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 64 + SECRET.encode())
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(SECRET.encode())[:-9])
    (tmp_path / "c").write_bytes(b"%PDF-1.7 " + zlib.compress(SECRET.encode()))
    (tmp_path / "d").write_bytes(gzip.compress(b"!<arch>\n" + lzma.compress(SECRET.encode())))
    (tmp_path / "e").write_bytes(tarred(gzip.compress(SECRET.encode())[:-9]))
    found = scan(tmp_path, WANTED)
    assert {one["path"] for one in found.not_read} == {"a.parquet", "b.jsonl.gz", "c", "d", "e"} and not found.hits
    assert found.by_kind["safetensors, the header alone read"] == {"files": 1, "bytes": 64 + len(SECRET.encode())}


CAN_BE_MASKED = (
    "text",
    "json",
    "json in json",
    "html",
    "address",
    "gzip",
    "zstd",
    "without a name",
    "parquet",
    "sqlite",
)


def mask_at_once(root: Path, wanted: Hashes = WANTED, note: Any = lambda files, records: None) -> dict[str, str]:
    with Swap(takedown=3, note=note) as swap:
        told = mask(root, [root / one["path"] for one in scan(root, wanted).hits], wanted, swap)
        swap.commit()
    return told


@pytest.mark.parametrize("kind", CAN_BE_MASKED)
def test_words_that_are_left_in_a_text_are_masked_and_the_rest_stays(tmp_path, kind):
    path = KINDS[kind](tmp_path, f"before {SECRET} after")
    assert mask_at_once(tmp_path) == {path.name: ""}
    assert not scan(tmp_path, WANTED).hits
    left = grams_of([" ".join(["before"] * 4 + ["after"] * 4)])[0]
    assert not scan(tmp_path, left).hits


def test_masked_json_stays_json_and_a_masked_file_of_an_artifact_is_sound(tmp_path):
    assert json.loads(masked_text(json.dumps({"a": [SECRET, 1], "b": HARMLESS}), "", WANTED))["b"] == HARMLESS
    folder = tmp_path / "base_model" / ("a" * 32)
    folder.mkdir(parents=True)
    write_json(folder / "samples.json", [SECRET, HARMLESS])
    files = manifest(folder, ["samples.json"])
    notes = {"nearest": [{"text": SECRET}, {"text": HARMLESS}]}
    commit_record(folder, {"files": files, "digest": digest_of_files(files), "inputs": [], "notes": notes})
    before = find(folder)
    assert set(mask_at_once(tmp_path).values()) == {""}
    made = find(folder)
    assert made is not None and before is not None and not damaged_files(made) and not scan(tmp_path, WANTED).hits
    assert before.record_digest in made.claims and made.digest == before.digest
    assert made.record["notes"]["nearest"][1] == notes["nearest"][1]
    text = (folder / "samples.json").read_text("utf-8")
    assert HARMLESS in text and "spoons under" not in text
    (folder / "samples.json").write_text(text.replace("Nine", "Zero"))
    assert damaged_files(made)


@pytest.mark.parametrize("states_former", [False, True], ids=["its own digest", "the digest of the former record"])
def test_masking_a_record_that_somebody_changed_is_no_evidence_for_it(tmp_path, states_former):
    folder = tmp_path / "base_model" / ("a" * 32)
    record = {"files": [], "digest": digest_of_files([]), "inputs": [], "notes": {"nearest": SECRET}}
    commit_record(folder, record)
    held, forged = find(folder).record_digest, record | {"seed": 7}
    write_sealed(folder / ARTIFACT_FILE, forged | {"record_digest": held if states_former else record_digest(forged)})
    append(tmp_path, *(Tombstone(number=one, time="2026-01-01", reason="asked", entries=()) for one in (1, 2, 3)))
    mask_at_once(tmp_path, note=partial(note_overwritten, tmp_path, 3))
    if states_former:
        with pytest.raises(Damaged, match="another record digest"):
            find(folder)
    else:
        assert find(folder).record["seed"] == 7 and not is_masked(find(folder), held)
    assert is_masked(find_copy(folder), held) and not scan(tmp_path, WANTED).hits  # nobody had changed the copy


def test_words_in_the_folder_of_the_takedowns_are_found_but_in_their_own_files(tmp_path):
    """A list and a report hold addresses, which may be made of a page's words."""
    for name in ("notes.txt", "000001.report.txt", "old/000001.report.json", "000001.report.json", f"{'a' * 32}.txt"):
        (path := tmp_path / "takedowns" / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(SECRET))
    hits = {one["path"].removeprefix("takedowns/") for one in scan(tmp_path, WANTED).hits}
    assert hits == {"notes.txt", "000001.report.txt", "old/000001.report.json"}


ALPHABET = list("abcdefghijklm")
OF_TOKENIZERS = {
    "vocab.txt": "\n".join(ALPHABET),
    "vocab.json": json.dumps(dict(zip(ALPHABET, range(13), strict=True))),
    "special_tokens_map.json": json.dumps({"additional_special_tokens": ALPHABET}),
    "tokenizer_config.json": json.dumps({"added_tokens_decoder": {}, "extra_special_tokens": ALPHABET}),
    "tokenizer.json": json.dumps({"added_tokens": ALPHABET, "model": {"vocab": {"a": 0}, "merges": [["a", "b"]]}}),
}


@pytest.mark.parametrize("name", OF_TOKENIZERS)
def test_entries_of_a_tokenizer_are_no_text_even_without_weights_beside_it(tmp_path, name):
    (tmp_path / name).write_text(OF_TOKENIZERS[name])
    (wanted := grams_of([" ".join(ALPHABET)])[0]).sort()
    assert not scan(tmp_path, wanted).hits
    (tmp_path / name).write_text(OF_TOKENIZERS[name].replace("m", SECRET, 1))
    assert mask_at_once(tmp_path) == {name: "it is part of a model, its scores or a decision"}


DATABASES = {  # statements, of which the last one inserts a text, and what becomes of that
    "rows with a name of their own": ("CREATE TABLE t (rowid TEXT, v TEXT)", "INSERT INTO t VALUES ('a', ?)", ""),
    "no rowid": ("CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT) WITHOUT ROWID", "INSERT INTO t VALUES ('b', ?)", ""),
    "quotes": ('CREATE TABLE "t""" (k TEXT, "v""" TEXT)', 'INSERT INTO "t""" VALUES (0, ?)', ""),
    "collation": ("CREATE TABLE t (k TEXT, v TEXT COLLATE NOCASE)", "INSERT INTO t VALUES (0, ?)", ""),
    "bytes": ("CREATE TABLE t (k TEXT, v BLOB)", "INSERT INTO t VALUES (0, CAST(? AS BLOB))", "are no texts in it"),
    "search": ("CREATE VIRTUAL TABLE t USING fts5(k, v)", "INSERT INTO t VALUES (0, ?)", "virtual tables"),
    "trigger": (
        "CREATE TABLE t (k, v TEXT); CREATE TRIGGER r AFTER UPDATE ON t BEGIN UPDATE t SET k = 1; END",
        *("INSERT INTO t VALUES (0, ?)", "triggers"),
    ),
    "trigger that refuses": (  # as MLflow's databases have
        "CREATE TABLE s (k); CREATE TABLE t (k, v TEXT);"
        " CREATE TRIGGER r BEFORE UPDATE ON s BEGIN SELECT RAISE(ABORT, 'no'); END",
        *("INSERT INTO t VALUES (0, ?)", ""),
    ),
}


def statements_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return list(database.iterdump())


@pytest.mark.parametrize("kind", DATABASES)
def test_of_a_database_only_the_rows_with_the_words_change_or_nothing_does(tmp_path, kind):
    make, insert, why = DATABASES[kind]
    with closing(sqlite3.connect(tmp_path / "a.db")) as database, database:
        database.executescript(make)
        database.execute(insert, (SECRET,))
        database.execute(insert.replace("'b'", "'c'"), (HARMLESS,))
    before = statements_of(tmp_path / "a.db")
    assert why in mask_at_once(tmp_path)["a.db"]
    after = statements_of(tmp_path / "a.db")
    changed = [(one, two) for one, two in zip(before, after, strict=True) if one != two]
    assert len(changed) == (not why) and all(HARMLESS not in one for one, _ in changed)
    assert bool(scan(tmp_path, WANTED).hits) == bool(why)


def test_words_in_the_scores_of_a_model_are_named_and_left(tmp_path):
    folder = tmp_path / "model_scores" / ("a" * 32)
    folder.mkdir(parents=True)
    for name in ("scores.json", "samples.json"):
        write_json(folder / name, [SECRET])
    files = manifest(folder, ["scores.json", "samples.json"])
    commit_record(folder, {"files": files, "digest": digest_of_files(files), "inputs": []})
    mask_at_once(tmp_path)
    assert [one["path"] for one in scan(tmp_path, WANTED).hits] == [f"model_scores/{folder.name}/scores.json"]
    made = find(folder)
    assert made is not None and not damaged_files(made)


def test_the_index_goes_with_the_pages_in_it_and_with_a_job_that_has_no_documents_yet(tmp_path):
    crawl, others = "a" * 32, {name: tmp_path / "deduplicated_documents" / (name * 32) for name in "bcd"}
    (tmp_path / "crawl_archives" / crawl).mkdir(parents=True)
    rows = {"b": {"id": ["s/f.warc/0"], "text": [SECRET]}, "c": {"id": ["s/f.warc/9"], "text": [HARMLESS]}}
    for name, folder in others.items():
        for packed in ("index/key/0.texts", "scratch/blocks/0"):
            (folder / packed).parent.mkdir(parents=True)
            (folder / packed).write_bytes(b"packed")
        if name in rows:
            (folder / "documents").mkdir()
            pq.write_table(pa.table(rows[name]), folder / "documents/00000.parquet")
            files = manifest(folder, ["documents/00000.parquet"])
            inputs = [{"asset": "crawl_archives", "fingerprint": crawl}]
            record = {"asset": "deduplicated_documents", "partition": "tiny@s", "fingerprint": name * 32}
            commit_record(folder, {**record, "digest": digest_of_files(files), "inputs": inputs, "files": files})
    gone = Gone(ids={crawl: frozenset({"s/f.warc/0"})}, lists={})
    with Swap(takedown=1, note=lambda files, records: None) as swap:
        Eraser(tmp_path, gone, lambda line: None).erase(swap)
        swap.commit()
    left = {
        name for name, folder in others.items() if (folder / "index").exists() or (folder / "scratch/blocks").exists()
    }
    assert left == {"c"}


WORDS_OF = SECRET.split()
LEFT: dict[str, bytes] = {
    "keys.json": json.dumps({SECRET: 1}).encode(),
    "within.json": json.dumps({"said": json.dumps({SECRET: 1})}).encode(),
    "keys.yaml": f"{SECRET}: 1\n".encode(),
    "script.html": f"<html><script>var said = '{SECRET}';</script></html>".encode(),
    "program.py": f"said = '{SECRET}'\n".encode(),
    "model/README.md": SECRET.encode(),
    "binary.dat": b"\x00\xff" * 900 + SECRET.encode(),
    "logs.tar": tarred(SECRET.encode()),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_would_not_stay_what_it_is_is_left_byte_for_byte_and_named_with_the_reason(tmp_path, name):
    (path := tmp_path / name).parent.mkdir(exist_ok=True)
    path.write_bytes(LEFT[name])
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model/model.safetensors").write_bytes(b"weights")  # of no artifact, as in the registry
    (why,) = mask_at_once(tmp_path).values()
    assert why and path.read_bytes() == LEFT[name] and not list(tmp_path.rglob("*.tmp"))


def test_a_list_of_words_is_masked_word_by_word_and_numbers_between_them_stay(tmp_path):
    (path := tmp_path / "words.json").write_text(json.dumps([[1.50, word] for word in WORDS_OF]), "utf-8")
    numbers = np.unique(grams_of([f"1 5 {' 1 5 '.join(WORDS_OF)}"])[0])
    assert mask_at_once(tmp_path, numbers) == {"words.json": ""}
    assert json.loads(path.read_text("utf-8")) == [[1.5, "█"]] * len(WORDS_OF)


def test_addresses_schema_and_numbers_of_a_table_stay(tmp_path):
    messages = [[{"role": "user", "content": SECRET}], None]
    table = pa.table({"id": [SECRET, "b"], "n": [1, 2], "messages": messages}).replace_schema_metadata({"a": "b"})
    pq.write_table(table, path := tmp_path / "rows.parquet", row_group_size=1)
    table = pq.read_table(path)
    assert mask_at_once(tmp_path) == {"rows.parquet": ""}
    new = pq.read_table(path)
    assert new.schema.equals(table.schema, check_metadata=True) and pq.read_metadata(path).num_row_groups == 2
    assert new["id"].equals(table["id"]) and new["n"].equals(table["n"])
    assert "spoons" not in new["messages"][0].as_py()[0]["content"] and new["messages"][1].as_py() is None


def test_what_fails_before_the_swap_leaves_every_file_and_what_follows_it_does_not(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(SECRET, "utf-8")
    with pytest.raises(OSError, match="full"), Swap(takedown=1, note=lambda files, records: None) as swap:
        mask(tmp_path, [tmp_path / "a.txt", tmp_path / "b.txt"], WANTED, swap)
        raise OSError("the disk is full")
    assert {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()} == {"a.txt": SECRET, "b.txt": SECRET}


@pytest.mark.parametrize(
    ("address", "answers"),
    [
        pytest.param("", True, marks=pytest.mark.slow),  # MLflow makes its tables
        ("", False),
        ("http://one:two@127.0.0.1:9", False),
    ],
)
def test_what_waits_for_mlflow_is_sent_before_the_files_are_read_or_nothing_is_proved(
    tmp_path, monkeypatch, address, answers
):
    """As after the rebuild, whose last reports another process may be sending when it ends.

    What a server does not take is outside the root, so the root is proved, and the server is named.
    """
    root = tmp_path / "root"
    append(root, Tombstone(number=1, time="2026-01-01T00:00:00", reason="asked", entries=()))
    write_json(grams_file(root, 1).with_suffix(".json"), {"runs_elsewhere": 0, "in_other_sources": []})
    np.save(grams_file(root, 1), WANTED)
    (tmp_path / "said.txt").write_text(SECRET, "utf-8")
    waits = Tracking("", root, in_background=False)
    waits.launch("abc", "toy", "digest")
    waits.launched("abc").log_artifact(tmp_path / "said.txt")
    if answers:
        report = finish(root, tracking=Tracking("", root), say=print)
        assert report["proof"]["is_proved"] and len(report["erased"]["masked"]) == 1
        assert waits.pending() == 0 and "spoons" not in next(root.rglob("said.txt")).read_text("utf-8")
        return
    waits.launched("abc").log_text("said.txt", SECRET)
    monkeypatch.setattr(takedown_report, "FLUSH_SECONDS", 0.1)
    report = finish(root, tracking=Tracking(address, root, in_background=False), say=print)
    assert report["erased"]["masked"] == ["tracking/spool.jsonl"] and str(tmp_path) not in json.dumps(report)
    outside = [one for one in report["unreachable"] if "127.0.0.1:9" in one]
    if not address:
        (left,) = report["proof"]["not_read"]
        assert left["path"] == "tracking/spool.jsonl" and "MLflow has not taken" in left["why"]
        assert report["proof"]["verdict"] == "not proved" and not outside
    else:
        (said,) = outside
        assert report["proof"]["verdict"] == "proved" and "has not taken" in said and "two" not in said


def test_what_mlflow_has_of_masked_reports_stays_known(tmp_path):
    reports = Tracking("", tmp_path, in_background=False)
    reports.launch("abc", "toy", "digest")
    reports.launched("abc").log_text("said.txt", SECRET)
    folder = tmp_path / "tracking"
    size = spool_bytes(folder)
    write_applied(folder, nothing_applied(folder, reports.uri) | {"offset": size})
    spool = folder / SPOOL_FILE
    with Swap(takedown=1, note=lambda files, records: None) as swap:
        assert mask(tmp_path, [spool], WANTED, swap) == {"tracking/spool.jsonl": ""}
        swap.commit()
    assert "spoons" not in spool.read_text("utf-8") and spool_bytes(folder) == size
    reports.launch("def", "toy", "digest")
    (line,) = read_spool(folder, read_applied(folder, reports.uri)["offset"])[0]
    assert json.loads(line)["run"] == "launch-def"


def test_runs_without_letters_and_sentences_of_the_program_are_nobodys(tmp_path):
    assert len(runs_with_letters(["0 1 2 3 4 5 6 7 8 9", "1 2 3 4 5 6 7 \u0663 9"])) == 0
    assert len(runs_with_letters(["0 1 2 3 4 5 6 7 a 9"])) == 2
    sentence = np.unique(grams_of(["Take words out of files that are no documents: samples, reports, cards"])[0])
    assert any(count_in(texts, sentence)[0] for texts in texts_of_program())
