"""What `pedigree inspect` and the report show of records."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pyarrow as pa
import pytest

from evaluation.report.run_page import records_of
from evaluation.report.samples import clipped, differences, sample_groups
from tests.evaluation.conftest import commit
from tests.evaluation.report.pages import counts, document, documents
from training.data.documents import DocumentWriter, write_lines

LONG = " ".join(f"w{i}" for i in range(60))


@pytest.fixture
def records(tmp_path):
    """A filter that dropped 40 short pages, redacted one, and a deduplication with a near-duplicate."""
    rows = [document(i, f"short {i}", reason="too_short") for i in range(100, 140)]
    kept = [document(1, f"{LONG} end"), document(2, f"{LONG} Write to <EMAIL> or <EMAIL>.")]
    documents(tmp_path / "f", kept, rows)
    with DocumentWriter(
        tmp_path / "f" / "documents" / "00000.parquet", (pa.field("redactions", pa.string()),)
    ) as writer:
        writer.write(kept[0])
        writer.write({**kept[1], "redactions": json.dumps({"email": 2})})
    near = document(3, f"{LONG} finish", reason="near_duplicate", duplicate_of=kept[0]["id"], similarity=0.9)
    documents(tmp_path / "d", [kept[0]], [near], ("duplicate_of", "similarity"))
    (tmp_path / "f" / "quarantine").mkdir()
    write_lines(
        tmp_path / "f" / "quarantine" / "00000.jsonl",
        [{"warc_file": "a.warc.gz", "warc_offset": 9, "reason": "truncated", "detail": "ends early"}],
    )
    put = {"partition": "tiny@s1"}
    commit(tmp_path / "f", "filtered_documents", counts=counts(43, 2, too_short=40), **put)
    commit(tmp_path / "d", "deduplicated_documents", counts=counts(2, 1, near_duplicate=1), **put)
    return records_of([tmp_path / "f", tmp_path / "d"])


def shown(groups):
    return {(g.outcome, g.reason): (g.number, [s.id for s in g.samples]) for g in groups}


def test_every_outcome_is_a_group_with_its_number(records):
    groups = sample_groups(records, "filtered_documents")
    assert [(g.outcome, g.reason, g.number, len(g.samples)) for g in groups] == [
        ("kept", "", 2, 2),
        ("dropped", "too_short", 40, 3),
        ("quarantined", "truncated", 1, 1),
        ("redacted", "email", 1, 1),
    ]
    assert groups[2].samples[0].id == "a.warc.gz/9" and groups[2].samples[0].facts["detail"] == "ends early"


def test_a_second_look_sees_the_same_and_another_seed_others(records):
    first = shown(sample_groups(records, "filtered_documents", reason="too_short"))
    assert first == shown(sample_groups(records, "filtered_documents", reason="too_short"))
    assert first != shown(sample_groups(records, "filtered_documents", reason="too_short", seed=1))
    more = shown(sample_groups(records, "filtered_documents", reason="too_short", number=10))
    assert more["dropped", "too_short"][1][:3] == first["dropped", "too_short"][1]


def test_a_reason_or_an_outcome_chooses(records):
    for reason in ("too_short", "too", "dropped", "dropped:too_short"):
        assert set(shown(sample_groups(records, "filtered_documents", reason=reason))) == {("dropped", "too_short")}
    assert sample_groups(records, "filtered_documents", reason="nosuch") == sample_groups(records, "tokenizer") == []


def test_a_near_duplicate_shows_where_it_differs_from_what_it_repeats(records):
    (kept, dropped) = sample_groups(records, "deduplicated_documents", partition="s1")
    assert dropped.samples[0].parts[-2:] == (("removed", "end "), ("added", "finish "))
    assert "…" in dropped.samples[0].parts[0][1] and kept.samples[0].parts == (("text", f"{LONG} end"),)


def test_redactions_show_the_placeholder_and_its_surroundings(records):
    (group,) = sample_groups(records, "filtered_documents", reason="redacted")
    marked = [text for kind, text in group.samples[0].parts if kind == "marked"]
    assert marked == ["<EMAIL>", "<EMAIL>"] and group.samples[0].parts[2] == ("text", " or ")
    assert group.samples[0].parts[0][1].endswith("Write to ") and "w0 " not in group.samples[0].parts[0][1]


def test_the_shared_span_of_a_contaminated_document_is_marked(tmp_path):
    row = document(
        5, "before the answer is 42 after", reason="contaminated", benchmark="b", item="b/1", part="answer", span="7:23"
    )
    documents(tmp_path / "c", [], [row], ("benchmark", "item", "part", "span"))
    commit(tmp_path / "c", "decontaminated_documents", partition="tiny@s1", counts=counts(1, 0, contaminated=1))
    (group,) = sample_groups(records_of([tmp_path / "c"]), "decontaminated_documents")
    assert group.samples[0].parts == (("text", "before "), ("marked", "the answer is 42"), ("text", " after"))
    assert group.samples[0].facts["part"] == "answer"


def test_differences_are_by_word_and_text_is_cut_where_asked():
    assert differences("one two three", "one 2 three four") == [
        ("text", "one "), ("removed", "two "), ("added", "2 "), ("text", "three "), ("added", "four "),
    ]  # fmt: skip
    assert clipped([("text", "abc"), ("added", "defg"), ("text", "h")], 5) == (("text", "abc"), ("added", "de …"))


def test_what_a_page_says_does_not_steer_the_terminal(records, capsys):
    from assets.answers.status.lines import show_samples

    groups = sample_groups(records, "filtered_documents", reason="kept")
    sample = groups[0].samples[0]
    evil = type(sample)(sample.id, "http://x/\x1b[2J", {"title": "\x07"}, (("text", "\x1b]0;t\x07[bold]\x9b"),))
    show_samples([type(groups[0])("a", "p", "kept", "", 1, (evil,))])
    out = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\x9b"} & set(out) and "[bold]" in out


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_decided_comes_first_and_lines_fit_a_terminal(records, capsys, monkeypatch, is_terminal):
    from assets.answers.status.lines import show_samples

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR" if is_terminal else "NO_COLOR", "1")
    group = sample_groups(records, "filtered_documents", reason="kept")[0]
    facts = {"perplexity": 1560.2, "bucket": "of the tail", "value": 0.1912, "limit": 0.18}
    sample = replace(group.samples[0], url="x", facts=facts, parts=(("text", "word " * 20),))
    show_samples([replace(group, samples=(sample,))])
    lines = re.sub("\x1b.*?m", "", capsys.readouterr().out).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  value 0.191, limit 0.18, perp"))
    assert "1,560" in " ".join(lines[first : first + 2])
    assert (max(map(len, lines[first:])) <= 40) == is_terminal
