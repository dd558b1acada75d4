"""What is drawn from logits. Generation itself is held to lm-eval's own in tests/evaluation/exams/test_harness.py."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from evaluation.exams.local_model import rewards  # noqa: E402
from tests.evaluation.conftest import make_model  # noqa: E402
from training.contract.job import DataError  # noqa: E402
from training.generate.sampler import Sampler, nucleus  # noqa: E402


def test_the_nucleus_is_the_smallest_set_that_reaches_the_share():
    logits = torch.tensor([[0.1, 0.5, 0.15, 0.25]]).log()
    assert torch.isfinite(nucleus(logits, 0.5)).tolist() == [[False, True, False, False]]
    assert torch.isfinite(nucleus(logits, 0.51)).tolist() == [[False, True, False, True]]
    assert torch.isfinite(nucleus(logits, 0.8)).tolist() == [[False, True, True, True]]
    assert nucleus(logits, 1.0) is logits
    assert nucleus(logits, 0.5)[0, 1] == pytest.approx(math.log(0.5))


def test_draws_follow_the_distribution(tmp_path):
    from training.generate.sampler import _drawn

    logits = torch.tensor([0.2, 0.8]).log().repeat(4000, 1)
    share = _drawn(1.0, 1.0, range(4000))(logits).float().mean()
    assert share == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / 4000))
    assert _drawn(1.0, 0.8, range(50))(logits[:50]).min() == 1


@pytest.mark.parametrize(
    ("prompt", "said", "answer"),
    [
        ("Q: 48+24? A:", "<think>\n48 + 24\n\n</think>\n\n72\nQ: 5?", "<think>\n48 + 24\n\n</think>\n\n72"),
        ("Q: 48+24? A:<think>\n", "48 + 24\n</think>72\nQ: 5?", "<think>\n48 + 24\n</think>72"),
        ("Q: 48+24? A:", "72\nQ: 5?", "72"),
    ],
)
def test_an_answer_goes_on_to_a_stop_string_outside_of_its_thought(tmp_path, prompt, said, answer):
    sampler = Sampler(make_model(tmp_path / "model", template=False), batch_size=2)
    tokens, read = sampler.encoder.text(said), []

    def speak(*call):
        """Let the model give the next token of what it is to say."""
        call[-1].logits = torch.nn.functional.one_hot(
            torch.tensor([[tokens[len(read)]]] * len(call[-1].logits)), 400
        ).float()
        read.append(call)

    sampler.model.register_forward_hook(speak)
    prompts = [sampler.encoder.text(prompt)] * 2
    assert sampler.answers(prompts, max_new_tokens=60, until=["\n"]) == [answer] * 2
    assert sampler.tokenizer.decode(tokens[: len(read)]) == said.removesuffix("Q: 5?")  # and no token further


def test_a_folder_that_is_no_model_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no config\.json"):
        Sampler(tmp_path, batch_size=1)


def test_a_text_without_room_is_refused(tmp_path):
    make_model(tmp_path / "model", template=False)
    with pytest.raises(DataError, match="max_new_tokens=128"):
        Sampler(tmp_path / "model", batch_size=1).answers([[7]], max_new_tokens=128)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt"])
def test_weights_in_a_pickle_are_never_opened(tmp_path, name):
    folder = make_model(tmp_path / "model", template=False)
    torch.save({"any": "thing"}, folder / name)
    (folder / "model.safetensors").unlink()
    for opened in (lambda: Sampler(folder, batch_size=1), lambda: rewards(folder, [], batch_size=1)):
        with pytest.raises(DataError, match=rf"no model\.safetensors; {name} is a pickle"):
            opened()


def test_an_adapter_cannot_name_another_model(tmp_path):
    folder = make_model(tmp_path / "model", template=False)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere", "peft_type": "LORA"}')
    with pytest.raises(DataError, match="adapter"):
        Sampler(folder, batch_size=1)


def test_answers_and_rewards_of_long_rows_are_computed_in_bounded_passes_and_stay_the_same(tmp_path, monkeypatch):
    folder = make_model(tmp_path / "model", template=True)
    judge = make_model(tmp_path / "judge", template=True, reward=True)
    texts = [f"{n:02} " + "The bread. " * (1 + 7 * n % 10) for n in range(24)]
    asked = [[{"role": "user", "content": text}, {"role": "assistant", "content": "The sky."}] for text in texts]
    sampler, held = Sampler(folder, batch_size=16), []
    prompts = list(map(sampler.encoder.text, texts))
    sampler.model.register_forward_hook(lambda *call: held.append(call[-1].past_key_values.layers[0].keys[:, 0, :, 0]))
    settings = {"max_new_tokens": 20, "temperature": 0.7, "seeds": range(len(texts))}
    read = count_rows(monkeypatch)
    expected, scores = sampler.answers(prompts, **settings), rewards(judge, asked, batch_size=16)[0]
    assert max(len(keys) for keys in held) == 16 and [len(rows) for rows in read] == [16, 8]
    most = 3 * 64
    monkeypatch.setattr("training.generate.passes.pass_rows.PASS_TOKENS", most)
    held.clear(), read.clear()
    assert sampler.answers(prompts, **settings) == expected
    assert rewards(judge, asked, batch_size=16)[0] == pytest.approx(scores, abs=1e-5)
    assert max(keys.numel() for keys in held) <= most and max(rows.numel() for rows in read) <= most
    assert len({len(keys) for keys in held}) > 1 and 2 < len(read) < len(texts)
    monkeypatch.setattr("training.generate.passes.pass_rows.PASS_TOKENS", 1)  # a row is read whatever its length
    held.clear()
    assert sampler.answers(prompts, **settings) == expected
    assert {len(keys) for keys in held} == {1}


def count_rows(monkeypatch):
    """Return a list to which each pass of a reward model adds its tokens, with padding."""
    from evaluation.exams import local_model

    read, opened = [], local_model.open_model

    def opened_to_count(folder, **options):
        model = opened(folder, **options)
        if options.get("reward"):
            model.register_forward_pre_hook(lambda *call: read.append(call[2]["input_ids"]), with_kwargs=True)
        return model

    monkeypatch.setattr(local_model, "open_model", opened_to_count)
    return read


def test_a_prompt_that_comes_several_times_is_read_once_and_each_answer_is_that_of_a_prompt_alone(tmp_path):
    sampler, read = Sampler(make_model(tmp_path / "model", template=False), batch_size=8), []
    prompts = [list(range(5, 25))] * 3 + [list(range(7, 30))] * 2
    how = {"max_new_tokens": 6, "temperature": 1.0}
    alone = [sampler.answer_tokens([prompt], **how, seeds=[n])[0] for n, prompt in enumerate(prompts)]
    sampler.model.register_forward_pre_hook(
        lambda _, __, given: read.append(list(given["input_ids"].shape)), with_kwargs=True
    )
    assert sampler.answer_tokens(prompts, **how, seeds=range(5)) == alone
    assert read[:2] == [[2, 23], [5, 1]] and len(set(map(tuple, alone))) > 2


def test_prompts_of_similar_lengths_are_read_together_and_ended_answers_leave_the_batch(tmp_path, monkeypatch):
    folder, read = make_model(tmp_path / "model", template=False), []
    sampler = Sampler(folder, batch_size=12)
    sampler._ends |= set(range(0, 400, 8))  # so that answers end soon, and at different tokens
    prompts = [list(range(5, 5 + length)) for length in (90, 88, 86, 84, 30, 29, 28, 27, 8, 7, 6, 5)]
    how = {"max_new_tokens": 24, "temperature": 1.0}
    alone = [sampler.answer_tokens([prompt], **how, seeds=[n])[0] for n, prompt in enumerate(prompts)]
    sampler.model.register_forward_pre_hook(
        lambda _, __, given: read.append(list(given["input_ids"].shape)), with_kwargs=True
    )
    assert sampler.answer_tokens(prompts, **how, seeds=range(12)) == alone
    assert len(set(map(len, alone))) > 3 and read[:2] == [[4, 90], [8, 30]]
    steps = [rows for rows, tokens in read[2:]]
    assert steps == sorted(steps, reverse=True) and steps[0] > steps[-1] and sum(steps) < 0.6 * 12 * len(steps)
    assert len(steps) == max(map(len, alone)) - 1
