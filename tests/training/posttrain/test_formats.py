"""Published formats as messages: each form read, each damage named, no text ever a turn."""

from __future__ import annotations

import json

import pytest

from tests.training.posttrain import tiny
from tests.training.posttrain.row_forms import FORMS
from training.data.sources import read_rows
from training.posttrain.rows import forms
from training.posttrain.rows.given import Given, endings_told
from training.posttrain.rows.messages import Fields, MalformedRow, Unusable
from training.posttrain.rows.sorting import read_jsonl
from training.posttrain.rows.source import MOST_REASONS, read_row, read_source
from training.posttrain.source_settings import TextSourceRecipe


def source(**fields) -> TextSourceRecipe:
    return TextSourceRecipe(**{"uri": "rows.jsonl", **fields})


def roles(messages) -> list[str]:
    return [message["role"] for message in messages]


def test_messages_of_glaive_keep_tools_calls_and_results_apart():
    row = {
        "tools": '[{"name": "f"}]',
        "conversations": [
            {"from": "human", "value": "Hi"},
            {"from": "function_call", "value": '{"name": "f"}'},
            {"from": "observation", "value": '{"x": 1}'},
            {"from": "gpt", "value": "Done."},
            {"from": "human", "value": "Thanks"},
        ],
    }
    messages = forms.read_messages(Fields(row), source())
    assert roles(messages) == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert messages[0]["content"] == 'Tools: [{"name": "f"}]'
    assert messages[2]["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_published_form_is_kept_whole_or_says_why_not(form):
    assert form.read() == (form.gives, form.why_not)


def test_answers_lose_the_marker_that_their_source_names_and_nothing_else():
    def read(row, **settings):
        asked = source(format="prompt_answer", answer_field="completion", **settings)
        return read_row("0", {"prompt": "?", **row}, asked, forms.read_prompt_answer)

    marked = read({"completion": "a <|end|> b <|end|>"}, end_marker="<|end|>")
    assert (marked.made[1]["content"], marked.endings) == ("a <|end|> b ", ("<|end|>",))
    plain = read({"completion": "a </s>"})
    assert (plain.made[1]["content"], plain.endings) == ("a </s>", ("</s>",))
    assert read({"completion": "<|end|>"}, end_marker="<|end|>").reason == "empty_answer"
    assert read({"completion": "b"}, end_marker="<|end|>").endings == ("",)
    call = {"role": "assistant", "content": "</s>", "tool_calls": [{"name": "f", "arguments": {}}]}
    called = read_row(
        "0", {"messages": [{"role": "user", "content": "q"}, call]}, source(end_marker="</s>"), forms.read_messages
    )
    assert (called.reason, called.made[1]["content"]) == ("", "")


def test_a_source_says_of_its_end_marker_that_some_answers_lack_it_and_nothing_if_all_have_it():
    asked, all_, some = source(end_marker="</s>"), Given(), Given()
    all_.endings.update({"</s>": 3})
    some.endings.update({"</s>": 2, "": 1})
    assert list(endings_told(asked, all_)) == []
    assert list(endings_told(asked, some)) == ["rows.jsonl: 2 of 3 answers end in the end_marker '</s>', others do not"]


def test_each_of_the_first_hundred_reasons_of_a_source_is_told_and_further_ones_together(tmp_path):
    rows = [{"prompt": "q", "answer": "a", f"x{number}": 1} for number in range(MOST_REASONS + 2)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, [*rows, rows[0]])))
    asked = source(uri=str(tmp_path / "a.jsonl"), format="prompt_answer")
    reasons = [one.reason for one in read_source(asked, forms.read_prompt_answer, {})]
    assert reasons == [*(f"unread_field:x{number}" for number in range(100)), "other", "other", "unread_field:x0"]


class Odd(dict):
    """A row that cannot even be looked at."""

    def items(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (Odd(), "raised_RuntimeError"),
        ({"messages": {"role": "user"}}, "messages_are_not_a_list"),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, "content_is_not_text"),
        ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "tool_calls_are_not_a_list"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": "f"}]}]}, "call_is_not_of_a_function"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "code": "x"}]}]}, "unread_field:code"),
        ({"messages": [{"from": "function_call", "value": "f(3)"}]}, "call_is_not_json"),
        ({"messages": [{"role": "user", "content": "q", "thinking": "t"}]}, "unread_field:thinking"),
        ({"messages": [{"role": "user", "content": "q", "weight": 1}]}, "weights_that_cannot_be_followed"),
        ({"messages": [{"role": "user", "content": "q", "Tell Ann: 555 0100": "x"}]}, "unread_field:other"),
    ],
)
def test_a_row_that_cannot_be_read_is_its_own_quarantine_or_drop(row, reason):
    record = read_row("0", row, source(), forms.read_messages)
    assert record.reason == reason and record.made is None


def test_an_answer_beside_others_is_context_where_the_row_forbids_to_train_it():
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0}]
    assert read_row("0", {"messages": turns}, source(), forms.read_messages).reason == "no_trained_answer"
    twice = {
        "messages": [*turns, {"role": "user", "content": "q"}, {"role": "assistant", "content": "b", "loss": True}]
    }
    made = read_row("0", twice, source(), forms.read_messages).made
    assert [one.get("trained") for one in made] == [None, False, None, None]


@pytest.mark.parametrize(
    ("row", "reason", "damaged"),
    [
        ({"answer": "a"}, "missing_prompt", False),
        ({"prompt": " ", "answer": "a"}, "empty_prompt", False),
        ({"prompt": 3, "answer": "a"}, "prompt_is_not_text", True),
    ],
)
def test_a_row_without_its_fields_says_which(row, reason, damaged):
    with pytest.raises(Unusable, match=reason) as caught:
        forms.read_prompt_answer(Fields(row), source())
    assert isinstance(caught.value, MalformedRow) == damaged


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"role": "assistant", "content": "a"}], "no_question"),
        ([{"role": "user", "content": "q"}], "no_answer"),
        (
            [
                {"role": "user", "content": "q"},
                {"role": "system", "content": "s"},
                {"role": "assistant", "content": "a"},
            ],
            "system_message_inside",
        ),
        ([{"role": "root", "content": "q"}], "unknown_role"),
        ([{"role": "tool", "content": "3", "tool_call_id": "call_1"}], "tool_result_of_another_call"),
        ("text", "messages_are_not_a_list"),
    ],
)
def test_messages_that_are_no_conversation_are_refused(messages, reason):
    with pytest.raises(Unusable, match=reason):
        forms.read_messages(Fields({"messages": messages}), source())


def test_instances_join_instruction_and_input():
    row = {"instruction": "Give the antonym.", "instances": [{"input": "warm", "output": "cold"}]}
    assert forms.read_instances(Fields(row), source())[0]["content"] == "Give the antonym.\n\nwarm"


def node(name, text, role, rank=None, replies=(), **more):
    return {"message_id": name, "text": text, "role": role, "rank": rank, "replies": list(replies), **more}


def test_a_tree_gives_its_best_path_and_skips_what_reviewers_refused():
    tree = {
        "prompt": node(
            "1",
            "Q",
            "prompter",
            replies=[
                node("2", "second", "assistant", 1),
                node("3", "refused", "assistant", 0, review_result=False),
                node("4", "first", "assistant", 0, replies=[node("5", "and then?", "prompter")]),
            ],
        )
    }
    assert [m["content"] for m in forms.read_tree(Fields(tree), source())] == ["Q", "first"]
    pair = forms.read_ranked_tree(Fields(tree), source())
    assert (pair.chosen[0]["content"], pair.rejected[0]["content"]) == ("first", "second")


def test_a_reply_without_a_rank_comes_behind_all_that_have_one():
    replies = [
        node("2", "without", "assistant"),
        node("3", "second", "assistant", 1),
        node("4", "first", "assistant", 0),
    ]
    tree = {"prompt": node("1", "Q", "prompter", replies=replies)}
    assert [m["content"] for m in forms.read_tree(Fields(tree), source())] == ["Q", "first"]


def test_rows_of_single_messages_become_the_same_tree_in_any_order():
    rows = [
        {"message_id": "b", "parent_id": "a", "text": "answer", "role": "assistant"},
        {"message_id": "a", "parent_id": None, "text": "question", "role": "prompter"},
        {"message_id": "c", "parent_id": "gone", "text": "orphan", "role": "assistant"},
    ]
    for ordered in (rows, rows[::-1]):
        trees = list(forms.trees(ordered))
        whole = next(tree for tree in trees if tree["prompt"]["message_id"] == "a")
        assert [m["content"] for m in forms.read_tree(Fields(whole), source())] == ["question", "answer"]
        orphan = next(tree for tree in trees if tree["prompt"]["message_id"] == "c")
        with pytest.raises(Unusable, match="tree_without_its_root"):
            forms.read_tree(Fields(orphan), source())


def test_hh_transcripts_split_only_where_the_file_writes_a_turn():
    text = "\n\nHuman: say\nAssistant: as a word, Human: too\n\nAssistant: "
    pair = forms.read_hh(Fields({"chosen": text + "ok", "rejected": text + "no"}), source())
    assert roles(pair.prompt) == ["user"]
    assert pair.prompt[0]["content"] == "say\nAssistant: as a word, Human: too"
    assert (pair.chosen[0]["content"], pair.rejected[0]["content"]) == ("ok", "no")


@pytest.mark.parametrize(
    ("chosen", "rejected", "reason"),
    [
        ("\n\nHuman: q\n\nAssistant: a", "\n\nHuman: q\n\nAssistant: a", "equal_answers"),
        ("\n\nHuman: q\n\nAssistant: a", "\n\nHuman: other\n\nAssistant: b", "prompts_differ"),
        ("\n\nHuman: q\n\nAssistant: ", "\n\nHuman: q\n\nAssistant: b", "empty_turn"),
        ("plain text", "\n\nHuman: q\n\nAssistant: b", "chosen_is_not_a_transcript"),
    ],
)
def test_hh_pairs_that_say_nothing_are_refused(chosen, rejected, reason):
    with pytest.raises(Unusable, match=reason):
        forms.read_hh(Fields({"chosen": chosen, "rejected": rejected}), source())


def test_pairs_in_the_forms_of_published_files():
    llama_factory = {
        "conversations": [{"from": "human", "value": "q"}],
        "chosen": {"from": "gpt", "value": "a"},
        "rejected": {"from": "gpt", "value": "b"},
    }
    text = {"prompt": "q", "chosen": "a", "rejected": "b"}
    whole = {
        "chosen": [tiny_message("user", "q"), tiny_message("assistant", "a")],
        "rejected": [tiny_message("user", "q"), tiny_message("assistant", "b")],
    }
    made = [forms.read_chosen_rejected(Fields(row), source()) for row in (llama_factory, text, whole)]
    assert made[0] == made[1] == made[2]


def test_a_prompt_with_a_system_message_behind_its_question_is_no_prompt():
    prompt = [tiny_message("user", "q"), tiny_message("system", "s")]
    with pytest.raises(Unusable, match="system_message_inside"):
        forms.read_chosen_rejected(Fields({"prompt": prompt, "chosen": "a", "rejected": "b"}), source())


def tiny_message(role, content):
    return {"role": role, "content": content}


def test_alpaca_rows_join_instruction_and_input_after_their_history():
    row = {
        "instruction": "Translate.",
        "input": "Guten Tag",
        "output": " Good day",
        "system": "Be brief.",
        "history": [["Hi", "Hello"]],
    }
    messages = forms.read_alpaca(Fields(row), source())
    assert roles(messages) == ["system", "user", "assistant", "user", "assistant"]
    assert [one["content"] for one in messages[3:]] == ["Translate.\n\nGuten Tag", " Good day"]
    assert len(forms.read_alpaca(Fields({"instruction": "Sing.", "input": "", "output": "La."}), source())) == 2
    for damaged, reason in (({"history": [["Hi"]]}, "history_is_not_pairs"), ({"input": 3}, "input_is_not_text")):
        with pytest.raises(MalformedRow, match=reason):
            forms.read_alpaca(Fields({**row, **damaged}), source())


@pytest.mark.parametrize(
    ("row", "reason", "damaged"),
    [
        ({"prompt": "Q", "completion": "A"}, "missing_label", False),
        ({"prompt": "Q", "completion": "A", "label": "good"}, "label_is_not_true_or_false", True),
        ({"prompt": "Q", "label": True}, "missing_completion", False),
        ({"prompt": [{"role": "assistant", "content": "A"}], "completion": "A", "label": 1}, "no_question", False),
    ],
)
def test_an_unpaired_row_that_cannot_be_used_says_why(row, reason, damaged):
    with pytest.raises(Unusable, match=reason) as caught:
        forms.read_unpaired(Fields(row), source())
    assert isinstance(caught.value, MalformedRow) == damaged


@pytest.mark.data
def test_alpaca_unpaired_and_prompt_only_rows_of_real_files(tmp_path):
    """Published files, and the same rows in the columns of Alpaca and of single rated answers."""

    def rows_of(name):
        return list(read_rows(f"data://{name}.jsonl.gz", settings={}))

    seeds = [
        {"instruction": row["instruction"], **row["instances"][0]} for row in rows_of("sft/self_instruct_seed_tasks")
    ]
    pairs = rows_of("preference/dpo_en_demo")
    unpaired = [
        {"messages": row["conversations"], "completion": row[side], "label": side == "chosen"}
        for row in pairs
        for side in ("chosen", "rejected")
    ]
    alpaca, single = (tiny.write_rows(tmp_path / f"{n}.jsonl", rows) for n, rows in ((1, seeds), (2, unpaired)))
    data = [
        {"uri": alpaca, "format": "alpaca"},
        {"uri": "data://sft/glaive_toolcall_en_demo.jsonl.gz", "format": "sharegpt"},
    ]
    record = tiny.run("instructions", tmp_path / "instruction_data", {"sft": {"data": data}})
    assert record["counts"] == {"in": 175 + 300, "kept": 175 + 300, "dropped": {}, "quarantined": {}}
    data = [
        {"uri": "data://preference/dpo_en_demo.jsonl.gz", "format": "chosen_rejected"},
        {"uri": single, "format": "unpaired"},
    ]
    record = tiny.run("preferences", tmp_path / "preference_data", {"preferences": {"data": data}})
    assert record["counts"]["in"] == 3 * 150 and record["counts"]["kept"] >= 3 * 150 - 8
    for name, ignore, number, answered in (
        ("preference/tulu1_human_eval_instances", ["completions"], 498, 0),
        ("sft/gsm8k_train", [], 3737, 3737),
    ):
        uri, output = f"data://{name}.jsonl.gz", tmp_path / name.rpartition("/")[2]
        asked = {"prompts": uri, "prompt_columns": {"ignore": ignore}}
        record = tiny.run("prompts", output, {"align": asked})
        kept = read_jsonl(output / "prompts.jsonl")
        assert record["counts"]["kept"] == len(kept) == number
        assert sum(bool(row["answer"]) for row in kept) == answered


@pytest.mark.data
def test_real_files_are_read_nearly_whole(tmp_path):
    """Counts of the published files; not kept: answers that are only a marker, trees that were cut by language."""
    sources = [
        ("gsm8k_train", "question_answer", {}),
        ("dolly_15k_subset", "prompt_answer", {"end_marker": "###eos_token###"}),
        ("glaive_toolcall_en_demo", "messages", {}),
        ("oasst1_en_validation", "dialogue_tree", {}),
        ("openassistant_en_100_tree", "dialogue_tree", {}),
        ("self_instruct_seed_tasks", "instances", {"ignore": ["name", "is_classification"]}),
        (
            "t0_p3_sample",
            "prompt_answer",
            {"answer_field": "completion", "ignore": ["template"], "end_marker": "<|endoftext|>"},
        ),
    ]
    data = [{"uri": f"data://sft/{name}.jsonl.gz", "format": form, **more} for name, form, more in sources]
    record = tiny.run("instructions", tmp_path / "instruction_data", {"sft": {"data": data}})
    assert record["counts"]["in"] == 9972
    assert record["counts"]["dropped"] == {"empty_answer": 160, "tree_without_its_root": 2}
    pairs = [
        {"uri": "data://preference/hh_rlhf_harmless_base_test.jsonl.gz", "format": "hh"},
        {"uri": "data://preference/dpo_en_demo.jsonl.gz", "format": "chosen_rejected"},
    ]
    record = tiny.run("preferences", tmp_path / "preference_data", {"preferences": {"data": pairs}})
    assert record["counts"]["in"] == 1306
    assert sum(record["counts"]["dropped"].values()) <= 8
    assert record["counts"]["quarantined"] == {}
