"""Ranks of data stages are reused where their share of the inputs is the same, and are made where it is not."""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.data import chain
from training.contract import artifact
from training.contract.files.writing import sealed_text, write_json
from training.contract.job import InputArtifact, read_job, write_job
from training.contract.running import reuse
from training.contract.running.ranks import run_rank
from training.contract.running.runner import run_job
from training.data.crawl.crawl import source_files
from training.data.crawl.settings import SnapshotRecipe
from training.data.dedup.settings import DedupRecipe
from training.data.documents import count_documents, document_files, write_lines
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.exams.settings import BenchmarkRecipe
from training.data.extract.settings import ExtractRecipe
from training.data.filter.settings import FilterRecipe
from training.data.quality.settings import QualityRecipe
from training.data.sources import checksum_of
from training.data.tokens.tokenize_settings import ShardsRecipe
from training.data.tokens.tokenizer_settings import TokenizerRecipe
from training.provenance.index import Index
from training.stages import STAGES

IN_RANKS = {
    "extracted_documents": "extract",
    "document_scores": "score",
    "filtered_documents": "filter",
    "document_signatures": "sign",
    "decontaminated_documents": "decontaminate",
    "token_shards": "tokenize",
    "provenance_index": "provenance",
}
WORDS = "the bread is baked with rye flour and salt in a hot oven until its crust is dark and thin".split()
EXAM = {"id": "q1", "question": "Which flour does the dark bread of the valley need to rise well?", "answer": "rye"}

Made = dict[str, InputArtifact]


def page(file: str, number: int) -> str:
    """A text that no other page repeats; the first page of each file holds the exam's item."""
    turned = WORDS[number:] + WORDS[:number]
    leak = f"{EXAM['question']} {EXAM['answer']}. " if number == 0 else ""
    return leak + " ".join(f"{word}{file if place % 2 else number}" for place, word in enumerate(turned * 3))


BASE = {name: [page(name, number) for number in range(4)] for name in "abde"}


class Corpus:
    """Builds the corpus half of a chain from files of texts, and notes which ranks were run for each asset."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.ran: dict[str, list[int]] = {}
        self.tokenizer = self._tokenizer()
        self.exam = place / "exam.jsonl"
        write_lines(self.exam, [EXAM])

    def _tokenizer(self) -> InputArtifact:
        recipe = TokenizerRecipe(snapshots=("one",), vocabulary=300, min_bytes_per_token=1.0)
        texts = chain.documents(self.place / "words", "one", [BASE["a"]], asset="decontaminated_documents")
        return chain.run(self.place, "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, [texts])

    def build(
        self,
        root: str,
        files: Mapping[str, list[str]],
        lists: Mapping[str, str] = {},
        until: str = "",
        archives: Any = "copied",
        sizes: Mapping[str, int] = {},
        workers: int = 1,
    ) -> Made:
        """Build every asset under `root`, or those before `until`. `lists` are takedown lists by file name."""
        snapshot = replace(self._snapshot(files), archives=archives)
        made: Made = {}
        takedown = tuple(str(self._list(name, text)) for name, text in lists.items())
        sections = {
            "extract": ExtractRecipe(takedown=takedown, **sizes),
            "data": {uri: checksum_of(uri) for uri in takedown},
        }
        exams = BenchmarkRecipe(name="exam", uri=str(self.exam), kind="generate")
        index = {"decontaminate": DecontaminateRecipe(benchmarks=(exams,)), "data": {str(self.exam): "0" * 64}}
        settings = {
            "crawl_archives": {"snapshot": snapshot, "files": source_files(snapshot)},
            "extracted_documents": sections,
            "quality_models": {"quality": QualityRecipe()},
            "document_scores": {"filter": FilterRecipe(rules=("gopher_quality",)).measured()},
            "filtered_documents": {
                "filter": FilterRecipe(rules=("gopher_quality",), gopher_min_words=5, gopher_min_stop_words=0)
            },
            "document_signatures": {"dedup": DedupRecipe()},
            "deduplicated_documents": {"dedup": DedupRecipe()},
            "benchmark_index": index,
            "decontaminated_documents": index,
            "token_shards": {"shards": ShardsRecipe(max_shard_tokens=400)},
            "provenance_index": {},
        }
        for asset in takewhile(lambda name: name != until, CHAIN):
            stage, inputs = CHAIN[asset]
            given = [self.tokenizer if name == "tokenizer" else made[name] for name in inputs]
            partition = "tiny" if asset in ("quality_models", "benchmark_index") else "tiny@one"
            with self._noting(asset, stage):
                place, how = self.place / root, settings[asset]
                made[asset] = chain.run(place, stage, asset, partition, how, given, workers=workers)
        return made

    def _snapshot(self, files: Mapping[str, list[str]]) -> SnapshotRecipe:
        folder = self.place / f"texts-{artifact.digest_of(files)[:8]}"
        for name, texts in files.items():
            rows = [
                {"text": text, "url": f"https://{name}.test/{place}", "prompt": f"Write page {place} of {name}."}
                for place, text in enumerate(texts)
            ]
            write_lines(folder / f"{name}.jsonl", [row for row in rows if row["text"]])
        return SnapshotRecipe(name="one", source="jsonl", label="web", paths=(str(folder),), prompt_field="prompt")

    def _list(self, name: str, text: str) -> Path:
        path = self.place / "lists" / name
        artifact.write_text(path, text)
        return path

    @contextmanager
    def _noting(self, asset: str, stage: str):
        module, ran = importlib.import_module(STAGES[stage].module), self.ran.setdefault(asset, [])
        ran.clear()
        with pytest.MonkeyPatch.context() as patch:
            if hasattr(module, "run_rank"):
                run = module.run_rank
                patch.setattr(module, "run_rank", lambda job, work, rank: [ran.append(rank), run(job, work, rank)][1])
            yield


PLACES = (
    "extracted_documents",
    "filtered_documents",
    "deduplicated_documents",
    "decontaminated_documents",
    "token_shards",
)
CHAIN = {
    "crawl_archives": ("crawl", []),
    "extracted_documents": ("extract", ["crawl_archives"]),
    "quality_models": ("quality", []),
    "document_scores": ("score", ["extracted_documents", "quality_models"]),
    "filtered_documents": ("filter", ["extracted_documents", "document_scores"]),
    "document_signatures": ("sign", ["filtered_documents"]),
    "deduplicated_documents": ("dedup", ["filtered_documents", "document_signatures"]),
    "benchmark_index": ("benchmarks", []),
    "decontaminated_documents": ("decontaminate", ["deduplicated_documents", "benchmark_index"]),
    "token_shards": ("tokenize", ["decontaminated_documents", "tokenizer"]),
    "provenance_index": ("provenance", [*PLACES]),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def base(corpus: Corpus) -> Made:
    return corpus.build("root", BASE)


def assert_like_from_nothing(corpus: Corpus, made: Made, files: Mapping[str, list[str]], root: str, **how) -> None:
    """Every artifact has the files and, but for times, the record that a build under another root gives it."""
    ran = {asset: list(ranks) for asset, ranks in corpus.ran.items()}
    # From nothing: of an earlier build under the same root ranks would be reused.
    anew = corpus.build(f"{root}-{len(list(corpus.place.glob(f'{root}-*')))}", files, **how)
    assert {asset: item.digest for asset, item in made.items()} == {a: item.digest for a, item in anew.items()}
    assert record_digests(made) == record_digests(anew)
    corpus.ran = ran


def record_digests(made: Made) -> dict[str, str]:
    return {
        asset: artifact.Artifact(path=Path(item.path), record=item.record()).record_digest
        for asset, item in made.items()
    }


def withdrawn(files: Mapping[str, list[str]], name: str, number: int) -> dict[str, list[str]]:
    return {**files, name: [text for place, text in enumerate(files[name]) if place != number]}


def test_how_many_work_changes_no_artifact(corpus: Corpus, base: Made):
    made = corpus.build("two workers", BASE, workers=2)
    assert {asset: item.digest for asset, item in made.items()} == {a: item.digest for a, item in base.items()}
    assert record_digests(made) == record_digests(base)


def test_a_page_less_makes_one_rank_of_each_stage_again(corpus: Corpus, base: Made):
    files = withdrawn(BASE, "d", 1)
    made = corpus.build("root", files)
    assert {asset: corpus.ran[asset] for asset in IN_RANKS} == {asset: [2] for asset in IN_RANKS}
    for asset in IN_RANKS:
        told = made[asset].record()["reused_ranks"]
        assert told == {"ranks": 3, "of": 4, "from": {base[asset].fingerprint: 3}}
    counts = made["extracted_documents"].record()["counts"]
    assert counts == {"in": 15, "kept": 15, "dropped": {}, "quarantined": {}}
    assert_like_from_nothing(corpus, made, files, "anew")


def test_a_file_between_the_others_moves_them_and_makes_its_own_rank(corpus: Corpus, base: Made):
    files = {**BASE, "c": [page("c", number) for number in range(3)]}
    made = corpus.build("root", files)
    assert {asset: corpus.ran[asset] for asset in IN_RANKS} == {asset: [2] for asset in IN_RANKS}
    assert [Path(made["token_shards"].path, f"shards/0000{n}.bin").exists() for n in range(6)] == [True] * 5 + [False]
    assert_like_from_nothing(corpus, made, files, "anew")
    gone = {name: texts for name, texts in BASE.items() if name != "a"}
    made = corpus.build("root", gone)  # the first file vanishes, so every rank has another number
    assert {asset: corpus.ran[asset] for asset in IN_RANKS} == {asset: [] for asset in IN_RANKS}
    assert_like_from_nothing(corpus, made, gone, "anew")


def test_another_setting_or_vocabulary_takes_nothing_over(corpus: Corpus, base: Made):
    others = {
        "document_scores": {"filter": FilterRecipe(rules=("gopher_quality", "c4")).measured()},
        "filtered_documents": {
            "filter": FilterRecipe(rules=("gopher_quality",), gopher_min_words=6, gopher_min_stop_words=0)
        },
        "document_signatures": {"dedup": DedupRecipe(ngram_words=6)},
        "token_shards": {"shards": ShardsRecipe(max_shard_tokens=401)},
    }
    for asset, settings in others.items():
        stage, names = CHAIN[asset]
        inputs = [corpus.tokenizer if name == "tokenizer" else base[name] for name in names]
        made = chain.run(corpus.place / "root", stage, asset, "tiny@one", settings, inputs)
        assert made.fingerprint != base[asset].fingerprint and "reused_ranks" not in made.record()
    recipe = TokenizerRecipe(snapshots=("one",), vocabulary=310, min_bytes_per_token=1.0)
    texts = base["decontaminated_documents"]
    larger = chain.run(corpus.place / "root", "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, [texts])
    settings = {"shards": ShardsRecipe(max_shard_tokens=400)}
    made = chain.run(corpus.place / "root", "tokenize", "token_shards", "tiny@one", settings, [texts, larger])
    assert "reused_ranks" not in made.record()
    reported = replace(larger, digest="", path=str(corpus.place / "reported"))
    shutil.copytree(larger.path, reported.path)  # the same vocabulary in an artifact with another report
    write_json(Path(reported.path, "tokenizer_report.json"), {})
    names = [*larger.files(), "tokenizer_report.json"]
    reported = chain.committed(Path(reported.path), "tokenizer", "tiny", names)
    again = chain.run(corpus.place / "root", "tokenize", "token_shards", "tiny@one", settings, [texts, reported])
    assert again.record()["reused_ranks"]["ranks"] == 4 and again.record()["reused_ranks"]["from"] == {
        made.fingerprint: 4
    }


def test_another_model_or_exam_takes_nothing_over(corpus: Corpus, base: Made):
    for asset, model in (("document_scores", "quality_models"), ("decontaminated_documents", "benchmark_index")):
        copy = corpus.place / "models" / model
        shutil.copytree(base[model].path, copy)
        artifact.write_text(copy / "more.txt", "one word more")
        other = chain.committed(copy, model, "tiny", [*base[model].files(), "more.txt"])
        stage, names = CHAIN[asset]
        inputs = [other if name == model else base[name] for name in names]
        settings = read_job(Path(base[asset].path, "job.json")).settings
        made = chain.run(corpus.place / "root", stage, asset, "tiny@one", settings, inputs)
        assert made.fingerprint != base[asset].fingerprint and "reused_ranks" not in made.record()


def test_pages_are_withdrawn_from_ranks_without_extracting_any(corpus: Corpus, base: Made):
    page = "https://d.test/1"
    steps = [
        f"{page}\tcourt order\n",  # a page is withdrawn
        f"{page}\tcourt order\nhttps://nowhere.test/\n",  # a page that is not there
        f"{page}\tits author\n",  # another reason
        "one/d.jsonl/000000000001\tits author\nb.test\n",  # the same record by its id, and a whole file
        "=test,a)/2\tits author\n=test,e,\n",  # by keys
        "",  # nothing any more: as it was at first
    ]
    for number, text in enumerate(steps):
        lists = {f"takedown-{number}.txt": text}  # a process reads a list once
        made = corpus.build("root", BASE, lists, until="quality_models")
        assert corpus.ran["extracted_documents"] == [], text
        assert_like_from_nothing(corpus, made, BASE, "anew", lists=lists, until="quality_models")


SIZES = {
    "two archives a file": ({"min_file_bytes": 2000}, [8, 8]),
    "two pages a file": ({"max_file_bytes": 700}, [2] * 8),
}


@pytest.mark.parametrize("sizes", SIZES)
def test_files_of_a_good_size_have_the_same_pages_and_a_withdrawal_extracts_none(
    corpus: Corpus, base: Made, sizes: str
):
    how, expected = SIZES[sizes]
    made = corpus.build(sizes, BASE, sizes=how)
    files = document_files(made["extracted_documents"])
    assert [count_documents(path) for path in files] == expected
    assert [len(document_files(made["extracted_documents"], folder)) for folder in ("dropped", "quarantine")] == [
        len(expected)
    ] * 2
    for asset in PLACES[:-1]:
        assert chain.rows(made[asset]) == chain.rows(base[asset])
        assert made[asset].record()["counts"] == base[asset].record()["counts"]
    assert tokens_of(made) == tokens_of(base)
    indexes = [Index(one["provenance_index"], one, Path(one["provenance_index"].path)) for one in (made, base)]
    found = [[page.row["url"] for page in index.rows(np.arange(len(index)))] for index in indexes]
    assert sorted(found[0]) == sorted(found[1]) and len(found[0]) == 16
    for number, text in enumerate(("https://d.test/1\tcourt order\n", "b.test\n", "")):
        lists = {f"takedown-{sizes[:4]}{number}.txt": text}
        made = corpus.build(sizes, BASE, lists, until="quality_models", sizes=how)
        assert corpus.ran["extracted_documents"] == [], text
        assert_like_from_nothing(corpus, made, BASE, "anew", lists=lists, until="quality_models", sizes=how)


def tokens_of(made: Made) -> bytes:
    """The tokens of all shards, one after another."""
    item = made["token_shards"]
    shards = json.loads(Path(item.path, "shards.json").read_text())["shards"]
    return b"".join(item.file(shard["path"]).read_bytes() for shard in shards)


def test_a_page_that_is_withdrawn_no_more_is_extracted(corpus: Corpus):
    lists = {"takedown-before.txt": "https://d.test/1\n"}
    corpus.build("lifted", BASE, lists, until="quality_models")
    made = corpus.build("lifted", BASE, until="quality_models")
    assert corpus.ran["extracted_documents"] == [2]
    assert_like_from_nothing(corpus, made, BASE, "anew", until="quality_models")


def test_archives_that_stay_where_they_are_are_known_by_what_the_listing_says(corpus: Corpus, base: Made):
    how = {"until": "quality_models", "archives": "referenced"}
    corpus.build("references", BASE, **how)
    made = corpus.build("references", withdrawn(BASE, "b", 3), **how)
    assert corpus.ran["extracted_documents"] == [1]
    assert_like_from_nothing(corpus, made, withdrawn(BASE, "b", 3), "anew", **how)


def run_again(item: InputArtifact) -> tuple[int, InputArtifact]:
    """Run the job of an artifact again for another fingerprint; return how many ranks were reused."""
    job, fingerprint = read_job(Path(item.path, "job.json")), "a" * 32
    job = replace(job, fingerprint=fingerprint, output=str(Path(item.path).parent / fingerprint))
    assert run_job(job, STAGES) == 0
    made = replace(item, fingerprint=fingerprint, path=job.output)
    assert artifact.find(Path(made.path)).digest == item.digest
    return made.record().get("reused_ranks", {"ranks": 0})["ranks"], made


def forged(path: Path, **changed: object) -> None:
    """Change fields of a sealed file, and seal it again."""
    said = json.loads(path.read_text())
    path.write_text(sealed_text({name: value for name, value in (said | changed).items() if name != "checksum"}))


def swapped(path: Path) -> None:
    """Exchange the results of two ranks of equal length in the lines of an artifact, and note their new checksums."""
    index = json.loads((path / reuse.INDEX_FILE).read_text())["marks"]
    for entry in index[:2]:
        entry[0] = entry[0][::-1]
    forged(path / reuse.INDEX_FILE, marks=index)


def told_otherwise(path: Path) -> None:
    """Change a count in a rank's result, and all checksums in `reuse/` with it."""
    flip(path / reuse.MARKS_FILE, b'"kept":3', b'"kept":5')
    lines = (path / reuse.MARKS_FILE).read_bytes().splitlines(keepends=True)
    index = json.loads((path / reuse.INDEX_FILE).read_text())["marks"]
    marks = [[*one[:2], hashlib.sha256(line).hexdigest(), *one[3:]] for one, line in zip(index, lines, strict=True)]
    forged(path / reuse.INDEX_FILE, marks=marks)


def older(path: Path) -> None:
    """Say of two ranks that another version of a library wrote them."""
    index = json.loads((path / reuse.INDEX_FILE).read_text())["marks"]
    forged(path / reuse.INDEX_FILE, marks=[[key, "0" * 16, *line] for key, _, *line in index[:2]] + index[2:])


EDITS = {
    "nothing": (lambda path: None, 4),
    "a byte of the lines": (lambda path: flip(path / reuse.MARKS_FILE, b'"kept":3', b'"kept":5'), 3),
    "a byte of the index": (lambda path: flip(path / reuse.INDEX_FILE, b"0", b"1"), 0),
    "the index, sealed again": (lambda path: forged(path / reuse.INDEX_FILE, marks=[]), 0),
    "keys in the index, sealed again": (swapped, 2),
    "a line, sealed again": (told_otherwise, 0),
    "another version of a library": (older, 2),
    "a byte of a file": (lambda path: flip(path / "documents/00001.parquet", b"PAR1", b"PAR2"), 3),
    "a file less": (lambda path: (path / "dropped/00002.parquet").unlink(), 3),
    "a byte of a scratch file": (
        lambda path: flip(path / "reuse/scratch/hits-00000.parquet", b"PAR1", b"PAR2"),
        3,
    ),
    "the record": (lambda path: flip(path / "artifact.json", b'"kept": 12', b'"kept": 13'), 0),
    "the record, sealed again": (
        lambda path: forged(path / "artifact.json", ranks="0" * 64),
        0,
    ),
    "no lines": (lambda path: shutil.rmtree(path / reuse.FOLDER), 0),
}


def flip(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


@pytest.mark.parametrize("edit", EDITS)
def test_what_was_edited_is_made_again_and_never_used(corpus: Corpus, base: Made, edit: str):
    item = base["decontaminated_documents"]
    root = corpus.place / "edits" / edit
    copy = replace(item, path=str(root / item.fingerprint))
    shutil.copytree(item.path, copy.path)
    change, expected = EDITS[edit]
    change(Path(copy.path))
    reused, made = run_again(copy)
    assert reused == expected
    before = Path(copy.path, "documents/00003.parquet")
    if expected == 4:  # copies: what happens to one of the two leaves the other as it is
        with open(Path(made.path, "documents/00003.parquet"), "ab") as stream:
            stream.write(b"more")
        shutil.rmtree(made.path)
        assert artifact.sha256_of(before) == item.files()["documents/00003.parquet"]["sha256"]


KILLED = """
import os, shutil, sys
from training.contract.running.command_line import main
from training.stages import STAGES
def half(original, copy, _):
    copy.write(original.read(100))
    copy.flush()
    copies.append(1)
    if len(copies) == 5:
        os.kill(os.getpid(), 9)
    copy.write(original.read())
copies = []
shutil.copyfileobj = half
import training.contract.files.writing
training.contract.files.writing.shares_blocks = lambda *_: False
sys.exit(main(sys.argv[1:], STAGES))
"""


def test_a_kill_in_the_middle_of_taking_over_leaves_whole_ranks_and_the_rest_follows(corpus: Corpus, base: Made):
    item = base["decontaminated_documents"]
    root = corpus.place / "killed"
    shutil.copytree(item.path, root / item.fingerprint)
    job = read_job(Path(item.path, "job.json"))
    job = replace(job, fingerprint="f" * 32, output=str(root / ("f" * 32)))
    write_job(job, Path(job.output, "job.json"))
    died = subprocess.run([sys.executable, "-c", KILLED, f"{job.output}/job.json"], check=False)
    assert died.returncode == -signal.SIGKILL
    assert [path.name for path in Path(job.output, "ranks").glob("0*.json")] == ["00000.json"]  # 3 files each
    assert list(Path(job.output).rglob("*.tmp"))
    assert run_job(job, STAGES) == 0
    made = artifact.find(Path(job.output))
    assert (made.digest, made.record["reused_ranks"]["ranks"]) == (item.digest, 4)
    assert not list(Path(job.output).rglob("*.tmp"))


def test_the_tasks_of_an_array_take_over_too(corpus: Corpus, base: Made):
    item = base["document_signatures"]
    job = read_job(Path(item.path, "job.json"))
    job = replace(job, fingerprint="e" * 32, output=str(Path(item.path).parent / ("e" * 32)))
    for task in ("0/2", "1/2", ""):
        assert run_job(job, STAGES, ranks=task, missing_share=0.0 if not task else 1.0) == 0
    made = artifact.find(Path(job.output))
    assert (made.digest, made.record["reused_ranks"]["ranks"]) == (item.digest, 4)
    shutil.rmtree(job.output)


# What a rank reads


@pytest.mark.parametrize("asset", IN_RANKS)
def test_a_rank_reads_nothing_but_its_share(corpus: Corpus, base: Made, asset: str, tmp_path: Path):
    """Without every other file of the inputs that are read by file, each rank still makes the same files."""
    stage, item = STAGES[IN_RANKS[asset]], base[asset]
    module = importlib.import_module(stage.module)
    job = read_job(Path(item.path, "job.json"))
    shares = module.rank_shares(job)
    assert len(shares) == module.num_ranks(job) and set(stage.by_file) <= {given.asset for given in job.inputs}
    for rank, share in enumerate(shares):
        inputs = [
            bare(given, share, tmp_path / f"{rank}") if given.asset in stage.by_file else given for given in job.inputs
        ]
        alone = replace(job, inputs=tuple(inputs), output=str(tmp_path / "made"))
        result = run_rank(alone, stage, rank)
        for entry in artifact.manifest(Path(alone.output), result["files"]):
            known = item.files().get(entry["path"], entry if entry["path"].startswith("scratch/") else None)
            assert entry == known


def bare(item: InputArtifact, share, place: Path) -> InputArtifact:
    """The input with the files of one rank's share alone."""
    folder = place / item.asset
    for name in [artifact.ARTIFACT_FILE, *(name for given, name in (*share.files, *share.listings) if given == item)]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(item.path, name), folder / name)
    return replace(item, path=str(folder))


def test_every_stage_in_ranks_says_what_a_rank_reads_or_is_by_a_model():
    for stage in STAGES.values():
        if stage.in_ranks and not stage.by_a_model and not stage.phases:
            assert hasattr(importlib.import_module(stage.module), "rank_shares") and stage.by_file, stage.name


def test_a_rank_that_reads_another_file_is_not_reused_nor_is_any_after_it(
    corpus: Corpus, base: Made, monkeypatch: pytest.MonkeyPatch
):
    from training.data.dedup import sign

    run = sign.run_rank

    def curious(job, work, rank):
        if rank == 2:
            job.input_of("filtered_documents").file("documents/00000.parquet")
        return run(job, work, rank)

    monkeypatch.setattr(sign, "run_rank", curious)
    monkeypatch.setattr("training.contract.running.ranks._strayed", set())
    item = base["document_signatures"]
    root = corpus.place / "curious"
    job = read_job(Path(item.path, "job.json"))
    first, second = (replace(job, fingerprint=name * 32, output=str(root / (name * 32))) for name in "ab")
    run_job(first, STAGES)
    run_job(second, STAGES)
    assert artifact.find(root / ("b" * 32)).record["reused_ranks"]["ranks"] == 2  # the ranks 0 and 1
