"""Exams by lm-eval on tiny random models."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from functools import partial

import pytest

from benchmarks import parallel
from training.contract.job import DataError
from training.data.exams.grading import Values
from training.data.exams.settings import BenchmarkRecipe

torch = pytest.importorskip("torch")

from evaluation.exams import local_model  # noqa: E402
from evaluation.exams.harness import judge_of, run_suites  # noqa: E402
from evaluation.exams.items import ExamItem  # noqa: E402
from evaluation.exams.local_model import LocalModel  # noqa: E402
from training.generate.sampler import Sampler  # noqa: E402

CLOZE = BenchmarkRecipe(name="cloze", uri="x.jsonl", kind="multiple_choice")
QUESTIONS = BenchmarkRecipe(name="questions", uri="x.jsonl", kind="generate", max_new_tokens=6)
CHAT = BenchmarkRecipe(name="chat", uri="x.jsonl", kind="chat", max_new_tokens=6)
CLOZE_ITEMS = [
    ExamItem(
        id=f"c{i}",
        question=f"The oven number {i} is heated to",
        choices=("180 degrees", "blue", "40", "dogs"),
        gold=i % 4,
    )
    for i in range(5)
]
OPEN_ITEMS = [
    ExamItem(
        id=f"q{i}",
        question=f"which colour has the {thing}?",
        answers=("blue",),
        before=(("system", "Be brief."),) if i else (),
    )
    for i, thing in enumerate(["sky", "lazy dog", "bread", "oven", "fox that jumps"])
]


class _Request:
    task_name = "asked"

    def __init__(self, *args: object) -> None:
        self.args = args


@pytest.fixture(params=["compact", "padded"])
def passes(request, monkeypatch):
    """The passes of log-likelihoods: those of a CPU, and those of other devices and families."""
    if request.param == "padded":
        monkeypatch.setattr(local_model, "why_padded", lambda model: "as on a GPU")
    return request.param


def test_answers_equal_those_of_the_stock_harness(base_folder, passes):
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM

    ours = LocalModel(base_folder, batch_size=3)
    stock_model = AutoModelForCausalLM.from_pretrained(base_folder, local_files_only=True)
    stock = HFLM(pretrained=stock_model, tokenizer=ours.tokenizer, batch_size=1, max_length=128)
    pairs = [(item.question, " " + choice) for item in CLOZE_ITEMS for choice in item.choices]
    pairs += [("", "The quick fox"), ("long " * 200, " blue")]
    requests = [_Request(*pair) for pair in pairs]
    for mine, theirs in zip(ours.loglikelihood(requests), stock.loglikelihood(requests), strict=True):
        assert mine[0] == pytest.approx(theirs[0], abs=1e-3) and mine[1] == theirs[1]
    asked = [
        _Request(f"Question: {item.question}\nAnswer:", {"until": ["\n"], "max_gen_toks": 8, "do_sample": False})
        for item in OPEN_ITEMS
    ]
    assert ours.generate_until(asked) == stock.generate_until(asked)
    rolling = [_Request("The quick brown fox jumps over the lazy dog."), _Request("bread " * 150)]
    assert ours.loglikelihood_rolling(rolling) == pytest.approx(stock.loglikelihood_rolling(rolling), rel=1e-3)


def test_a_question_is_read_once_for_all_its_choices(base_folder, passes):
    questions = [f"{'abc'[n]} {'The dog jumps over the bread. ' * (n + 1)}The oven is heated to" for n in range(3)]
    choices = [" 180 degrees", " blue", " forty or fifty", " d"]
    requests = [_Request(question, choice) for question in questions for choice in choices]
    together, alone = LocalModel(base_folder, batch_size=8), LocalModel(base_folder, batch_size=1)
    read = {model: count_tokens(model) for model in (together, alone)}
    for mine, other in zip(together.loglikelihood(requests), alone.loglikelihood(requests), strict=True):
        assert mine == (pytest.approx(other[0], abs=1e-4), other[1])
    contexts = [len(together.tok_encode(question)) for question in questions]
    lengths = [len(together.tok_encode(choice)) for choice in choices]
    # The last token of a choice is predicted, not read.
    if passes == "compact":
        assert sum(read[together]) == sum(contexts) + 3 * (sum(lengths) - len(lengths))
    else:  # two questions make a batch: contexts are padded to the longer one, choices to the longest
        assert sum(read[together]) == 2 * contexts[2] + contexts[0] + len(requests) * (max(lengths) - 1)
    assert sum(read[alone]) >= len(choices) * sum(contexts)


def test_padded_rows_are_read_in_passes_of_bounded_logits(base_folder, monkeypatch):
    monkeypatch.setattr(local_model, "why_padded", lambda model: "as on a GPU")
    rows = [_Request("", "The dog jumps over the bread. " * n) for n in range(1, 6)]
    model = LocalModel(base_folder, batch_size=8)
    expected, read = model.loglikelihood(rows), count_tokens(model)
    most = 30
    monkeypatch.setattr("training.generate.passes.pass_rows.PASS_LOGITS", most * model.model.config.vocab_size)
    found = model.loglikelihood(rows)
    assert [one[0] for one in found] == pytest.approx([one[0] for one in expected], rel=1e-5)
    lengths = [len(model.tok_encode(row.args[1])) for row in rows]
    assert len(read) > 1 and all(count <= most or count in lengths for count in read)


def test_choices_of_long_contexts_are_read_in_bounded_passes(base_folder, monkeypatch):
    monkeypatch.setattr(local_model, "why_padded", lambda model: "as on a GPU")
    questions = [f"{'abc'[n]} {'The dog jumps over the bread. ' * 5}The oven is heated to" for n in range(3)]
    choices = [" 180 degrees", " as the bread", " forty or fifty", " brown"]
    requests = [_Request(question, choice) for question in questions for choice in choices]
    model, alone = LocalModel(base_folder, batch_size=12), LocalModel(base_folder, batch_size=1)
    expected = [(pytest.approx(one[0], abs=1e-4), one[1]) for one in alone.loglikelihood(requests)]
    context, after = (max(len(model.tok_encode(text)) for text in texts) for texts in (questions, choices))
    read, kept = count_tokens(model), count_kept(model)
    assert model.loglikelihood(requests) == expected
    assert len(read) == 2 and max(kept) == len(requests) * (context + after - 1)
    most = 2 * (context + after)
    assert most < 3 * context  # two contexts in a pass, and two continuations
    monkeypatch.setattr("training.generate.passes.pass_rows.PASS_TOKENS", most)
    read.clear(), kept.clear()
    assert model.loglikelihood(requests) == expected
    assert len(read) == 2 + len(requests) // 2 and max(read) <= most and max(kept) <= most
    monkeypatch.undo()
    monkeypatch.setattr(local_model, "why_padded", lambda model: "as on a GPU")
    monkeypatch.setattr("training.generate.passes.pass_rows.PASS_LOGITS", 3 * after * model.model.config.vocab_size)
    read.clear()
    assert model.loglikelihood(requests) == expected
    assert len(read) > 4 and max(read[1:]) <= 3 * after


def scored_in_shares(folder, requests, rank, size):
    """Scores by processes that share the model; the first one has more passes."""
    from training.generate.passes import pass_rows

    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": 29500}
    os.environ |= {name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}
    pass_rows.PASS_TOKENS = 100
    model = LocalModel(folder, batch_size=4, shard=size)
    read = count_tokens(model)
    return model._loglikelihood_tokens(requests), read


def test_processes_that_share_a_model_score_long_contexts_in_as_many_bounded_passes(base_folder, tmp_path):
    alone = LocalModel(base_folder, batch_size=1)
    encoded = [
        [alone.tok_encode(text) for text in (f"{'abc'[n]} {'The dog jumps. ' * 5}The oven is heated to", choice)]
        for n in range(3)
        for choice in (" 180 degrees", " as the bread", " forty or fifty", " brown")
    ]
    requests = [(("", ""), context, after) for context, after in encoded]
    expected = [(pytest.approx(one[0], abs=1e-4), one[1]) for one in alone._loglikelihood_tokens(requests)]
    task = partial(scored_in_shares, base_folder, requests)
    [[found, read]] = parallel.in_processes([(2, task)], tmp_path, preload=["evaluation.exams.local_model"])
    assert found == expected
    assert len(read) > 2 * 2 and max(read) <= 100  # two batches, each in more than a pass of either kind


def count_kept(model):
    """Return a list to which each pass of the model adds the positions whose keys and values it leaves behind."""
    kept = []
    model.model.base_model.register_forward_hook(
        lambda _, __, made: kept.append(made.past_key_values.layers[0].keys[:, 0, :, 0].numel())
    )
    return kept


def count_tokens(model):
    """Return a list to which each pass of the model adds the number of its positions, with padding."""
    read = []
    model.model.base_model.register_forward_pre_hook(
        lambda _, __, given: read.append(given["input_ids"].numel()), with_kwargs=True
    )
    return read


def test_continuations_of_one_token_need_no_second_pass(base_folder, passes):
    model = LocalModel(base_folder, batch_size=8)
    letters = [one for one in " a b c d e f g h".split(" ") if one and len(model.tok_encode(one)) == 1]
    read = count_tokens(model)
    question = "Which of these letters is the first one?"
    model._loglikelihood_tokens([(("", ""), model.tok_encode(question), model.tok_encode(one)) for one in letters])
    assert len(letters) > 1 and read == [len(model.tok_encode(question))]


def test_an_answer_does_not_depend_on_what_else_is_in_the_batch(base_folder):
    prompts = ["The sky", "Question: which colour has the lazy dog that jumps over the bread?\nAnswer:", "fox"]
    alone, together = Sampler(base_folder, batch_size=1), Sampler(base_folder, batch_size=3)
    prompts = list(map(alone.encoder.text, prompts))
    greedy = {"max_new_tokens": 8}
    assert alone.answers(prompts, **greedy) == together.answers(prompts, **greedy)
    sampled = {"max_new_tokens": 8, "temperature": 0.9, "seeds": [1, 2, 3]}
    assert alone.answers(prompts, **sampled) == together.answers(prompts, **sampled)
    assert alone.answers(prompts, **sampled) != alone.answers(prompts, **(sampled | {"seeds": [4, 5, 6]}))


def test_scores_come_with_samples_standard_errors_and_chance(base_folder):
    exams = [(CLOZE, CLOZE_ITEMS), (QUESTIONS, OPEN_ITEMS), (CHAT, OPEN_ITEMS)]
    cloze, questions, chat = run_suites(LocalModel(base_folder, batch_size=4), exams, has_template=False)
    assert cloze.chance == 0.25 and cloze.n == 5
    right = [sample["correct"] for sample in cloze.samples]
    assert cloze.score == sum(right) / 5
    variance = sum((x - cloze.score) ** 2 for x in right) / 4
    assert cloze.standard_error == pytest.approx(math.sqrt(variance / 5))
    for sample, item in zip(cloze.samples, CLOZE_ITEMS, strict=True):
        assert sample["item"] == item.id and sample["prompt"] == item.question
        best = max(range(4), key=lambda i: sample["log_likelihoods"][i])
        assert sample["correct"] == (best == item.gold)
    assert questions.samples[0]["prompt"] == "Question: which colour has the sky?\nAnswer:"
    assert all("\n" not in sample["response"] for sample in questions.samples + chat.samples)
    assert {questions.how["form"], chat.how["form"]} == {"raw"} and questions.how["num_fewshot"] == 0


def test_items_that_do_not_fit_are_set_aside_by_name_and_change_no_other_score(base_folder):
    model, long = LocalModel(base_folder, batch_size=4), "dog " * 2000
    cases = [
        (CLOZE, CLOZE_ITEMS, replace(CLOZE_ITEMS[0], id="long choice", choices=("180 degrees", long, "40", "dogs"))),
        (CLOZE, CLOZE_ITEMS, replace(CLOZE_ITEMS[0], id="long question", question=long)),
        (QUESTIONS, OPEN_ITEMS, replace(OPEN_ITEMS[0], id="long", question=long)),
    ]
    for suite, items, other in cases:
        (alone,) = run_suites(model, [(suite, items)], has_template=False)
        (result,) = run_suites(model, [(suite, [items[0], other, *items[1:]])], has_template=False)
        assert result.set_aside == (other.id,) and result.as_json() == alone.as_json() | {"set_aside": 1}
        assert [sample["item"] for sample in result.samples] == [item.id for item in items]
        with pytest.raises(DataError, match="none of 1 items fits with its answer into the"):
            run_suites(model, [(suite, [other])], has_template=False)


def test_an_item_fits_up_to_the_model_s_last_position(base_folder):
    model = LocalModel(base_folder, batch_size=4)
    item, room = OPEN_ITEMS[0], model.max_length
    asked = len(model.tok_encode(f"Question: {item.question}\nAnswer:"))
    for longest, aside in ((room - asked, ()), (room - asked + 1, (item.id,))):
        suite, items = replace(QUESTIONS, max_new_tokens=longest), [item, replace(item, id="short", question="a")]
        (result,) = run_suites(model, [(suite, items)], has_template=False)
        assert result.set_aside == aside


def test_a_model_with_a_template_is_asked_through_it(chat_folder):
    cloze, chat = run_suites(
        LocalModel(chat_folder, batch_size=4), [(CLOZE, CLOZE_ITEMS), (CHAT, OPEN_ITEMS)], has_template=True
    )
    assert cloze.samples[0]["prompt"] == CLOZE_ITEMS[0].question
    assert chat.samples[0]["prompt"] == "<|user|>which colour has the sky?<|end|><|assistant|>"
    assert chat.samples[1]["prompt"].startswith("<|system|>Be brief.<|end|><|user|>")
    assert chat.how["form"] == "chat" and chat.how["task_hash"] != cloze.how["task_hash"]


def test_the_task_hash_follows_the_items(base_folder):
    model = LocalModel(base_folder, batch_size=4)
    hashes = [
        run_suites(model, [(CLOZE, items)], has_template=False)[0].how["task_hash"]
        for items in (CLOZE_ITEMS, CLOZE_ITEMS[:4], CLOZE_ITEMS)
    ]
    assert hashes[0] == hashes[2] != hashes[1]


def test_a_chat_answer_is_right_when_it_names_the_value_and_no_rival():
    document = {"answers": ["180 degrees"], "rivals": ["190 degrees", "190"], "asked": ["How hot?"]}
    chat, generate = (judge_of(kind, Values(["180 degrees", "190 degrees"])) for kind in ("chat", "generate"))
    assert chat(document, ["Bake it at 180 degrees. Enjoy!"])["correct"] == 1
    assert chat(document, ["Between 180 degrees and 190 degrees."])["correct"] == 0
    assert chat(document, ["At 1180 degrees."])["correct"] == 0
    assert generate(document, ["180 degrees"])["exact_match"] == 1
    assert generate(document, ["At 180 degrees"])["exact_match"] == 0
