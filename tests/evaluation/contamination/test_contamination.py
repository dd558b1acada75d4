"""The stage `contamination`: planted leaks in pages, instructions and preferences, and the refusal that follows."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets.state.requested_settings import asked_settings
from evaluation.contamination.scan import contamination, files_of
from evaluation.contamination.search import DOCUMENTS
from evaluation.contamination.trained_on import DECLARED, SCANNED, data_of
from evaluation.contamination.verdict import SHOWN_FINDINGS, gate_of
from evaluation.stages import ASSETS, STAGES
from tests import commands
from tests.evaluation.conftest import commit, make_job
from tests.examples import example, load_recipe
from tests.own_pages import write_warc
from tests.training.data import chain
from training.contract.artifact import find
from training.contract.job import InputArtifact, RefusedInput, write_job
from training.contract.records import RecipeError, read_record, write_record
from training.contract.running.command_line import main
from training.contract.running.runner import run_job
from training.contract.stage import Input
from training.data.documents import DocumentWriter, read_lines, write_lines
from training.data.quality.settings import ToxicityRecipe
from training.recipe.settings.evaluation import EvaluationRecipe
from training.stages import STAGES as TRAINING_STAGES

ITEMS = [
    {
        "id": f"item-{i}",
        "question": f"In which month does the market of {town} sell the first {fruit} of the year?",
        "answer": month,
    }
    for i, (town, fruit, month) in enumerate(
        [
            ("Bremholt", "pears", "July"),
            ("Norvane", "plums", "August"),
            ("Tessara", "quinces", "October"),
            ("Ulmland", "figs", "May"),
        ]
    )
]
LEAK = [f"{item['question']} It is {item['answer']}." for item in ITEMS]
DECEIVING = str.maketrans("aceopxy", "асеорху")
UNCLEARED = "each is too short, not its own, or not found where it is planted"
FILLER = "The kitchen was warm, and nobody spoke of anything in particular that day. " * 5


def document(number: int, text: str) -> dict[str, object]:
    return chain.document("s1", "pages.warc.gz", number, text, url=f"http://site.test/{number}")


def turn(role: str, content: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content}]


def corpus(
    root: Path, texts: list[str], *, sharded: list[str] | None = None, asked: list[str] = ()
) -> tuple[InputArtifact, InputArtifact]:
    """Documents in two files, and shards that say they hold the documents `sharded` (all by default).

    `asked` are the prompts of documents that a model wrote.
    """
    rows = [document(i * 100, text) for i, text in enumerate(texts)]
    rows = [row | {"prompt": prompt} for row, prompt in zip(rows, asked, strict=True)] if asked else rows
    for number, part in enumerate((rows[::2], rows[1::2])):
        path = root / "documents" / "documents" / f"{number:05d}.parquet"
        with DocumentWriter(path, extra=("prompt",) if asked else ()) as writer:
            for row in part:
                writer.write(row)
    ids = sharded if sharded is not None else [row["id"] for row in rows]
    (root / "shards" / "shards").mkdir(parents=True)
    pq.write_table(pa.table({"id": ids}), root / "shards" / "shards" / "00000.documents.parquet")
    return commit(root / "documents", "decontaminated_documents"), commit(root / "shards", "token_shards")


def rows_of(
    root: Path, instructions: list[str], preferences: list[tuple[str, str, str]]
) -> tuple[InputArtifact, InputArtifact]:
    write_lines(
        root / "instructions" / "instructions.jsonl",
        [
            {
                "id": f"sft-{i}",
                "messages": turn("user", "Tell me.") + turn("assistant", text),
                "source": "x",
                "generator": "g",
            }
            for i, text in enumerate(instructions)
        ],
    )
    write_lines(
        root / "preferences" / "train.jsonl",
        [
            {
                "id": f"pair-{i}",
                "prompt": turn("user", p),
                "source": "y",
            }
            | (
                {"chosen": turn("assistant", c), "rejected": turn("assistant", r)}
                if r
                else {"completion": turn("assistant", c)}
            )
            for i, (p, c, r) in enumerate(preferences)
        ],
    )
    write_lines(
        root / "preferences" / "held_out.jsonl",
        [{"id": "apart", "prompt": turn("user", LEAK[3]), "chosen": [], "rejected": []}],
    )
    return commit(root / "instructions", "instruction_data"), commit(root / "preferences", "preference_data")


def prompt_data(root: Path, prompts: list[dict]) -> tuple[InputArtifact]:
    rows = [{"id": f"p{i}", "answer": "", "rivals": [], "source": "z"} | row for i, row in enumerate(prompts)]
    write_lines(root / "prompts" / "prompts.jsonl", rows)
    return (commit(root / "prompts", "prompt_data"),)


def scores(root: Path) -> InputArtifact:
    """Kept samples in which every model knows the even items."""
    for model in ("base", "sft", "aligned"):
        rows = [{"item": item["id"], "correct": i % 2 == 0} for i, item in enumerate(ITEMS)]
        write_lines(root / "scores" / "samples" / f"{model}_market.jsonl.zst", rows)
    (root / "scores" / "scores.json").write_text(
        json.dumps({"aligned": {"market": {"score": 0.5, "stderr": 0.2, "n": 4}}})
    )
    return commit(root / "scores", "model_scores")


def contaminated_job(
    root: Path,
    texts: list[str],
    *,
    most: float = 0.0,
    sft: list[str] = (),
    pairs: list = (),
    judged: dict = {},  # noqa: B006 - read only
    trained_on: dict = {},  # noqa: B006 - read only
    prompts: list[dict] = (),
    items: list[dict] = ITEMS,
    **more: object,
):
    exam = root / "exam.jsonl"
    write_lines(exam, items)
    suite = {"name": "market", "uri": str(exam), "kind": "generate"}
    settings = {"evaluation": {"suites": [suite], "max_contaminated_fraction": most, **judged}}
    if trained_on:
        settings["trained_on"] = trained_on
    inputs = (
        *corpus(root, texts, **more),
        *rows_of(root, list(sft) or [FILLER], list(pairs) or [(FILLER, "a", "b")]),
        *(prompt_data(root, prompts) if prompts else ()),
    )
    return make_job("contamination", "data_contamination", root / "scan", settings, inputs)


def scan_of(job) -> InputArtifact:
    """The artifact of a scan that was run, as an input of other jobs."""
    found = find(Path(job.output))
    return InputArtifact(
        asset="data_contamination",
        partition="tiny",
        fingerprint="f",
        digest=found.digest,
        record_digest=found.record_digest,
        path=job.output,
    )


def scored_job(root: Path, texts: list[str], name: str = "report", **more: object):
    """A job that puts the models' scores to a scan whose verdict comes after the training."""
    scan = contaminated_job(root, texts, judged={"contamination": "after"}, **more)
    run_job(scan, STAGES)
    inputs = (scan_of(scan), scores(root))
    return make_job("contamination_report", "contamination_report", root / name, {}, inputs)


def report_of(job) -> tuple[dict, list[dict], dict]:
    run_job(job, STAGES)
    folder = Path(job.output)
    gate = next(gate for gate in find(folder).record["gates"] if gate["name"] == "contamination")
    return json.loads((folder / "contamination.json").read_text()), list(read_lines(folder / "findings.jsonl")), gate


def test_a_planted_page_is_named_with_its_warc_record(tmp_path):
    texts = [FILLER, FILLER + LEAK[2] + FILLER, FILLER]
    report, findings, gate = report_of(contaminated_job(tmp_path, texts))
    assert not gate["passed"] and report["verdict"] == "contaminated"
    (found,) = gate["evidence"]["findings"]
    assert (found["benchmark"], found["item"], found["url"]) == ("market", "item-2", "http://site.test/100")
    assert (found["warc_file"], found["warc_offset"], found["where"]) == ("pages.warc.gz", 100, "pretraining")
    (finding,) = findings
    start, end = finding["span"]
    assert texts[1][start:end] == finding["text"] and "market of Tessara" in finding["text"]
    assert (finding["before"], finding["after"]) == (texts[1][start - 160 : start], texts[1][end : end + 160])
    assert report["suites"]["market"]["found_fraction"] == 0.25


def test_the_prompts_of_synthetic_text_are_scanned_with_it(tmp_path):
    asked = [ITEMS[0]["question"], "Tell me of the weather.", f"Say in other words: {ITEMS[2]['question']}"]
    report, findings, gate = report_of(contaminated_job(tmp_path, ["In July.", "It rains.", "No."], asked=asked))
    assert report["verdict"] == "contaminated" and not gate["passed"]
    assert [(one["item"], one["how"], one["document"][-3:]) for one in findings] == [
        ("item-0", "item", "000"),
        ("item-2", "question_seen", "200"),
    ]


def test_a_changed_page_makes_only_its_rank_scan_again(tmp_path):
    texts = [FILLER, FILLER + LEAK[2] + FILLER, FILLER, FILLER]
    before = contaminated_job(tmp_path / "before", texts, sft=[LEAK[0]])
    after = contaminated_job(tmp_path / "after", [*texts[:2], FILLER + LEAK[1], FILLER], sft=[LEAK[0]])
    before, taking, anew = (
        replace(job, settings=before.settings, fingerprint=name, output=str(tmp_path / place / name))
        for job, place, name in ((before, "scans", "before"), (after, "scans", "after"), (after, "anew", "after"))
    )
    run_job(before, STAGES)
    report = report_of(taking)
    record = find(Path(taking.output)).record
    assert record["reused_ranks"] == {"ranks": 4, "of": 5, "from": {"before": 4}}  # and not documents/00000.parquet
    assert {found["item"] for found in report[1]} == {"item-0", "item-1", "item-2"}
    assert report == report_of(anew) and record["record_digest"] == find(Path(anew.output)).record["record_digest"]


def test_rows_learned_after_pretraining_are_read_too(tmp_path):
    pairs = [(ITEMS[1]["question"], "May", "August"), (LEAK[2], "a single answer", "")]
    job = contaminated_job(tmp_path, [FILLER], sft=[FILLER, LEAK[0]], pairs=pairs)
    report, findings, gate = report_of(job)
    assert report["suites"]["market"]["found"] == {
        "pretraining": [],
        "instructions": ["item-0"],
        "preferences": ["item-1", "item-2"],
        "prompts": [],
    }
    assert [(f["where"], f["row"], f.get("side")) for f in findings] == [
        ("instructions", "sft-1", None),
        ("preferences", "pair-0", "chosen"),
        ("preferences", "pair-0", "rejected"),
        ("preferences", "pair-1", "completion"),
    ]
    assert not gate["passed"] and [f["how"] for f in findings] == ["item", "question_seen", "item", "item"]


def test_any_data_are_judged_as_in_the_chain(tmp_path, monkeypatch, capsys):
    texts = [FILLER, FILLER + LEAK[2] + FILLER, ITEMS[0]["question"]]
    in_chain, found_there, gate_there = report_of(contaminated_job(tmp_path, texts))
    data, suites = tmp_path / "data", tmp_path / "suites.yaml"
    write_lines(data / "a.jsonl.gz", [{"url": "http://x.test", "turns": [{"said": text}]} for text in texts])
    (data / "b.txt").write_text(FILLER)
    suites.write_text(f"suites: [{{name: market, uri: {tmp_path / 'exam.jsonl'}, kind: generate}}]")
    command = ["contamination", str(data / "*"), "--against", str(suites), "--json"]
    code, answer = typed(monkeypatch, capsys, *command, "--output", str(tmp_path / "out"))
    (suite, chain), report = (one["suites"]["market"] for one in (answer["report"], in_chain)), answer["report"]
    assert {**suite, "scores": {}} == {**chain, "scores": {}} and report["verdict"] == in_chain["verdict"]
    assert code == 3 and report["scanned"]["texts"] == {"pretraining": 4} and not gate_there["passed"]
    assert [one["text"] for one in answer["findings"]] == [one["text"] for one in found_there]
    assert (answer["findings"][1]["file"], answer["findings"][1]["row"]) == ("a.jsonl.gz", "1")
    assert json.loads((tmp_path / "out" / "contamination.json").read_text()) == report
    assert typed(monkeypatch, capsys, "contamination", str(data / "b.txt"), *command[2:])[0] == 0

    write_warc(tmp_path / "own.warc.gz", pages=3)
    question = "How many of them were carried there?"
    write_lines(tmp_path / "exam.jsonl", [{"question": question, "answer": "many"}, ITEMS[0]])
    code, answer = typed(monkeypatch, capsys, "contamination", str(tmp_path / "own.warc.gz"), *command[2:])
    assert code == 0 and answer["report"]["scanned"]["texts"] == {"pretraining": 3}


def test_the_command_says_of_how_many_items_data_are_clean(tmp_path, monkeypatch, capsys):
    """An exam of short questions was called clean, although none of them could be found after an edit."""
    (tmp_path / "page.txt").write_text(FILLER)
    suites, short = tmp_path / "suites.yaml", [{"question": f"Is {what} in it?", "answer": "yes"} for what in "abcde"]
    suites.write_text(f"suites: [{{name: market, uri: {tmp_path / 'exam.jsonl'}, kind: generate}}]")
    for items, code, said in ((short, 3, "unknown: "), ([*short, *ITEMS], 0, "clean (4 of 9 items cleared): ")):
        write_lines(tmp_path / "exam.jsonl", items)
        told, shown, _ = commands.printed(
            monkeypatch, capsys, "contamination", str(tmp_path / "page.txt"), "--against", str(suites)
        )
        assert told == code and shown.startswith(said) and "5 cannot be cleared" in shown


def test_what_cannot_be_scanned_or_names_no_exam_is_said(tmp_path, monkeypatch, capsys):
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    (tmp_path / "a.png").write_bytes(b"PNG")
    (tmp_path / "none.yaml").write_text("suites: []")
    (tmp_path / "odd.yaml").write_text("evaluation: {suites: [{name: market}]}")
    write_lines(tmp_path / "a.jsonl", [{"text": FILLER}])
    for data, suites, said in (
        ("a.pdf", "kitchen", "no text was read (extractor_failed), so nothing can be said"),
        ("a.png", "kitchen", "no format that is read"),
        ("b.jsonl", "kitchen", "no such file"),
        ("a.jsonl", str(tmp_path / "none.yaml"), "evaluation.suites is empty; name a recipe or a file with exams"),
        ("a.jsonl", str(tmp_path / "odd.yaml"), "odd.yaml: suites[0].uri: missing"),
        ("a.jsonl", "kichen", "no recipe is called 'kichen'"),
    ):
        code, answer = typed(monkeypatch, capsys, "contamination", str(tmp_path / data), "--against", suites, "--json")
        assert code == 2 and said in answer["error"], answer
    for model, said in (
        (str(tmp_path), f"no model in {tmp_path}; a folder in the transformers layout is needed"),
        ("models:/kitchen", "expected models:/NAME@ALIAS or models:/NAME/VERSION"),
    ):
        code, answer = typed(monkeypatch, capsys, "evaluate", model, "--suites", "kitchen", "--json")
        assert code == 2 and said in answer["error"], answer


def typed(monkeypatch, capsys, *arguments: str) -> tuple[int, dict]:
    """The exit code of a command, and the object that it printed last."""
    code, answer, _ = commands.said(monkeypatch, capsys, *arguments)
    return code, json.loads(answer)


def test_the_verdict_refuses_a_training_before_it_or_the_promotion_after_it(tmp_path):
    scans = {}
    for text, when in (("leak", "before"), ("leak", "after"), ("clean", "before")):
        texts = [LEAK[0]] if text == "leak" else [FILLER]
        scan = contaminated_job(tmp_path / text / when, texts, judged={"contamination": when})
        run_job(scan, STAGES)
        scans[text, when] = scan_of(scan), find(Path(scan.output)).record["gates"]
    (_, (gate,)), (_, none) = scans["leak", "before"], scans["leak", "after"]
    assert none == [] and not gate["passed"] and "contamination: after" in gate["evidence"]["way_out"]
    assert gate["evidence"]["reason"].startswith("1 of 4 items of market were found; evaluation.max_contaminated")
    training = make_job("sft", "sft_model", tmp_path / "model", {}, ())
    with pytest.raises(RefusedInput, match=r"data_contamination .*: gate contamination .*item-0"):
        run_job(replace(training, guards=(scans["leak", "before"][0],)), TRAINING_STAGES)
    assert not (tmp_path / "model").exists()


def test_a_guard_is_recorded_and_is_no_input(tmp_path):
    job, clean = scored_job(tmp_path, [FILLER]), contaminated_job(tmp_path / "other", [FILLER])
    run_job(clean, STAGES)
    guard, again = scan_of(clean), replace(job, output=str(tmp_path / "again"))
    run_job(replace(job, guards=(guard,)), STAGES)
    moved = str(shutil.copytree(guard.path, tmp_path / "moved"))
    run_job(replace(again, guards=(replace(guard, path=moved),)), STAGES)
    first, second = find(Path(job.output)), find(Path(again.output))
    assert [item["digest"] for item in first.record["guards"]] == [guard.digest]
    assert "data_contamination" not in [item["asset"] for item in first.record["inputs"][1:]]
    assert first.record_digest == second.record_digest  # the guard's path is no part of what was decided
    (tmp_path / "moved" / "findings.jsonl").write_text("{}\n")
    third = replace(again, output=str(tmp_path / "third"), guards=(replace(guard, path=moved),))
    with pytest.raises(RefusedInput, match=r"findings\.jsonl"):
        run_job(third, STAGES)


def test_held_out_pairs_and_near_misses_are_not_leaks(tmp_path):
    near = ["the first pears of the year? July", " ".join(i["answer"] for i in ITEMS), "the market of Bremholt"]
    report, findings, gate = report_of(contaminated_job(tmp_path, near, sft=near))
    assert gate["passed"] and not findings and report["verdict"] == gate["evidence"]["verdict"] == "clean"
    assert report["scanned"]["texts"] == {"pretraining": 3, "instructions": 3, "preferences": 2, "prompts": 0}


def test_a_hidden_or_edited_item_is_found(tmp_path):
    texts = ["\u00ad".join(LEAK[0]), LEAK[1].replace("first", "very first"), LEAK[2].translate(DECEIVING), FILLER]
    report, _, _ = report_of(contaminated_job(tmp_path, texts))
    assert report["suites"]["market"]["found"]["pretraining"] == ["item-0", "item-1", "item-2"]


@pytest.mark.parametrize(
    ("meaning", "verdict", "passed"), [("contaminated", "contaminated", False), ("reported", "tolerated", True)]
)
def test_a_question_without_its_answer_is_what_the_recipe_says(tmp_path, meaning, verdict, passed):
    job = contaminated_job(tmp_path, [ITEMS[0]["question"], FILLER], judged={"question_seen": meaning})
    report, (finding,), gate = report_of(job)
    assert (report["verdict"], gate["passed"], finding["how"]) == (verdict, passed, "question_seen")
    assert report["suites"]["market"]["questions_seen"] == ["item-0"]
    tolerated = {"evaluation.question_seen=reported": {"market": "1 of 4 items"}}
    assert report["tolerated"] == (tolerated if passed else {}) == gate["evidence"].get("tolerated", {})


def test_the_prompts_of_reinforcement_learning_are_read(tmp_path):
    """The exam itself as prompts, with its answers as the reward, was clean before."""
    prompts = [
        {"prompt": turn("user", "Hello?")},
        {"prompt": turn("user", ITEMS[2]["question"]), "answer": "October"},
        {"prompt": turn("user", ITEMS[1]["question"]), "rivals": ["August"]},
    ]
    job = contaminated_job(tmp_path, [FILLER], prompts=prompts, trained_on={"system_prompt": LEAK[0]})
    report, findings, gate = report_of(job)
    assert not gate["passed"] and report["suites"]["market"]["found"]["prompts"] == ["item-0", "item-1", "item-2"]
    assert [(finding["row"], finding["source"]) for finding in findings] == [
        ("system prompt", "sft.system_prompt"),
        ("p2", "z"),
        ("p1", "z"),
    ]


def test_text_that_a_declaration_lets_a_model_read_needs_a_scan(tmp_path, monkeypatch):
    """Nobody lists what must be scanned: an input more in a training's declaration is enough."""
    recipe = load_recipe("kitchen-rl")
    asked = {name: data_of(load_recipe(name)) for name in ("kitchen", "kitchen-rl")}
    asked["kitchen-mixture"] = data_of(example("kitchen-mixture"))
    assert all(set(data) <= set(SCANNED) and len(data) == 3 + (name == "kitchen-rl") for name, data in asked.items())
    notes = replace(DECLARED["instruction_data"], name="notes")
    copied = replace(DECLARED["corpus_summary"], name="copied", inputs=(Input(asset="instruction_data"),))
    unread = replace(DECLARED["instruction_data"], name="unread")
    read_by_sft = (*DECLARED["sft_model"].inputs, Input(asset="notes"), Input(asset="copied"))
    read_by_sft += (Input(asset="unread", when=lambda recipe: recipe.name == "another"),)
    for asset in (notes, copied, unread, replace(DECLARED["sft_model"], inputs=read_by_sft)):
        monkeypatch.setitem(DECLARED, asset.name, asset)
    data = data_of(recipe)
    assert data == asked["kitchen-rl"] | {"notes": ("sft_model",)}
    report, _, gate = report_of(contaminated_job(tmp_path / "a", [FILLER], trained_on={"data": [*data]}))
    assert report["verdict"] == "unknown" and not gate["passed"]
    assert set(gate["evidence"]["unknown"]) == {"notes", "prompt_data"}  # this job has no prompts either
    assert gate["evidence"]["unknown"]["notes"].startswith("notes: ")
    reading = replace(
        DECLARED["base_model"],
        settings=lambda recipe, part: {"toxicity": ToxicityRecipe(positive=("a",), negative=("b",))},
    )
    monkeypatch.setitem(DECLARED, "base_model", reading)  # a training that opens a file of text itself
    assert data_of(recipe) == data | {"base_model": ("base_model",)}
    whole = {"prompts": [{"prompt": turn("user", FILLER)}], "trained_on": {"data": [*asked["kitchen-rl"]]}}
    assert report_of(contaminated_job(tmp_path / "b", [FILLER], **whole))[0]["verdict"] == "clean"


def teacher(root: Path, page: str, *, behind: tuple[str, ...] = (), **settings: object) -> Path:
    """Return the folder of a model that was made under `root` from a page, and from `behind`, assets without text."""
    folders = {name: root / name / f"{name}-fingerprint" for name in (DOCUMENTS, "token_shards", "base_model", *behind)}
    with DocumentWriter(folders[DOCUMENTS] / "documents" / "00000.parquet") as writer:
        writer.write(document(900, page))
    for name in ("token_shards", "base_model", *behind):
        write_lines(folders[name] / "content.jsonl", [{}])
    shards = commit(folders["token_shards"], "token_shards", inputs=(commit(folders[DOCUMENTS], DOCUMENTS),))
    others = [commit(folders[name], name) for name in behind]
    commit(folders["base_model"], "base_model", inputs=(shards, *others), settings=settings)
    return folders["base_model"]


def taught_job(root: Path, model: Path, texts: list[str], **judged: object):
    """A job of the settings that a recipe with this teacher has, over other pages than the teacher's."""
    recipe = example("kitchen-distilled")
    distill = replace(recipe.pretrain.distill, teacher=str(model))
    recipe = replace(recipe, pretrain=replace(recipe.pretrain, distill=distill))
    declared = next(asset for asset in ASSETS if asset.name == "data_contamination")
    asked = write_record(declared.settings(recipe, ""))
    of_teacher = {name: value for name, value in asked["trained_on"].items() if name.startswith("teacher")}
    job = contaminated_job(root, texts, trained_on=of_teacher, judged=judged)
    return replace(job, settings=job.settings | {"teacher_data": asked["teacher_data"]})


def test_the_data_of_a_teacher_made_here_are_scanned(tmp_path):
    """A teacher's probabilities carry what it learned, so its data are the student's too."""
    leaked = teacher(tmp_path / "leaked", LEAK[2], sft={"system_prompt": LEAK[1]})
    report, findings, gate = report_of(taught_job(tmp_path / "a", leaked, [FILLER]))
    assert report["verdict"] == "contaminated" and not gate["passed"] and report["unknown"] == {}
    assert [(one["item"], one["where"], one.get("url") or one["row"]) for one in findings] == [
        ("item-1", "prompts", "system prompt of the teacher"),
        ("item-2", "pretraining", "http://site.test/900"),
    ]
    clean = teacher(tmp_path / "clean", f"{FILLER} Twice.")
    report, _, gate = report_of(taught_job(tmp_path / "b", clean, [FILLER]))
    assert report["verdict"] == "clean" and gate["passed"] and report["scanned"]["texts"]["pretraining"] == 2
    pupil = teacher(tmp_path / "pupil", FILLER, teacher={"path": str(leaked), "digest": find(leaked).digest})
    assert report_of(taught_job(tmp_path / "c", pupil, [FILLER]))[0]["suites"]["market"]["found_items"] == 2


def test_what_is_behind_a_teacher_and_has_no_scan_is_unknown_by_name(tmp_path):
    gone = teacher(tmp_path / "gone", FILLER)
    shutil.rmtree(tmp_path / "gone" / DOCUMENTS)
    changed = teacher(tmp_path / "changed", FILLER)
    write_lines(tmp_path / "changed" / DOCUMENTS / f"{DOCUMENTS}-fingerprint" / "content.jsonl", [{}])
    commit(tmp_path / "changed" / DOCUMENTS / f"{DOCUMENTS}-fingerprint", DOCUMENTS)  # not what it was trained on
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "config.json").write_text("{}")
    for model, behind in (
        (gone, DOCUMENTS),
        (changed, DOCUMENTS),
        (teacher(tmp_path / "adopted", FILLER, behind=("adopted_model",)), "adopted_model"),
        (teacher(tmp_path / "new", FILLER, behind=("notes",)), "notes"),
        (teacher(tmp_path / "taught", FILLER, teacher={"path": "elsewhere"}), "a model from outside"),
        (tmp_path / "a folder", "a model from outside"),
    ):
        job = taught_job(tmp_path / "scan" / model.parent.parent.name, model, [FILLER])
        report, _, gate = report_of(job)
        assert report["verdict"] == "unknown" and not gate["passed"], model
        assert gate["evidence"]["unknown"]["teacher"].endswith(f"is not known here ({behind})"), gate["evidence"]
    allowed = taught_job(tmp_path / "allowed", gone, [FILLER], tolerate_unknown=["teacher"])
    assert report_of(allowed)[0]["verdict"] == "tolerated"


def test_where_a_teacher_lies_decides_nothing(tmp_path):
    there = taught_job(tmp_path / "a", teacher(tmp_path / "there", LEAK[0]), [FILLER])
    shutil.move(tmp_path / "there", tmp_path / "moved")
    moved = taught_job(tmp_path / "b", tmp_path / "moved" / "base_model" / "base_model-fingerprint", [FILLER])
    asked = [
        asked_settings(STAGES["contamination"], {"teacher_data": job.settings["teacher_data"]})
        for job in (there, moved)
    ]
    assert asked[0] == asked[1] and [set(one) for one in asked[0]["teacher_data"]] == [{"asset", "digest"}]
    assert report_of(moved)[0]["verdict"] == "contaminated"


def test_what_cannot_be_scanned_is_unknown_until_the_recipe_names_it(tmp_path):
    trained_on = {"teacher": "made://base_model/other", "teacher_unknown": ["base_model"]}
    report, _, gate = report_of(contaminated_job(tmp_path / "a", [FILLER], trained_on=trained_on))
    assert report["verdict"] == "unknown" and not gate["passed"] and "teacher" in gate["evidence"]["unknown"]
    judged = {"tolerate_unknown": ["teacher"]}
    report, _, gate = report_of(contaminated_job(tmp_path / "b", [FILLER], trained_on=trained_on, judged=judged))
    assert report["verdict"] == "tolerated" and gate["passed"]
    assert "made://base_model/other" in gate["evidence"]["tolerated"]["evaluation.tolerate_unknown"]["teacher"]


@pytest.mark.parametrize(
    ("suites", "said"),
    [
        ([], "evaluation.suites names no exam, so no item could be looked for"),
        (
            ["short"],
            f"no item of short (0 of 1) can be cleared: {UNCLEARED}",
        ),
    ],
)
def test_without_an_exam_to_look_for_nothing_is_clean(tmp_path, suites, said):
    write_lines(tmp_path / "short.jsonl", [{"question": "Which month?", "answer": "May"}])
    named = [{"name": name, "uri": str(tmp_path / "short.jsonl"), "kind": "generate"} for name in suites]
    report, _, gate = report_of(contaminated_job(tmp_path / "a", [FILLER], judged={"suites": named}))
    assert report["verdict"] == "unknown" and not gate["passed"] and gate["evidence"]["reason"] == said
    assert "evaluation.tolerate_unknown: teacher, adopted_model, exams" in gate["evidence"]["way_out"]
    allowed = {"suites": named, "tolerate_unknown": ["exams"]}
    report, _, gate = report_of(contaminated_job(tmp_path / "b", [FILLER], judged=allowed))
    assert report["verdict"] == "tolerated" and gate["passed"]
    assert gate["evidence"]["tolerated"] == {"evaluation.tolerate_unknown": {"exams": said}}
    suites_alone = read_record(EvaluationRecipe, {"suites": named})
    outside, _, gate = contamination(files_of([str(tmp_path / "short.jsonl")]), suites_alone, {})
    assert outside["verdict"] == "unknown" and not gate["passed"] and gate["evidence"]["reason"] == said


def test_a_suite_of_which_no_item_can_be_cleared_is_unknown_and_clean_says_how_many_are(tmp_path):
    """Each question is too short to be found after an edit, so a scan that finds none of them says nothing."""
    short = [item | {"question": f"In {item['question'].split()[7]}, which month?"} for item in ITEMS]
    said = f"no item of market (0 of 4) can be cleared: {UNCLEARED}"
    for most in (0.0, 0.5):
        report, _, gate = report_of(contaminated_job(tmp_path / f"a{most}", [FILLER], items=short, most=most))
        assert (report["verdict"], gate["passed"], gate["evidence"]["reason"]) == ("unknown", False, said)
    leaked = [f"{item['question']} {item['answer']}" for item in short]
    report, _, gate = report_of(contaminated_job(tmp_path / "b", leaked, items=short, most=1.0))
    assert report["suites"]["market"]["found_items"] == 4 and report["verdict"] == "tolerated"
    mixed = [*short[:1], *ITEMS[1:]]
    _, _, gate = report_of(contaminated_job(tmp_path / "c", [FILLER], items=mixed))
    assert gate["passed"] and gate["evidence"]["told"] == "clean (3 of 4 items cleared)"


def test_only_what_cannot_be_scanned_may_be_tolerated_as_unknown():
    with pytest.raises(RecipeError, match=r"'documents' .*'teacher', 'adopted_model', 'exams'"):
        EvaluationRecipe(suites=(), tolerate_unknown=("documents",))


def test_clean_and_found_items_are_scored_apart(tmp_path):
    job = scored_job(tmp_path, [LEAK[0], LEAK[2], LEAK[1]])
    report, findings, gate = report_of(job)
    assert report["scan"] == job.inputs[0].digest and len(findings) == 3 and not gate["passed"]
    aligned = report["suites"]["market"]["scores"]["aligned"]
    assert aligned["found"]["score"] == pytest.approx(2 / 3) and aligned["found"]["n"] == 3
    assert aligned["clean"] == {"score": 0.0, "interval": [0.0, pytest.approx(0.7935, abs=1e-4)], "n": 1}
    assert aligned["not_cleared"] == {"score": None, "interval": None, "n": 0}


def test_what_cannot_be_cleared_is_listed_and_never_counted_as_clean(tmp_path):
    """A short question is found word for word alone, so that nobody knows whether an edited one stands there."""
    items = [*ITEMS[:2], ITEMS[2] | {"question": "When are quinces sold?"}, ITEMS[3] | {"question": "Figs?"}]
    report, _, gate = report_of(scored_job(tmp_path, [LEAK[0], "When are the quinces sold? In October."], items=items))
    suite = report["suites"]["market"]
    assert suite["not_cleared"] == ["item-2", "item-3"] and gate["evidence"]["not_cleared"] == {"market": 2}
    assert {state: one["n"] for state, one in suite["scores"]["aligned"].items()} == {
        "clean": 1,
        "found": 1,
        "not_cleared": 2,
    }


def test_the_allowed_fraction_is_the_recipes(tmp_path):
    report, _, gate = report_of(contaminated_job(tmp_path / "a", [LEAK[0]], most=0.25))
    assert gate["passed"] and report["verdict"] == "tolerated"
    assert report["tolerated"] == {"evaluation.max_contaminated_fraction=0.25": {"market": "1 of 4 items"}}
    assert not report_of(contaminated_job(tmp_path / "b", [LEAK[0], LEAK[1]], most=0.25))[2]["passed"]


def test_a_shard_with_an_unread_document_fails_the_gate(tmp_path):
    report, _, gate = report_of(
        contaminated_job(tmp_path, [FILLER], sharded=["s1/pages.warc.gz/000000000000", "s1/elsewhere/0"])
    )
    assert report["unscanned_documents"] == 1 and not gate["passed"] and report["verdict"] == "unknown"
    assert gate["evidence"]["unscanned_documents"] == 1


def test_the_report_does_not_depend_on_workers(tmp_path):
    texts = [LEAK[1], FILLER, LEAK[0], FILLER + LEAK[0]]
    one = contaminated_job(tmp_path / "x", texts)
    run_job(one, STAGES)
    two = replace(one, output=str(tmp_path / "two"), run=replace(one.run, workers=2))
    run_job(two, STAGES)
    assert find(Path(one.output)).digest == find(Path(two.output)).digest


def test_a_promotion_is_refused_with_the_leak_in_the_message(tmp_path, capsys):
    job = scored_job(tmp_path, [FILLER, LEAK[3]])
    run_job(job, STAGES)
    record = find(Path(job.output)).record
    refused = replace(scan_of(job), asset="contamination_report", digest=record["digest"])
    promote = make_job("promote", "promoted_model", tmp_path / "promoted", {"promote": {"model_name": "m"}}, (refused,))
    with pytest.raises(RefusedInput):
        run_job(promote, STAGES)
    write_job(promote, tmp_path / "job.json")
    assert main([str(tmp_path / "job.json")], STAGES) == 3
    message = capsys.readouterr().err
    for part in ("item-3", "http://site.test/100", "pages.warc.gz", '"warc_offset":100'):
        assert part in message


def test_the_evidence_is_short_and_names_different_items():
    suites = {"market": {"found_fraction": 1.0, "found_items": 3, "items": 3, "not_cleared": []}}
    findings = [
        {"benchmark": "market", "item": f"item-{i % 3}", "where": "pretraining", "url": f"u{i}"} for i in range(30)
    ]
    report = {"suites": suites, "unscanned_documents": 0, "max_contaminated_fraction": 0.5, "tolerated": {}}
    gate = gate_of({**report, "verdict": "contaminated", "unknown": {}}, findings)
    shown = gate.evidence["findings"]
    assert len(shown) == SHOWN_FINDINGS and {finding["item"] for finding in shown[:3]} == {"item-0", "item-1", "item-2"}
