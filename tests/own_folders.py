"""What becomes of the folders that people have, as a table: `python -m tests.own_folders [FOLDER ...]`.

Each folder holds real texts of PEDIGREE_DATA in the layout of a tool. The commands that a person types are run in it:
`pedigree init`, an exam of ten lines that is added to the recipe, and `pedigree run`. One epoch is trained, for time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.own_model import write_model
from tests.training.data.extract.test_folder_files import pdf

DATA = Path(os.environ.get("PEDIGREE_DATA", ""))
PEDIGREE = Path(sys.executable).with_name("pedigree")


def rows_of(name: str, number: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the first rows of a file of PEDIGREE_DATA."""
    with gzip.open(DATA / name, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, islice(lines, number))


def write_lines(file: Path, rows: Iterator[dict[str, Any]]) -> None:
    """Write rows as jsonl."""
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


def write_crawl(folder: Path, *, crawl: str = "crawl/snapshot-1/web-05") -> None:
    """Write what `wget -r --warc-file --warc-cdx` leaves: an archive, its index and the archive of wget's own notes."""
    for ending in ("-00000.warc.gz", "-meta.warc.gz", ".cdx.gz"):
        source = DATA / f"{crawl}{ending}"
        (folder / source.name).write_bytes(source.read_bytes())


def write_mirror(folder: Path, *, pages: int = 150) -> None:
    """Write what `wget -m` leaves: a file for each page under its host, queries in names, pages without an ending."""
    from training.data.crawl.warc import Record, read_warc
    from training.data.extract.responses import parse_response, payload

    found = 0
    for record in read_warc(DATA / "crawl/snapshot-1/web-02-00000.warc.gz", max_content_bytes=1_000_000):
        if found == pages or not isinstance(record, Record) or record.type != "response":
            continue
        address, response = urlsplit(record.headers["warc-target-uri"].strip("<>")), parse_response(record.content)
        if response.status != 200:
            continue
        path = address.path + ("index.html" if address.path.endswith("/") else "")
        file = folder / str(address.hostname) / (path.lstrip("/") + (f"?{address.query}" if address.query else ""))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(payload(response, max_bytes=1_000_000))
        found += "html" in response.content_type


def write_fineweb(folder: Path) -> None:
    """Write a file of FineWeb's sample as the hub has it: its columns, and a README."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = {"dump": "CC-MAIN-2024-10", "language": "en", "language_score": 0.95, "date": "2024-02-21T00:00:00Z"}
    rows = [
        {"text": row["text"], "id": f"<urn:uuid:{number}>", "url": f"https://site-{number}.example/a", **about}
        | {"file_path": "s3://commoncrawl/x.warc.gz", "token_count": len(row["text"]) // 4}
        for number, row in enumerate(rows_of("text/c4_demo.jsonl.gz"))
    ]
    (folder / "sample" / "10BT").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "sample" / "10BT" / "000_00000.parquet")
    (folder / "README.md").write_text("---\nlicense: odc-by\n---\n\n# FineWeb\n")


def write_notes(folder: Path) -> None:
    """Write notes in Markdown and papers in PDF."""
    with zipfile.ZipFile(DATA / "text/inaugural.zip") as packed:
        names = [name for name in packed.namelist() if name.endswith(".txt") and "README" not in name]
        for name in names:
            text, stem = packed.read(name).decode("latin-1"), Path(name).stem
            if stem < "1960":
                (folder / f"{stem}.md").write_text(f"---\ntitle: {stem}\n---\n\n# {stem}\n\n{text}", "utf-8")
                continue
            plain = text.encode("ascii", "ignore").decode().replace("\\", " ").replace("(", "[").replace(")", "]")
            words = plain.split()
            lines = [" ".join(words[start : start + 12]) for start in range(0, len(words), 12)]
            (folder / f"{stem}.pdf").write_bytes(pdf(*lines))


def write_repository(folder: Path) -> None:
    """Write a clone of this project's repository, with code and pages."""
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{os.getcwd()}", folder / "clone"], check=True)


def write_chats(folder: Path) -> None:
    """Write conversations as ShareGPT, Alpaca and TRL have them, and pairs as TRL has them."""
    write_lines(folder / "sharegpt.jsonl", rows_of("sft/glaive_toolcall_en_demo.jsonl.gz", 60))
    single = (one for one in rows_of("sft/self_instruct_seed_tasks.jsonl.gz") if len(one["instances"]) == 1)
    alpaca = [{"instruction": one["instruction"], **one["instances"][0]} for one in single]
    (folder / "alpaca.json").write_text(json.dumps(alpaca, indent=1), "utf-8")
    talks = (
        [{"role": "user", "content": one["question"]}, {"role": "assistant", "content": one["answer"]}]
        for one in rows_of("sft/gsm8k_train.jsonl.gz", 100)
    )
    write_lines(folder / "trl.jsonl", ({"messages": talk} for talk in talks))
    pairs = (
        {"prompt": one["conversations"][-1]["value"]} | {name: one[name]["value"] for name in ("chosen", "rejected")}
        for one in rows_of("preference/dpo_en_demo.jsonl.gz")
        if len(one["conversations"]) == 1
    )
    write_lines(folder / "preferences.jsonl", pairs)


FOLDERS: dict[str, Callable[[Path], None]] = {
    "wget archive": write_crawl,
    "wget mirror": write_mirror,
    "FineWeb": write_fineweb,
    "Markdown and PDF": write_notes,
    "repository": write_repository,
    "chats": write_chats,
}
# Which word goes on: what a small model can learn from any English text.
EXAM = (
    ("The reporters in Vienna were told that Dr. Amsel would call back as soon", "as", "of", "to", "is"),
    ("Mrs. Okafor took the night train from Leeds in order", "to", "of", "as", "and"),
    ("On the island of Vis the bakery of old Jakov is one of", "the", "to", "is", "was"),
    ("Since the flood of 1962 the bridge at Torsby has", "been", "the", "of", "be"),
    ("The brothers Lindqvist from Umea said that they want", "to", "of", "been", "is"),
    ("The garden of Ines Prado is full of herbs such", "as", "of", "was", "been"),
    ("The ferry to Saint-Malo was late on Tuesday because", "of", "been", "as", "was"),
    ("In the archive of Tartu there are letters of more", "than", "is", "of", "to"),
    ("Captain Morel told the pilots in Nouakchott that there", "are", "of", "as", "to"),
    ("The new clock in the town hall of Brno will", "be", "was", "been", "of"),
)
ONE_EPOCH = "mixture: {max_epochs: 1.0}\n"
LINES = """\
decontaminate:
  benchmarks: &mine [{{name: words, uri: "{exam}", kind: multiple_choice}}]
"""
SUITES = "evaluation: {{suites: *mine, tolerate_unknown: [{unknown}]}}\n"


def write_exam(file: Path) -> None:
    """Write the exam as a person does, ten lines, with the right choice at another place in each."""
    rows = []
    for number, (question, *choices) in enumerate(EXAM):
        gold = number % len(choices)
        rows.append({"question": question, "choices": [*choices[1 : gold + 1], choices[0], *choices[gold + 1 :]]})
        rows[-1]["gold"] = gold
    write_lines(file, iter(rows))


def row_of(name: str, folder: Path) -> tuple[str, ...]:
    """Return what the commands said of a folder: files, tokens, the first sentence of the result, and the seconds."""
    given, recipe = folder / "given", folder / "mine.yaml"
    given.mkdir(parents=True)
    FOLDERS[name](given)
    write_exam(folder / "exam.jsonl")
    model = []
    if name == "chats":
        write_model(folder / "model")
        model = ["--model", folder / "model"]
    told = _said(folder, "init", given, "--output", recipe, *model)
    if not recipe.exists():
        return name, "", "", told[-1], ""
    text = "".join(line for line in recipe.read_text().splitlines(True) if not line.startswith("evaluation:"))
    unknown, text = ("adopted_model", text) if model else ("", text + ONE_EPOCH)
    recipe.write_text(text + LINES.format(exam=folder / "exam.jsonl") + SUITES.format(unknown=unknown))
    started = time.monotonic()
    ran = _said(folder, "run", recipe, "--root", folder / "root")
    (folder / "run.txt").write_text("\n".join(ran))
    last = next((number for number, line in enumerate(ran) if "promoted" in line), 0)
    read = next((line.removeprefix("# Read: ") for line in told if line.startswith("# Read: ")), "")
    tokens = next((line.split("about ")[1].split(" ")[0] for line in told if "tokens before" in line), "")
    return name, read, tokens, " ".join(map(str.strip, ran[: last + 1])), f"{time.monotonic() - started:.0f}"


def _said(folder: Path, *words: object) -> list[str]:
    """Return the lines that a command prints, its errors last."""
    ran = subprocess.run([PEDIGREE, *map(str, words)], cwd=folder, capture_output=True, text=True)
    return [line for line in (*ran.stdout.splitlines(), *ran.stderr.splitlines()) if line.strip()]


def main() -> None:
    """Print the table of the folders that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help=", ".join(FOLDERS))
    parser.add_argument("--keep", type=Path, help="an empty folder for all that is written")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = asked.keep or Path(scratch)
        print("| folder | read | tokens, about | the run says | seconds |\n|---|---|---|---|---|", flush=True)
        for name in asked.folders or FOLDERS:
            print(f"| {' | '.join(row_of(name, place / name.replace(' ', '-')))} |", flush=True)


if __name__ == "__main__":
    main()
