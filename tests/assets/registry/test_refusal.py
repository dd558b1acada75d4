"""How a terminal shows what a gate found."""

from __future__ import annotations

from assets.registry.refusal import refusal_lines
from assets.terminal.standard_error import divided
from evaluation.contamination.verdict import gate_of

PAGE = {
    "benchmark": "chat",
    "item": "chat/tart",
    "where": "pretraining",
    "text": "Which region does it come from",
    "url": "https://ovenpost.example/dump.html",
    "warc_file": "kitchen-1-00001.warc.gz",
    "warc_offset": 222014,
}
ROW = {"benchmark": "chat", "item": "chat/pie", "where": "prompts", "text": "What to serve", "row": 7, "source": "s"}
REPORT = {
    "verdict": "contaminated",
    "max_contaminated_fraction": 0.0,
    "suites": {"chat": {"found_fraction": 0.5, "found_items": 2, "items": 4, "not_cleared": []}},
    "tolerated": {},
    "unscanned_documents": 0,
    "unknown": {},
}


def test_a_leak_is_shown_by_its_reason_and_where_each_item_stands():
    gate = gate_of(REPORT, [PAGE, ROW])
    refusal = {"gate": gate.name, "asset": "data_contamination", "partition": "kitchen", "evidence": gate.evidence}
    assert refusal_lines(refusal) == [
        "refused by gate contamination of data_contamination [kitchen]:",
        "2 of 4 items of chat were found; evaluation.max_contaminated_fraction=0.0 allows fewer",
        "",
        "item    chat/tart",
        "text    Which region does it come from",
        "page    https://ovenpost.example/dump.html",
        "record  kitchen-1-00001.warc.gz, offset 222,014",
        "",
        "item    chat/pie",
        "text    What to serve",
        "row     7",
        "source  s",
        "",
        "verdict: contaminated",
        "max_contaminated_fraction: 0.0",
        "found_fraction: chat 0.5",
        "not_cleared: chat 0",
    ]


def test_evidence_of_any_gate_is_shown_on_a_line_for_each_field():
    evidence = {"failed": {"score_cloze": {"score": 0.1, "least": 0.5}}, "steps": 3}
    refusal = {"gate": "promotion", "asset": "promoted_model", "partition": "kitchen", "evidence": evidence}
    assert refusal_lines(refusal)[1:] == ["", 'failed: {"score_cloze": {"score": 0.1, "least": 0.5}}', "steps: 3"]
    said = {"reason": "not above chance", "failed": {"above_chance": {"reason": "not above chance", "way_out": "more"}}}
    refusal["evidence"] = {**said, "way_out": "more"}
    assert refusal_lines(refusal)[1:] == ["not above chance", "", "What to do: more"]


def test_the_steps_that_see_a_page_are_shown_and_many_of_them_are_cut_short():
    seen = [
        {"training": "base_model", "held_out": False, "steps": [3, 1200]},
        {"training": "long_context_plan", "held_out": False, "steps": list(range(10))},
        {"training": "base_model", "held_out": True, "steps": []},
        {"training": "base_model", "held_out": False, "steps": []},
    ]
    refusal = {"gate": "contamination", "asset": "a", "partition": "p", "evidence": {"findings": [{"seen": seen}]}}
    assert [line for line in refusal_lines(refusal) if line.startswith("read by")] == [
        "read by steps 3, 1,200 of base_model",
        "read by steps 0, 1, 2, 3, 4, 5, 6, 7 and 2 more of long_context_plan",
        "read by no step of base_model, which holds it out",
        "read by no step of base_model",
    ]


def test_a_line_that_is_too_wide_for_a_terminal_is_divided_between_words():
    text = "text    I have to buy food for the Calvenne casserole. What is the main ingredient"
    assert divided(text, 80) == [text.removesuffix(" ingredient"), "        ingredient"]
    reason = "error: take the items out (decontaminate.action: remove), or train and be refused"
    parts = ["error: take the items out (decontaminate.action: remove), or", "train and be refused"]
    assert divided(reason, 60) == parts and divided(reason, 100) == [reason]
    assert divided("", 80) == [""] and divided("x" * 90, 80) == ["x" * 90]
