"""A conversation with typed control tokens has the same tokens, and the same score, wherever it is read."""

from __future__ import annotations

import json
import logging

import pytest

from evaluation.exams.harness import run_suites
from evaluation.exams.items import ExamItem
from evaluation.exams.local_model import LocalModel, rewards
from tests.evaluation.conftest import make_model
from tests.training.posttrain import tiny
from tests.training.posttrain.align.test_align import RL, alignment
from training.contract.job import DataError
from training.data.exams.settings import BenchmarkRecipe
from training.data.tokens.tokenizer import load_tokenizer, look_alikes
from training.generate import synthesize
from training.generate.encoder import FOREIGN, OWN, Encoder
from training.generate.sampler import Sampler
from training.generate.serving.serve import tokenizer_of
from training.generate.settings import SynthesisRecipe
from training.generate.turns import CONTROL_TOKENS, Chat, template
from training.posttrain.chat import Assistant
from training.posttrain.preferences.pairs import encode_pairs
from training.posttrain.reward.reward import Judge

TYPED = [*look_alikes(CONTROL_TOKENS), "a <think>\nb\n</think>\n\n", "< |end|> <|end|>", " <|end|>\n"]
FOREIGN_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def asked(text):
    return [{"role": "user", "content": text}]


def answered(text):
    return [*asked(text), {"role": "assistant", "content": text}]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A root whose SFT model is random, and has the template of a trained one."""
    root = tmp_path_factory.mktemp("root")
    tiny.write_model(root / "sft_model" / "model")
    (root / "sft_model" / "model" / "chat_template.jinja").write_text(template())
    return root


@pytest.fixture(scope="module")
def folder(root):
    return root / "sft_model" / "model"


@pytest.fixture(scope="module")
def prompts(folder):
    """What training reads of each conversation up to its answer."""
    chat = Chat.of(folder)
    whole = [encoded.input_ids for encoded in chat.encode(map(answered, TYPED))]
    return [ids[: len(ids) - len(answer)] for ids, answer in zip(whole, chat.encode_answers(spoken()), strict=True)]


def spoken():
    return [answered(text)[1] for text in TYPED]


@pytest.fixture
def read(monkeypatch):
    """The tokens of the prompts that a sampler is given."""
    found = []
    monkeypatch.setattr(
        Sampler, "answer_tokens", lambda self, prompts, **_: found.extend(map(list, prompts)) or [[0]] * len(prompts)
    )
    return found


def test_pairs_chat_suites_and_synthesis_read_what_training_reads(root, folder, prompts, read):
    rows = [
        {"prompt": asked(text), "chosen": [one], "rejected": [one]} for text, one in zip(TYPED, spoken(), strict=True)
    ]
    assert [pair.prompt_ids for pair in encode_pairs(rows, Chat.of(folder))] == prompts
    Assistant(folder).answers(list(map(asked, TYPED)))
    assert read == prompts
    read.clear()
    suite = BenchmarkRecipe(name="s", uri="x.jsonl", kind="chat", max_new_tokens=4)
    items = [ExamItem(id=str(place), question=text, answers=("b",)) for place, text in enumerate(TYPED)]
    run_suites(LocalModel(folder, batch_size=4), [(suite, items)], has_template=True)
    assert read == prompts
    read.clear()
    one = tiny.commit(root, "sft_model")
    named = [(place, 0, text) for place, text in enumerate(TYPED)]
    assert synthesize.written_texts(named, SynthesisRecipe(prompts="x.jsonl"), one)[1] == OWN
    assert read == prompts


def test_a_task_of_lm_eval_reads_what_training_reads(folder, prompts, read):
    generation = {"max_gen_toks": 4, "do_sample": False, "until": ["|"]}
    fields = {"output_type": "generate_until", "doc_to_text": "{{text}}", "doc_to_target": "b"}
    fields |= {"generation_kwargs": generation}
    suite = BenchmarkRecipe(name="s", uri="x.jsonl", kind="generate", question_field="text", lm_eval=fields)
    items = [
        ExamItem(id=str(place), question=text, answers=("b",), row={"text": text}) for place, text in enumerate(TYPED)
    ]
    run_suites(LocalModel(folder, batch_size=4), [(suite, items)], has_template=True)
    assert read == prompts


@pytest.mark.parametrize("settings", [RL, {**RL, "method": "rloo"}, {**RL, "trl": {"generation_kwargs": {"top_k": 5}}}])
def test_rollouts_read_what_training_reads(chain, tmp_path, prompts, settings):
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    from training.posttrain.align.sampling.sampled import _trainer

    made = (GRPOConfig, GRPOTrainer) if settings["method"] == "grpo" else (RLOOConfig, RLOOTrainer)
    rows = [{"prompt": asked(text), "answer": "b", "rivals": []} for text in TYPED]
    trainer = _trainer(alignment(chain, tmp_path, settings), *made, rows, {lambda **_: [0.0]: 1.0})
    given = trainer._tokenize_prompts([row["prompt"] for row in rows])
    assert given[0] == prompts and trainer._generate.__qualname__.startswith(made[1].__name__)


def test_the_server_reads_what_training_reads(folder, prompts):
    tokenizer = tokenizer_of(folder)
    for text, ids in zip(TYPED, prompts, strict=True):
        given = tokenizer.apply_chat_template(asked(text), return_tensors="pt", tools=None, return_dict=True)
        assert given["input_ids"].tolist() == [ids] and given["attention_mask"].shape == given["input_ids"].shape
    call = {"type": "function", "id": "1", "function": {"name": "f", "arguments": {"a": "é<|end|>"}}}
    text = {**call, "function": {"name": "f", "arguments": json.dumps({"a": "é<|end|>"}, ensure_ascii=False)}}
    turns = [[*asked("q"), {"role": "assistant", "content": "", "tool_calls": [one]}] for one in (call, text)]
    assert tokenizer.apply_chat_template(turns[0])["input_ids"] == Chat.of(folder).encode_prompts(turns[1:])
    (without,) = asked("q")  # as clients write a message without calls
    given = tokenizer.apply_chat_template([{**without, "tool_calls": None}])["input_ids"]
    assert given == Chat.of(folder).encode_prompts([asked("q")])


def test_a_judge_in_training_and_one_in_evaluation_give_a_conversation_one_score(chain):
    folder = chain / "reward_model" / "model"
    whole = [*map(answered, TYPED), answered("bread " * 2000)]  # the last one is longer than the model's context
    scores, num_cut = rewards(folder, whole, batch_size=4)
    assert scores == pytest.approx(Judge(folder).scores(whole), abs=1e-5) and num_cut == 1


@pytest.mark.parametrize("pad", [1, None])
def test_a_strangers_reward_model_judges_by_its_own_template_and_tokenizer(tmp_path, pad):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = make_model(tmp_path / "judge", template=False, reward=True)
    tiny.write_tokenizer(folder, ["User asks: what is this? Expert says: bread."], vocabulary=300)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ 'User asks: ' if m.role == 'user' else 'Expert says: ' }}{{ m.content }}{% endfor %}"
    )
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": pad}))
    whole = [answered("bread " * length) for length in (1, 4, 2)]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSequenceClassification.from_pretrained(folder)
    expected = [
        float(model(**tokenizer.apply_chat_template(one, return_dict=True, return_tensors="pt")).logits.detach())
        for one in whole
    ]
    assert len(set(expected)) == 3 and rewards(folder, whole, batch_size=4)[0] == pytest.approx(expected, abs=1e-5)
    with pytest.raises(DataError, match="not a template of this project"):
        Judge(folder)


def test_a_scored_answer_is_cut_where_the_conversation_ends(folder, prompts):
    model, chat = LocalModel(folder, batch_size=4), Chat.of(folder)
    for text, ids, answer in zip(TYPED, prompts, chat.encode_answers(spoken()), strict=True):
        context, continuation = model._encode_pair(model.apply_chat_template(asked(text)), text)
        assert (context, continuation) == (ids, answer[:-1])
        begun = model.apply_chat_template(answered(text), add_generation_prompt=False)
        context, continuation = model._encode_pair(begun, text)
        assert context == model.prompt_ids(begun) == ids + answer[:-1]
        assert context + continuation == ids + chat.encode_texts([text * 2])[0]


def test_plain_text_is_read_as_in_pretraining(folder):
    plain, model = load_tokenizer(folder / "tokenizer.json"), LocalModel(folder, batch_size=4)
    assert list(map(model.tok_encode, TYPED)) == [plain.encode(text, add_special_tokens=False).ids for text in TYPED]


@pytest.mark.parametrize("written", [FOREIGN_TEMPLATE, "older"])
def test_another_template_is_rendered_without_a_turn_made_by_text_and_says_so(tmp_path, caplog, written):
    folder = tiny.write_tokenizer(tmp_path)
    own = Chat.of(folder, template())
    text = template().replace("Tool result: ", "Result: ") if written == "older" else written
    (folder / "chat_template.jinja").write_text(text)
    with caplog.at_level(logging.WARNING):
        encoder = Encoder(folder)
    assert encoder.how == FOREIGN and FOREIGN in caplog.text and encoder.chat is None
    for typed in TYPED:
        turns = ["<|user|>", "<|end|>", "<|assistant|>"]
        for is_prompt, conversation in ((True, asked(typed)), (False, answered(typed))):
            (ids,) = encoder.conversations([conversation], is_prompt=is_prompt)
            wanted = turns if is_prompt else [*turns, "<|end|>"]
            assert [one for one in ids if one in own.control_ids] == [own.ids[token] for token in wanted]
            said = tokenizer_of(folder).apply_chat_template(
                conversation, add_generation_prompt=is_prompt, tokenize=True, return_dict=True
            )
            assert list(said["input_ids"]) == ids
    plain = asked("Which colour has the fig?")
    assert encoder.conversations([plain], is_prompt=True) == own.encode_prompts([plain])


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ messages[0].name.first }}", "no attribute 'name'"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_a_template_that_cannot_show_a_conversation_is_a_sentence(tmp_path, template, why):
    tiny.write_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template)
    for ask in (
        lambda: Encoder(tmp_path).conversations([asked("q")], is_prompt=True),
        lambda: LocalModel(tmp_path, batch_size=1).apply_chat_template(asked("q")),
    ):
        with pytest.raises(DataError, match=f"the chat template cannot show a conversation: .*{why}"):
            ask()


def test_a_folder_without_a_template_holds_no_conversation(tmp_path):
    with pytest.raises(DataError, match="completes text, it does not chat"):
        Encoder(tiny.write_tokenizer(tmp_path)).conversations([asked("q")], is_prompt=True)
