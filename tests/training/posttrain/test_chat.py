"""The template: which token is trained, token by token; no text makes a turn; jinja and the encoder agree."""

from __future__ import annotations

import json
import shutil

import pytest

from evaluation.exams.local_model import LocalModel
from tests.training.posttrain import tiny
from training.contract.job import DataError
from training.contract.records import RecipeError
from training.generate.chat_template import template_digest
from training.generate.turns import CONTROL_TOKENS, Chat, system_prompt_of, template
from training.posttrain import chat as chat_module
from training.posttrain.chat import main, template_gate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def chat(folder):
    return Chat.of(folder, template())


def messages(*texts, first="user"):
    roles = ("user", "assistant") if first == "user" else ("system", "user", "assistant")
    return [{"role": role, "content": text} for role, text in zip(roles * 3, texts, strict=False)]


def called(name, *arguments, content="", **more):
    calls = [{"type": "function", "function": {"name": name, "arguments": one}} for one in arguments]
    return {"role": "assistant", "content": content, "tool_calls": calls, **more}


def tokenizer_of(folder, chat):
    from training.posttrain.trainer.models import load_tokenizer

    return load_tokenizer(folder, chat)


def test_every_token_and_whether_it_is_trained(chat):
    # "a" and "b" are single bytes, so the whole sequence can be written down.
    encoded = chat.encode([[*messages("a", "b"), *messages("a", "b")]])[0]
    (a,), (b,) = chat.encode_texts(["a", "b"])
    user, assistant, end = (chat.ids[token] for token in ("<|user|>", "<|assistant|>", "<|end|>"))
    turn = [user, a, end, assistant, b, end]
    assert encoded.input_ids == turn + turn
    assert encoded.trained == [False, False, False, False, True, True] * 2
    assert encoded.labels == [-100, -100, -100, -100, b, end] * 2


def test_calls_and_thoughts_are_in_the_turn_and_forbidden_turns_are_not_trained(chat):
    thinking = {"role": "assistant", "content": "c", "reasoning_content": "t"}
    two = called("f", "{}", '{"a": 1}', content="c")
    whole = [*messages("q"), thinking, *messages("q"), two, *messages("q"), {**two, "trained": False}]
    encoded = chat.encode([whole])[0]
    trained = [token for token, is_trained in zip(encoded.input_ids, encoded.trained, strict=True) if is_trained]
    calls = 'c\nTool call: {"name": "f", "arguments": {}}\nTool call: {"name": "f", "arguments": {"a": 1}}'
    wanted = chat.encode_texts(["<think>\nt\n</think>\n\nc", calls])
    assert trained == [*wanted[0], chat.end_id, *wanted[1], chat.end_id]


def test_a_prompt_and_its_answer_join_to_the_conversation(chat):
    whole = messages("Which colour?", "The apple is red.")
    prompt, answer = chat.encode_prompts([whole[:1]])[0], chat.encode_answers(whole[1:])[0]
    assert prompt + answer == chat.encode([whole])[0].input_ids


@pytest.mark.parametrize("token", CONTROL_TOKENS)
def test_a_typed_control_token_is_text_for_the_encoder_and_for_jinja(folder, chat, token):
    typed = f"hello {token}{token} world"
    conversation = messages(typed, typed)
    encoded = chat.encode([conversation])[0]
    assert sum(number in chat.control_ids for number in encoded.input_ids) == 4  # two roles, two ends
    assert chat.decode(chat.encode_texts([typed])[0]) == typed
    rendered = tokenizer_of(folder, chat).apply_chat_template(conversation, tokenize=True, return_dict=True)[
        "input_ids"
    ]
    assert [number for number in rendered if number in chat.control_ids] == [
        chat.ids[token] for token in ("<|user|>", "<|end|>", "<|assistant|>", "<|end|>")
    ]


def test_a_role_is_never_taken_from_a_text(chat):
    with pytest.raises(DataError, match="role 'root'"):
        chat.encode([[{"role": "root", "content": "x"}]])


@pytest.mark.parametrize("system_prompt", ["", "Be kind.", 'Say "hi" \\ {% x %} {{ y }}\n\u00e9\U0001f600', "<|end|>"])
def test_jinja_and_the_encoder_give_the_same_tokens_and_mask(folder, system_prompt):
    chat = Chat.of(folder, template("pedigree", system_prompt))
    assert system_prompt_of(chat.template) == system_prompt
    tokenizer = tokenizer_of(folder, chat)
    several = [
        messages(" leading space", "two\n\nlines "),
        messages("s", "q", "a", first="system"),
        [*messages("q", "call"), {"role": "tool", "content": "7"}, {"role": "assistant", "content": "seven"}],
        messages("\u00e9\U0001f600", "{{ 7 * 7 }} {% raw %}"),
        [*messages("q"), called("f", '{"a": "\u00e9 {{ 1 }}"}'), {"role": "tool", "content": "7"}, called("g", "{}")],
        [*messages("q"), {"role": "assistant", "content": "a", "reasoning_content": " why\n"}],
        [*messages("q"), {"role": "assistant", "content": "a", "trained": False}, *messages("q", "b")],
        [*messages("q"), called('"g"', "{}", "{}", content="two: ", trained=False), *messages("q", "b")],
    ]
    for conversation in several if "<|" not in system_prompt else []:
        rendered = tokenizer.apply_chat_template(
            conversation, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        encoded = chat.encode([conversation])[0]
        assert list(rendered["input_ids"]) == encoded.input_ids
        assert [bool(bit) for bit in rendered["assistant_masks"]] == encoded.trained
    prompt = tokenizer.apply_chat_template(several[0][:1], tokenize=True, return_dict=True, add_generation_prompt=True)
    if "<|" not in system_prompt:
        assert list(prompt["input_ids"]) == chat.encode_prompts([several[0][:1]])[0]


def test_the_gate_passes_on_good_rows_and_counts_what_is_trained(folder, chat):
    rows = [row["messages"] for row in tiny.conversations()] + [messages("<|end|><|system|>", "no <|end|>")]
    gate = template_gate(chat, tokenizer_of(folder, chat), rows)
    assert gate.passed
    assert gate.evidence["trained_ends"] == gate.evidence["assistant_turns"] == 33
    expected = sum(len(chat.encode_texts([row[1]["content"]])[0]) + 1 for row in rows)
    assert gate.evidence["trained_tokens"] == expected


def test_the_gate_refuses_pad_as_eos_a_foreign_mask_and_a_text_that_made_a_turn(folder, chat):
    rows = [row["messages"] for row in tiny.conversations()]
    tokenizer = tokenizer_of(folder, chat)
    tokenizer.eos_token = "<|pad|>"
    assert not template_gate(chat, tokenizer, rows).passed
    tokenizer = tokenizer_of(folder, chat)
    tokenizer.chat_template = chat.template.replace("<|end|>{%- endgeneration -%}", "{%- endgeneration -%}<|end|>")
    gate = template_gate(chat, tokenizer, rows)
    assert not gate.passed
    assert gate.evidence["unlike_jinja"] == 32
    careless = Chat.of(folder, template())
    careless._tokenizer.encode_special_tokens = False
    gate = template_gate(careless, tokenizer_of(folder, careless), [messages("<|end|>", "a")])
    assert not gate.passed
    assert gate.evidence["conversations_with_a_turn_made_by_text"] == 1


def test_the_digest_is_of_the_template_with_its_system_prompt():
    assert template_digest(template()) == template_digest(template("pedigree", ""))
    assert template_digest(template()) != template_digest(template("pedigree", "Be kind."))


@pytest.mark.parametrize("reader", ["align", "evaluation", "chat", "reward"])
def test_another_template_than_that_of_training_is_refused_with_both_digests(chain, tmp_path, capsys, reader):
    folder = tmp_path / "sft_model" / "model"
    shutil.copytree(chain / "sft_model" / "model", folder)
    then = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(now := then.replace('system_prompt = ""', 'system_prompt = "rude"'))
    assert system_prompt_of(now) == "rude"  # a template of this project, so nothing else refuses it
    said = f"{template_digest(now)}, but the model was trained with {template_digest(then)}"
    if reader == "chat":
        assert main([str(folder), "--prompt", "?"]) == 2 and said in capsys.readouterr().err
        return
    with pytest.raises(DataError, match=said):
        if reader == "evaluation":
            LocalModel(folder, batch_size=1)
        else:
            inputs = tiny.commit(tmp_path, "sft_model"), tiny.made(chain, "preference_data")
            tiny.run(reader, tmp_path / reader, {reader: {}}, inputs)


def test_templates_that_are_not_ours_are_refused(folder):
    with pytest.raises(RecipeError, match=r"'chatml' .*'pedigree'"):
        template("chatml")
    with pytest.raises(DataError, match="template"):
        Chat.of(folder, "{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(DataError, match="does not chat"):
        Chat.of(folder)


def test_a_tokenizer_without_control_tokens_is_refused(folder, tmp_path):
    data = json.loads((folder / "tokenizer.json").read_text())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] != "<|end|>"]
    data["model"]["vocab"].pop("<|end|>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match=r"<\|end\|>"):
        Chat.of(tmp_path, template())


def test_talking_to_a_model(chain, capsys, monkeypatch):
    model = chain / "sft_model"
    assert chat_module.main([str(model), "--prompt", tiny.question("apple"), "--json"]) == 0
    once = json.loads(capsys.readouterr().out)
    assert once["prompt"] == tiny.question("apple")
    assert (
        once["answer"]
        == chat_module.generate(model / "model", [[{"role": "user", "content": tiny.question("apple")}]])[0]
    )
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n\nAgain\n"))
    assert chat_module.main([str(model / "model"), "--json", "--temperature", "0.7"]) == 0
    assert [json.loads(line)["prompt"] for line in capsys.readouterr().out.splitlines()] == ["Hello", "Again"]


def test_talking_to_a_base_model_or_to_nothing_is_refused(chain, tmp_path, capsys):
    assert chat_module.main([str(chain / "base_model"), "--prompt", "x"]) == 2
    assert "base model completes text" in capsys.readouterr().err
    assert chat_module.main([str(tmp_path), "--prompt", "x"]) == 2
    assert "config.json is missing" in capsys.readouterr().err


def test_answers_do_not_depend_on_what_is_asked_beside_them(chain):
    assistant = chat_module.Assistant(chain / "sft_model" / "model")
    asked = [[{"role": "user", "content": tiny.question(fruit)}] for fruit in tiny.FRUITS]
    together = assistant.answers(asked, max_new_tokens=12)
    assert together == [assistant.answers([one], max_new_tokens=12)[0] for one in asked]
    drawn = assistant.answers(asked, temperature=1.0, seed=3)
    assert drawn == assistant.answers(asked, temperature=1.0, seed=3)
    assert drawn[:3] == assistant.answers(asked[:3], temperature=1.0, seed=3)
    assert drawn != assistant.answers(asked, temperature=1.0, seed=4)
