"""The report, the card and the scoreboard, from artifacts that hold hostile text and from hardly any."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from evaluation.hub.card import _rows_read, _shape, front_matter, one_line, render_card
from evaluation.report.figures import grid_picture
from evaluation.report.run_page import curves, insides, looked_at, records_of, render_report
from evaluation.report.scoreboard import headline, long_context_lines, scoreboard
from evaluation.report.scoreboard_print import cost_line, render
from evaluation.stages import STAGES
from tests.evaluation.conftest import commit, make_job
from tests.evaluation.report.pages import HOSTILE_URL, counts, document, documents
from tests.examples import load_recipe
from training.contract.artifact import manifest
from training.contract.job import InputArtifact
from training.contract.running.runner import run_job
from training.data.documents import write_lines
from training.recipe.recipe import recipe_as_data

ATTACK = "<script>alert('x')</script><img src=x onerror=alert(1)> </script> {{ 7 * 7 }} \" '"
PLAIN = {"name": "counts_balance", "passed": True, "evidence": {}}


def filtered(root: Path) -> InputArtifact:
    rows = [document(9, ATTACK, reason="too_short")]
    documents(root / "filtered", [document(1, ATTACK)], rows)
    return commit(
        root / "filtered", "filtered_documents", partition="tiny@s1", counts=counts(2, 1, too_short=1), gates=(PLAIN,)
    )


def deduplicated(root: Path) -> InputArtifact:
    original = document(1, f"one two three {ATTACK} four")
    copy = document(
        2, f"one two 3 {ATTACK} four five", reason="near_duplicate", duplicate_of=original["id"], similarity=0.8
    )
    documents(root / "dedup", [original], [copy], ("duplicate_of", "similarity"))
    return commit(
        root / "dedup",
        "deduplicated_documents",
        partition="tiny@s1",
        counts=counts(2, 1, near_duplicate=1),
        metrics={"clusters": 1.0},
    )


def base_model(root: Path) -> InputArtifact:
    (root / "base").mkdir(parents=True)
    rows = [{"time": 0, "step": step, "loss": 5.0 / step} for step in (1, 2, 3)]
    (root / "base" / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"torn')
    return commit(
        root / "base", "base_model", metrics={"loss_start": 5.0, "loss_end": 1.7, "steps": 3.0, "parameters": 1000.0}
    )


def long_context_model(root: Path) -> InputArtifact:
    needles = [{"depth": 0.5, "needles": 4, "found": 0.75, "said": 0.5}]
    part = {"needles": needles, "bits_per_byte": 1.0}
    lengths = {"short": 256, "long": 1024}
    table = {"lengths": lengths, "chance": 0.2, **{when: dict.fromkeys(lengths, part) for when in ("before", "after")}}
    (root / "long").mkdir(parents=True)
    (root / "long" / "long_context.json").write_text(json.dumps(table))
    metrics = {"needle_chance": 0.2, "needles_long_before": 0.25, "needles_long_after": 0.75}
    metrics |= {"bits_per_byte_short_before": 1.25, "bits_per_byte_short_after": 1.26}
    return commit(root / "long", "long_context_model", metrics=metrics)


def model_scores(root: Path) -> InputArtifact:
    suite = {"name": "chat", "uri": "x.jsonl", "kind": "chat"}
    entry = {"score": 0.5, "stderr": 0.1, "n": 4, "chance": 0.0, "metric": "correct", "metrics": {}}
    kind = {"score": 0.5, "n": 4, "chance": 0.25, "controls": {"ngram": 0.25, "pairs": 0.5}, "above_controls": False}
    entry["kinds"] = {"stated": kind}
    folder = root / "scores"
    for model in ("base", "sft", "aligned"):
        row = {"item": "c0", "prompt": ATTACK, "target": "ok", "response": ATTACK, "correct": model == "sft"}
        row |= {"score": 0.25} if model == "aligned" else {}
        write_lines(folder / "samples" / f"{model}_chat.jsonl.zst", [row])
    (folder / "scores.json").write_text(json.dumps({model: {"chat": entry} for model in ("base", "sft", "aligned")}))
    bits = {"bits_per_byte": 1.5, "interval": [1.25, 1.75], "texts": 2, "bytes": 2000}
    (folder / "bits_per_byte.json").write_text(json.dumps({"aligned": {**bits, "interval": None}, "sft": bits}))
    (folder / "held_out_bits_per_byte.json").write_text(json.dumps({"base": {**bits, "interval": None}}))
    one = {"before": "sft", "after": "aligned", "items": 4, "won": 3, "lost": 1, "p_value": 0.0001}
    one |= {"difference": 0.5, "interval": [-0.25, 0.75]}
    first = {**one, "before": "base", "after": "sft", "p_value": 0.625}
    far = {**one, "before": "base", "won": 0, "lost": 0, "p_value": 1.0}
    (folder / "comparisons.json").write_text(json.dumps({"chat": [first, far, one]}))
    return commit(folder, "model_scores", settings={"evaluation": {"suites": [suite]}})


def alignment_rewards(root: Path) -> InputArtifact:
    part = {"right": {"mean": 0.75, "interval": [0.5, 0.875], "n": 4}}
    reward = {"true_reward": 1.5, "true_reward_interval": 0.25, "parts": part}
    (root / "rewards").mkdir(parents=True)
    (root / "rewards" / "alignment.json").write_text(json.dumps({"sft": reward, "gain": reward}))
    return commit(root / "rewards", "alignment_rewards")


def contamination_report(root: Path) -> InputArtifact:
    folder = root / "contamination"
    finding = {
        "benchmark": "chat",
        "item": "c0",
        "where": "pretraining",
        "document": "s1/a.warc.gz/000000000007",
        "url": HOSTILE_URL,
        "warc_file": "a.warc.gz",
        "warc_offset": 7,
        "text": ATTACK,
        "before": "before ",
        "after": " after",
    }
    write_lines(folder / "findings.jsonl", [finding])
    part = {"score": None, "interval": None, "n": 0}
    found = {"clean": {"score": 0.0, "interval": [0.0, 0.49], "n": 4}, "found": part}
    suite = {
        "items": 4,
        "found_items": 1,
        "found_fraction": 0.25,
        "not_cleared": [],
        "questions_seen": [],
        "scores": dict.fromkeys(("base", "sft", "aligned"), found),
    }
    report = {
        "verdict": "contaminated",
        "tolerated": {},
        "suites": {"chat": suite},
        "scanned": {"texts": {"pretraining": 3}},
    }
    (folder / "contamination.json").write_text(json.dumps(report))
    gate = {"name": "contamination", "passed": False, "evidence": {"findings": [finding]}}
    return commit(folder, "contamination_report", gates=(gate,))


@pytest.fixture
def inputs(tmp_path) -> tuple[InputArtifact, ...]:
    makes = (filtered, deduplicated, base_model, model_scores, alignment_rewards, contamination_report)
    return tuple(make(tmp_path) for make in makes)


class _Page(HTMLParser):
    """What a browser would see: tags with their attributes, and text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.text += data


def aligned_model(root: Path, *, falls: bool) -> InputArtifact:
    """A model whose trained reward rose by a step; its true one falls with it, or rises."""
    looks = []
    for step, rise in enumerate((0.0, 0.2, 0.6)):
        truth = -rise if falls else rise
        numbers = dict.fromkeys(("win_rate_against_sft", "answer_tokens", "kl_from_sft", "entropy", "repetition"), 0.5)
        numbers |= {"proxy_reward": rise, "true_reward": 1 + truth}
        changes = {"proxy_change": [rise, rise - 0.1, rise + 0.1], "truth_change": [truth, truth - 0.1, truth + 0.1]}
        looks.append({"step": step, **{f"watched_{name}": value for name, value in numbers.items()}, **changes})
    fall = {"sentence": f"from step 0 to step 2 {ATTACK}"} if falls else None
    seen = {"truth": "right_answer", "prompts": 32, "looks": looks, "proxy_up_truth_down": fall}
    (root / "aligned").mkdir(parents=True)
    return commit(root / "aligned", "aligned_model", notes={"watched": seen})


@pytest.mark.parametrize("falls", [True, False])
def test_the_page_draws_the_reward_of_alignment_beside_the_truth(tmp_path, falls):
    page = _Page(render_report(records_of([Path(aligned_model(tmp_path, falls=falls).path)])))
    lines = [attributes for tag, attributes in page.tags if tag == "path" and "line l" in (attributes["class"] or "")]
    assert len(lines) == 7 and "true one, right answer, is what" in page.text
    assert ("rose while the true one fell: from step 0 to step 2" in page.text) is falls
    assert ("-0.600 (-0.700 to -0.500)" in page.text) is falls
    assert not any(tag in ("script", "img") for tag, _ in page.tags)


def chats(root: Path) -> list[InputArtifact]:
    """What a judge and requests found; the judge's name is a stranger's text."""
    rate = {"share": 0.6, "interval": [0.4, 0.8], "n": 20}
    pairs = {"better": "aligned", "other": "sft", "win_rate": rate, "agreement": rate}
    rated = {"mean": 6.5, "interval": [6.0, 7.0], "questions": 10, "without_verdict": 1}
    judge = {"endpoint": "http://127.0.0.1/v1", "model": "judge", "served": [ATTACK]}
    told = {"ratings": {"sft": rated}, "pairs": pairs, "verdicts": 40, "without_verdict": 2, "judge": judge}
    (root / "judged").mkdir(parents=True)
    (root / "judged" / "judged.json").write_text(json.dumps({**told, "prose": [ATTACK]}))
    (root / "safety").mkdir()
    shares = {"harmful": {"share": 0.1, "n": 60}, "harmless": {"share": None, "n": 0}}
    (root / "safety" / "safety.json").write_text(json.dumps({"aligned": shares}))
    return [commit(root / "judged", "judged_chat"), commit(root / "safety", "safety_answers")]


def test_judged_chat_and_safety_stand_in_card_and_report_where_a_recipe_asks_for_them(inputs, tmp_path):
    recipe = load_recipe("kitchen")
    without = records_of(Path(item.path) for item in inputs)
    card = render_card(recipe, without, scoreboard(without))
    assert not {"judged_chat", "safety"} & scoreboard(without).keys() and "Safety" not in card
    records = [*without, *records_of(Path(item.path) for item in chats(tmp_path / "chats"))]
    page, card = _Page(render_report(records)), render_card(recipe, records, scoreboard(records))
    won = "It prefers the aligned model's answers to the sft model's in 60.0 % of 20 comparisons (40.0 to 80.0"
    for said in ("6.50 (6.00 to 7.00)", won, "10.0 (4.7 to 20.1) of 60"):
        assert said in card and said in " ".join(page.text.split())
    assert ATTACK in page.text and "script" not in {tag for tag, _ in page.tags}
    assert "<script>" not in card and "| sft | 6.50 (6.00 to 7.00) | 10 | 1 |" in card
    assert "prose" not in scoreboard(records)["judged_chat"]


def test_text_of_pages_stays_text(inputs):
    page = _Page(render_report(records_of(Path(item.path) for item in inputs)))
    assert not [attributes for tag, attributes in page.tags if tag == "img" or "onerror" in attributes]
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.text.count("<script>alert('x')</script>") >= 5  # dropped, duplicate, prompt, three answers, finding
    assert "49" not in page.text.split("{{ 7 * 7 }}")[1][:5]


def test_a_long_context_stage_is_one_sentence_of_the_report_and_the_scoreboard(inputs, tmp_path):
    without = records_of(Path(item.path) for item in inputs)
    assert scoreboard(without)["long_context"] == {} and "Long context" not in _Page(render_report(without)).text
    records = [*without, *records_of([Path(long_context_model(tmp_path).path)])]
    sentence = (
        "Long context: needles in 1,024 tokens 25 → 75 %, chance 20 %; held out in rows of 256 1.250 → 1.260 bits per"
        " byte"
    )
    assert long_context_lines(scoreboard(records)["long_context"]) == [sentence]
    assert sentence in " ".join(_Page(render_report(records)).text.split())


def test_nothing_is_loaded_and_no_page_is_linked(inputs):
    html = render_report(records_of(Path(item.path) for item in inputs))
    page = _Page(html)
    for tag, attributes in page.tags:
        assert not attributes.get("src"), tag
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(
        attributes["content"]
        for _, attributes in page.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'")


def test_a_leak_a_refusal_and_the_parts_of_the_true_reward_are_shown(inputs):
    page = _Page(render_report(records_of(Path(item.path) for item in inputs)))
    assert "Refused: contamination_report [tiny] by gate contamination" in " ".join(page.text.split())
    assert "warc_file: a.warc.gz" in page.text and "warc_offset: 7" in page.text
    assert "mark" in {tag for tag, _ in page.tags}
    kind = "chatstated425.0ngram 25.0, pairs 50.0" + "50.0 (15.0 to 85.0)*" * 3
    assert kind in "".join(page.text.split("\n"))
    assert (page.text.count("right: <script>"), page.text.count("25.0 %: <script>")) == (1, 1)
    assert "right (worth +1)75.0 (50.0 to 87.5)+75.0 (+50.0 to +87.5)" in " ".join(page.text.split())


def test_what_reading_leaked_items_did_is_shown_of_the_last_kept_step(inputs, tmp_path):
    effect = {"difference": -1.25, "interval": [-2.0, -0.5]}
    row = {"step": 10, "read": 3, "never_read": 5, "score": None, "bits_per_byte": effect}
    leaks = {"chat": {"leaked": 3, "steps": [row | {"step": 5}, row]}, "other": {"leaked": 0, "steps": [row]}}
    (tmp_path / "curves").mkdir()
    (tmp_path / "curves" / "learning_curves.json").write_text(json.dumps({"steps": [], "leaks": leaks}))
    made = commit(tmp_path / "curves", "learning_curves")
    page = render_report(records_of([Path(one.path) for one in (*inputs, made)]))
    assert page.count("-1.250 (-2.000 to -0.500)") == 1 and "did to the base model" in page
    assert "did to the base model" not in render_report(records_of([Path(one.path) for one in inputs]))


def test_every_move_of_the_champion_is_shown_as_the_registry_tells_it(inputs):
    records = records_of(Path(item.path) for item in inputs)
    assert "Promotions" not in render_report(records)
    move = {"action": "rollback", "version": "1", "before": "2", "who": "ann@host", "when": "2026-11-22T10:00:00Z"}
    moves = [{**move, "why": "<b>it swears</b>", "decision": "d" * 64, "run": ""}]
    said = {
        "model_name": "kitchen",
        "version": "2",
        "champion": "1",
        "promoted": False,
        "sentence": "another is champion",
    }
    html = render_report(records, {**said, "moves": moves})
    text = " ".join(_Page(html).text.split())
    assert "Not promoted: kitchen, version 2: another is champion." in text
    assert "2026-11-22 10:00:00rollback21ann@host<b>it swears</b>dddddddddddd" in text
    assert "<b>it swears" not in html and 'href="#promotions"' in html


def test_what_the_ngrams_find_and_who_encoded_are_shown(tmp_path):
    documents(tmp_path / "clean", [document(1, "text")], [])
    rates = {"plants_found_exam_verbatim": 1.0, "plants_found_exam_edited": 0.775}
    (tmp_path / "index").mkdir()
    index = commit(tmp_path / "index", "benchmark_index", metrics=rates)
    clean = commit(
        tmp_path / "clean",
        "decontaminated_documents",
        partition="tiny@s1",
        counts=counts(20_000, 20_000),
        metrics={"documents_marked_exam": 3.0},
        settings={"decontaminate": {"benchmarks": [{"name": "exam"}]}},
        notes={"hits_by_part": {"exam": {"answer": 1, "question": 4}}},
    )
    (tmp_path / "shards").mkdir()
    shards = commit(
        tmp_path / "shards",
        "token_shards",
        partition="tiny@s1",
        metrics={"documents_compared": 52.0},
        notes={"encoders": {"gigatoken": 2, "tokenizers": 1}, "without_the_fast_encoder": {"differ on '<b>'": 1}},
    )
    (tmp_path / "tokenizer").mkdir()
    one = {"bytes_per_token": 3.25, "tokens_per_word": 1.5}
    table = [{"of": "language", "name": "<i>de", "documents": 7, **one, "reference": {**one, "bytes_per_token": 4.5}}]
    notes = {"fertility": table, "study": [{"vocabulary": 1024, "pieces": 1000, **one}]}
    tokenizer = commit(tmp_path / "tokenizer", "tokenizer", metrics={"vocabulary": 400.0}, notes=notes)
    made = [Path(item.path) for item in (index, clean, tokenizer, shards)]
    text = " ".join(_Page(render_report(records_of(made))).text.split())
    assert "language <i>de73.2501.5004.5001.500" in text
    assert "1,0241,0003.2501.500" in text
    assert "s1exam100.077.5320,000answer 1, question 4" in text
    assert "2 files encoded by gigatoken, 1 files encoded by tokenizers" in text
    assert "52 documents" in text and "differ on '<b>'" in text


def test_pages_of_the_second_extractor_are_shown(tmp_path):
    metrics = {"doubtful_pages": 41.0, "second_extractor_pages": 7.0}
    made = []
    for name, found in (("s1", metrics), ("s2", dict.fromkeys(metrics, 0.0))):
        (tmp_path / name).mkdir()
        named = {"partition": f"tiny@{name}", "counts": counts(99, 99)}
        made.append(Path(commit(tmp_path / name, "extracted_documents", metrics=found, **named).path))
    text = " ".join(_Page(render_report(records_of(made))).text.split())
    assert "s1: the extractor was in doubt on 41 pages; the text of 7 is the second extractor's." in text
    assert "s2: the extractor" not in text


def test_whatever_is_there_makes_a_report(inputs):
    for item in inputs:
        assert "<h2" in render_report(records_of([Path(item.path)]))
    assert "nothing" in render_report([]).lower()


def test_each_section_that_is_there_is_linked_and_no_other(inputs):
    for records in (records_of(Path(item.path) for item in inputs), []):
        page = render_report(records)
        anchors = re.findall(r'<h2 id="(\w+)"', page)
        assert re.findall(r'<a href="#(\w+)"', page.partition("</nav>")[0]) == anchors and "lineage" in anchors
        assert ("scores" in anchors) == bool(records)


def test_every_outcome_of_every_stage_is_shown(inputs):
    parts = looked_at(records_of(Path(item.path) for item in inputs))
    assert [
        (part["asset"], g["outcome"], g["reason"], len(g["samples"])) for part in parts for g in part["groups"]
    ] == [
        ("filtered_documents", "kept", "", 1),
        ("filtered_documents", "dropped", "too_short", 1),
        ("deduplicated_documents", "kept", "", 1),
        ("deduplicated_documents", "dropped", "near_duplicate", 1),
        ("deduplicated_documents", "cluster", "s1/a.warc.gz/000000000001", 2),
    ]


def printed(board, width=100):
    from rich.console import Console

    output = io.StringIO()
    render(board, Console(file=output, width=width))
    return output.getvalue()


def test_a_run_ends_with_its_refusals_and_one_short_table(inputs):
    board = scoreboard(records_of(Path(item.path) for item in inputs))
    text = printed(board)
    for part in ("contaminated", "a.warc.gz at 7", "refused: contamination_report"):
        assert part in text
    assert re.search(r"^suite +aligned +sft +base +best count +chance +items", text, re.M)
    assert re.search(r"^chat +50\.0 \(15\.0–85\.0\) +50\.0 +50\.0 +50 +0 +4", text, re.M)
    many = {f"chat {number}": board["scores"]["chat"] for number in range(20)}
    table = printed(board | {"scores": many}).partition("\n\n")[2]
    assert len(table.splitlines()) <= 10 and "14 more in the report" in table
    assert printed(scoreboard([])) == ""


def test_without_scores_a_run_ends_with_the_documents_of_each_stage(inputs):
    found = [item for item in inputs if item.asset in ("filtered_documents", "deduplicated_documents")]
    text = printed(scoreboard(records_of(Path(item.path) for item in found)))
    assert re.search(r"^filtered +2 +1 +1 +0 +too short 1 *$", text, re.M)


def test_scores_have_a_column_for_each_model_that_was_scored_and_no_other(inputs):
    board = scoreboard(records_of(Path(item.path) for item in inputs))
    board["scores"] = {"chat": {model: board["scores"]["chat"][model] for model in ("base", "sft")}}
    assert re.search(r"^suite +sft +base +best count", printed(board), re.M)


def test_an_interval_is_not_broken_in_a_narrow_terminal(inputs):
    text = printed(scoreboard(records_of(Path(item.path) for item in inputs)), 60)
    assert text.count("(15.0–85.0)") >= 1 and "(15.0\n" not in text


def test_the_scoreboard_begins_with_what_came_out(inputs):
    board = scoreboard(records_of(Path(item.path) for item in inputs))
    assert headline(scoreboard([])) == "" and headline(board).endswith("contaminated, refused by gate contamination")
    counted = {"controls": {"ngram": 0.5, "pairs": 0.0}, "n": 60}, {"controls": {"ngram": 0.9, "pairs": 0.2}, "n": 40}
    uncounted = {"controls": {"ngram": 0.2}, "n": 200}
    one = {"score": 0.9, "n": 300, "chance": 0.25}
    board |= {
        "pretraining": {"parameters": 2_217_984.0},
        "scores": {
            "cloze": {"aligned": {**one, "kinds": dict(enumerate(counted))}},  # ngram 0.66
            "sums": {"aligned": {**one, "score": 0.8, "n": 200, "set_aside": 3, "kinds": {"sum": uncounted}}},
            "chat": {"aligned": {**one, "chance": 0.0}},  # no words were counted
            "by chance": {"aligned": {**one, "score": 0.29}},
        },
        "contamination": {**board["contamination"], "told": "clean (3 of 4 items cleared)"},
        "refusals": [],
    }
    promotion = {"promoted": True, "model_name": "kitchen", "version": "3"}
    learned = "80 % of sums against 25 % by chance, above chance and counts in 3 of 4 suites, 3 items set aside"
    told = "clean (3 of 4 items cleared), promoted as kitchen v3"
    assert headline(board, promotion) == f"2.2 M parameters, {learned}, {told}"
    # A run that was interrupted decided nothing.
    assert headline(board, {"promoted": False}).endswith("clean (3 of 4 items cleared)")
    board |= {"promotion": {"champion": None}}
    assert headline(board, {"promoted": False}).endswith("clean (3 of 4 items cleared), not promoted")
    assert headline(board, promotion | {"promoted": False}).endswith(", registered as kitchen v3, not promoted")
    adopted = board | {"pretraining": {}, "adopted": {"parameters": 1_100_000.0}}
    assert headline(adopted, promotion).startswith("1.1 M parameters, 80 % of sums")
    del board["scores"]["sums"]
    assert "90 % of cloze against 66 % by counting words" in headline(board)
    board["scores"]["cloze"]["aligned"] |= {"score": 0.663, "n": 10**6}
    assert "66.3 % of cloze against 66.0 % by counting words" in headline(board)
    # Nearly all is not all, and nearly none not none.
    board["scores"]["cloze"]["aligned"] |= {"score": 0.996}
    assert "99.6 % of cloze against 66 % by counting words" in headline(board)
    board["scores"]["cloze"]["aligned"] |= {"score": 0.9996}
    assert "99.96 % of cloze against 66 % by counting words" in headline(board)
    board["scores"]["cloze"]["aligned"] |= {"score": 1.0}
    assert "100 % of cloze against 66 % by counting words" in headline(board)
    del board["scores"]["cloze"], board["scores"]["chat"]
    assert "2.2 M parameters, above chance in none of 1 suites, clean" in headline(board)


def test_money_is_shown_where_a_profile_named_a_price(inputs):
    def shown(records):
        said = cost_line(scoreboard(records))
        return "price" in said, 'class="n">price</th>' in render_report(records), said

    records = records_of(Path(item.path) for item in inputs)
    assert shown(records)[:2] == (False, False)
    path, record = records[0]
    on_screen, in_report, text = shown([(path, {**record, "cost": {**record["cost"], "price": 12.5}}), *records[1:]])
    assert on_screen and in_report and "price 12.50" in text


def test_what_making_it_took_does_not_change_the_card(inputs, tmp_path):
    job = make_job("card", "model_card", tmp_path / "card", {"recipe": recipe_as_data(load_recipe("kitchen"))}, ())
    run_job(job, STAGES)
    files = json.loads((tmp_path / "card" / "artifact.json").read_text())["files"]
    names = ["README.md", "scoreboard.json", "training_content.json", "training_domains.tsv", "training_summary.md"]
    assert [entry["path"] for entry in files] == names
    assert "cost" not in json.loads((tmp_path / "card" / "scoreboard.json").read_text())
    assert "Cost" not in (tmp_path / "card" / "README.md").read_text()


def test_the_card_names_the_data_the_shape_and_the_method_that_records_name(tmp_path):
    """The recipe asks for dpo, for kitchen://dialogues and another shape; nothing of that was done."""
    (tmp_path / "model").mkdir()
    config = {"num_hidden_layers": 3, "hidden_size": 7, "num_attention_heads": 5, "max_position_embeddings": 11}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    read = [{"source": "mine.jsonl", "generator": one, "rows": 4, "times": 9} for one in ("a", "b")]
    files = manifest(tmp_path, ["model/config.json"])
    records = [
        (tmp_path, {"asset": name, "partition": "kitchen", "fingerprint": name, "files": own, "notes": notes})
        for name, own, notes in (("aligned_model", files, {"method": "kto"}), ("reward_model", [], {"rows_read": read}))
    ]
    records[0][1]["notes"]["rows_read"] = read
    front = yaml.safe_load(front_matter(load_recipe("kitchen"), records))
    assert front["datasets"] == ["mine.jsonl"] and "kto" in front["tags"] and "dpo" not in front["tags"]
    assert _shape({"aligned_model": records[:1]}) == config and _rows_read(records, "aligned_model") == {
        "mine.jsonl": 8
    }
    assert _rows_read(records, "sft_model") == {}


def test_the_card_is_read_by_hubs(inputs, tmp_path):
    recipe = recipe_as_data(load_recipe("kitchen"))
    inputs = tuple(item for item in inputs if item.asset != "contamination_report")
    job = make_job("card", "model_card", tmp_path / "card", {"recipe": recipe}, inputs)
    run_job(job, STAGES)
    card = (tmp_path / "card" / "README.md").read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["library_name"] == "transformers"
    assert (
        "language" not in front and not front.get("datasets") and "dpo" not in front["tags"]
    )  # no shards and no aligned model were given
    assert "model-index" not in front  # beside .eval_results a hub would show every score twice
    share = "50.0 (15.0 to 85.0) not above the controls"
    assert f"| chat | stated | 4 | ngram 25.0, pairs 50.0 | {share} | {share} | {share} |" in card
    assert "| chat (correct) | 4 | 0.0 | 50.0 (15.0 to 85.0) |" in card
    outside = (
        "Bits per byte of 2 texts from outside the corpus (2,000 bytes): sft 1.500 (1.250 to 1.750), aligned 1.500"
    )
    held_out = "Bits per byte of 2 held-out documents (2,000 bytes): base 1.500"
    report = _Page((tmp_path / "card" / "report.html").read_text()).text
    for said in (outside, held_out):
        assert f"{said}." in card and f"{said}." in report
    assert "| suite | items | base → sft | sft → aligned | base → aligned |\n|---|---:|---:|---:|---:|\n" in card
    assert "| chat | 4 | +3 −1, p 0.625 | +3 −1, p < 0.001 | +0 −0, p 1.000 |" in card
    assert all(said in report for said in ("+50.0 (-25.0 to +75.0)", "0.001", "McNemar's exact test"))
    assert json.loads((tmp_path / "card" / "scoreboard.json").read_text())["scores"]["chat"]["aligned"]["n"] == 4


def test_a_verdict_without_an_exam_says_so_everywhere(tmp_path):
    why = "evaluation.suites names no exam"
    report = {
        "verdict": "tolerated",
        "tolerated": {"evaluation.tolerate_unknown": {"exams": why}},
        "suites": {},
        "scanned": {"texts": {"pretraining": 3}},
    }
    write_lines(tmp_path / "report" / "findings.jsonl", [])
    (tmp_path / "report" / "contamination.json").write_text(json.dumps(report))
    records = records_of([Path(commit(tmp_path / "report", "contamination_report").path)])
    board = scoreboard(records)
    card = render_card(load_recipe("kitchen"), records, board)
    assert "tolerated" in printed(board) and "no exam was looked for" in printed(board)
    assert "Verdict: **tolerated**. No exam was looked for in what the models were trained on." in card
    for text in (printed(board), card):
        assert f"exams: {why}" in text and "too short" not in text
    assert f"exams: {why}." in _Page(render_report(records)).text


def test_text_of_pages_does_not_shape_the_card():
    assert one_line("# head\n| a | <b>") == "\\# head \\| a \\| \\<b\\>"


def test_what_was_watched_of_the_base_model_is_shown_once_for_each_step(tmp_path):
    seen = {"watched_accuracy_cloze": 0.25, "held_out_bits_per_byte_web": 2.0, "gradient_norm/layer_0": 1.0}
    seen |= {"gradient_norm/mlp.up": 0.5, "largest_activation/layer_0": 9.0}
    rows = [{"step": 0, **seen}, {"step": 2, "loss": 4.0, **seen}, {"step": 3, "loss": 3.0}]
    rows += [{"step": 2, "loss": 4.5, **seen, "watched_accuracy_cloze": 0.5}]  # it was stopped, and resumed at step 1
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for settings, more in (
        ({}, []),
        (
            {"watch": {"every": 2}},
            [
                ("watched accuracy cloze", [(0, 0.25), (2, 0.5)]),
                ("held out bits per byte web", [(0, 2.0), (2, 2.0)]),
            ],
        ),
    ):
        shown = curves([(tmp_path, {"asset": "base_model", "settings": settings})])
        assert [(one["words"], one["points"]) for one in shown] == [("training loss", [(2, 4.5), (3, 3.0)]), *more]
        assert [(one["metric"], one["recorded"]) for one in shown[:1]] == [("loss", 2)]
        inside = insides([(tmp_path, {"asset": "base_model", "settings": settings})])
        assert [(one["words"], one["rows"]) for one in inside] == [
            ("norm of gradients before clipping by layer and step", {"layer 0": [(0, 1.0), (2, 1.0)]}),
            ("norm of gradients before clipping by kind of weight and step", {"mlp.up": [(0, 0.5), (2, 0.5)]}),
            ("largest activation by layer and step", {"layer 0": [(0, 9.0), (2, 9.0)]}),
        ][: 3 * bool(settings)]


def test_curves_of_a_training_on_pages_are_over_its_tokens_and_its_losses_are_by_source_too(tmp_path):
    seen = {"training_loss/web": 3.0, "held_out_bits_per_byte_language:de": 2.0}
    rows = [{"step": step, "tokens": 512 * step, "loss": 4.0, **seen} for step in (1, 2)]
    rows.append({"step": 3, "held_out_bits_per_byte_language:de": 1.0})  # without its tokens it has no place
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    shown = curves([(tmp_path, {"asset": "base_model", "settings": {"watch": {"every": 1}}})])
    assert [(one["words"], one["over"], one["points"]) for one in shown] == [
        ("training loss", "tokens", [(512, 4.0), (1024, 4.0)]),
        ("training loss/web", "tokens", [(512, 3.0), (1024, 3.0)]),
        ("held out bits per byte language:de", "tokens", [(512, 2.0), (1024, 2.0)]),
    ]


def test_a_grid_is_darker_where_a_value_is_larger_and_another_colour_where_it_is_no_number():
    rows = {"layer 0": [(0, 0.1), (4, 10.0)], "layer 1": [(0, 1.0), (4, float("nan"))], "layer 2": [(4, 0.0)]}
    cells = re.findall(r'<rect class="(\w+)"[^>]+fill-opacity="([\d.]+)"', grid_picture("G", rows, horizontal="step"))
    assert cells == [("kept", "0.10"), ("kept", "1.00"), ("kept", "0.55"), ("dropped", "1.00")]
    assert grid_picture("G", {"layer 0": [(0, 0.0)]}, horizontal="step") == ""
    many = grid_picture("G", {f"layer {number}": [(0, 1.0)] for number in range(30)}, horizontal="step")
    assert many.count("<rect") == 30 and many.count(">layer ") == 8
