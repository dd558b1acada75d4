"""What can be done with the models that people download, as a table: `python -m tests.own_models [MODEL ...]`.

Each model has a few thousand random weights, made by transformers' own class. It goes through the stages of a recipe in
this process, and what is exported is opened by the stock class again. A cell is `ok`, or the sentence of the refusal.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.jobs import commit_by_hand
from tests.own_model import write_model
from tests.own_pages import NUMBERS
from tests.training.posttrain import tiny

NARROW, WINDOWED = {"head_dim": 8}, {"head_dim": 8, "sliding_window": 16}
MODELS: dict[str, dict[str, Any]] = {
    "Llama 3": {"kind": "llama"},
    "Qwen3": {"kind": "qwen3", **NARROW},
    "Qwen2.5": {"kind": "qwen2"},
    "Mistral": {"kind": "mistral", "pieces": "prepended", "sliding_window": 16},
    "OLMo 2": {"kind": "olmo2", "pad_token_id": 1},
    "OLMo 3": {"kind": "olmo3", "pad_token_id": 1, "sliding_window": 16},
    "Gemma": {"kind": "gemma", "pieces": "plain", **NARROW},
    "Gemma 2": {"kind": "gemma2", "pieces": "plain", **WINDOWED},
    "Gemma 3": {"kind": "gemma3_text", "pieces": "plain", **WINDOWED},
    "GPT-2": {"kind": "gpt2"},
    "Granite": {"kind": "granite", "logits_scaling": 4.0},
    "OLMo": {"kind": "olmo"},
    "Phi-2": {"kind": "phi"},
    "Phi-3": {"kind": "phi3", "pieces": "prepended", "pad_token_id": 1},
    "Phi-4": {"kind": "phi3", "pad_token_id": 1},
    "Pythia": {"kind": "gpt_neox"},
    "SmolLM3": {"kind": "smollm3", "pad_token_id": 1},
}
TUNED = {"epochs": 1, "batch_size": 8, "max_length": 128, "precision": "fp32"}
SFT = {**TUNED, "learning_rate": 1e-3, "data": [{"uri": "x"}]}
DPO = {**TUNED, "method": "dpo", "learning_rate": 1e-4, "max_new_tokens": 8}
REWARD = {**TUNED, "learning_rate": 1e-3}
GRPO = {**DPO, "method": "grpo", "max_steps": 2, "num_generations": 4}
CORPUS = [{"name": "s", "source": "jsonl", "paths": ["a"]}]
TALK = [{"role": "user", "content": "Name number 7."}]


def cells(model: str, folder: Path, *, without: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the cells of a model's row by column, `without` some of them, made in an empty folder."""
    write_model(folder / "given", **MODELS[model])
    done: dict[str, Callable[[], None]] = {
        "adopt": partial(adopt, folder),
        "sft": partial(sft, folder),
        "adapters": partial(adapters, folder),
        "dpo": partial(dpo, folder),
        "grpo": partial(grpo, folder),
        "score": partial(score, folder),
        "chat": partial(chat, folder),
        "export": partial(export, folder),
        "several shards": partial(planned, folder, shard=2),
        "pretrain further": partial(read, folder, snapshots=CORPUS, pretrain={"zero_init_outputs": False}),
    }
    return {column: _said(made) for column, made in done.items() if column not in without}


def _said(made: Callable[[], None]) -> str:
    try:
        made()
    except Exception as error:  # whatever the cell is to show
        return " ".join(str(error).split()) or type(error).__name__
    return "ok"


def read(folder: Path, **sections: Any) -> Any:
    """Read a recipe that adopts the model and fine-tunes it."""
    from assets.state.recipe_folders import load_recipe

    sft = {"data": [{"uri": str(folder / "talks.jsonl")}], "batch_size": 8}
    recipe = {"extends": "base", "name": "own", "adopt": {"model": str(folder / "given")}, "sft": sft, **sections}
    (folder / "own.yaml").write_text(json.dumps(recipe))
    return load_recipe(str(folder / "own.yaml"))


def planned(folder: Path, **size: int) -> None:
    """Check the recipe against a profile with these settings for all stages."""
    from assets.answers.plan.capacity import checks
    from resources.compute.size import Size

    for _, check in checks(read(folder)):
        check(Size(backend="local", nodes=1, processes=2, **size))


def adopt(folder: Path) -> None:
    """Adopt the model as the chain does."""
    from training.adopt.stage import ADOPT, _settings
    from training.contract.records import write_record

    given = _settings(read(folder), "own") | {"adopt": {"name": "somebody/small"}}
    record = tiny.run(ADOPT.name, folder / "adopted_model", write_record(given))
    _passed(record)


def sft(folder: Path) -> None:
    """Fine-tune it on a few conversations."""
    answers = [f"It is {number}." for number in NUMBERS[:16]]
    talks = [{"messages": [*TALK, {"role": "assistant", "content": answer}]} for answer in answers]
    source = tiny.write_rows(folder / "talks.jsonl", talks)
    tiny.run("instructions", folder / "instruction_data", {"sft": {"data": [{"uri": source}]}})
    tiny.run("sft", folder / "sft_model", {"sft": SFT}, _inputs(folder, "adopted_model", "instruction_data"))


def adapters(folder: Path) -> None:
    """Fine-tune it by adapters: merged they are a model that peft makes too, of the given one and what is saved."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    given = _inputs(folder, "adopted_model", "instruction_data")
    record = tiny.run("sft", folder / "with_adapters", {"sft": SFT | {"peft": {"r": 4}}}, given)
    assert [gate["passed"] for gate in record["gates"] if gate["name"] == "merged_equals_adapter"] == [True]
    start, merged = (
        AutoModelForCausalLM.from_pretrained(folder / place / "model", dtype=torch.float32).eval()
        for place in ("adopted_model", "with_adapters")
    )
    with torch.inference_mode():
        tokens = torch.arange(40)[None]
        before, expected = start(tokens).logits, merged(tokens).logits
        beside = PeftModel.from_pretrained(start, folder / "with_adapters" / "adapter").eval()(tokens).logits
    difference, learnt = ((one - expected).abs().max() for one in (beside, before))
    assert difference < 1e-4 < learnt, (difference, learnt)


def dpo(folder: Path) -> None:
    """Align it with a few pairs."""
    source = tiny.write_rows(folder / "pairs.jsonl", tiny.preference_rows())
    data = {"data": [{"uri": source, "format": "chosen_rejected"}], "held_out_fraction": 0.25}
    tiny.run("preferences", folder / "preference_data", {"preferences": data})
    given = _inputs(folder, "sft_model", "preference_data")
    _passed(tiny.run("align", folder / "aligned_model", {"align": DPO}, given))


def grpo(folder: Path) -> None:
    """Align it by answers that it samples, with the rewards of a model that is made of it."""
    tiny.run("reward", folder / "reward_model", {"reward": REWARD}, _inputs(folder, "sft_model", "preference_data"))
    given = _inputs(folder, "sft_model", "preference_data", "reward_model")
    _passed(tiny.run("align", folder / "sampled", {"align": GRPO}, given))


def _passed(record: Mapping[str, Any]) -> None:
    refused = [gate for gate in record["gates"] if not gate["passed"]]
    assert not refused, refused


def score(folder: Path) -> None:
    """Put two questions to it, in one pass and one by one, which must give the same log-likelihoods."""
    from evaluation.exams.harness import run_suites
    from evaluation.exams.items import read_exam
    from evaluation.exams.local_model import LocalModel
    from training.data.exams.settings import BenchmarkRecipe

    choices = ["two", "a hundred and three"]
    asked = (f"Which number is it {'after the one before it ' * n}?" for n in range(3))
    items = [{"id": q[-9:] + str(n), "question": q, "choices": choices, "gold": 0} for n, q in enumerate(asked)]
    suite = BenchmarkRecipe(name="q", uri=tiny.write_rows(folder / "q.jsonl", items), kind="multiple_choice")
    exam, found = [(suite, read_exam(suite, {}).items)], []
    for rows in (4, 1):
        model = LocalModel(folder / "aligned_model" / "model", batch_size=rows)
        (result,) = run_suites(model, exam, has_template=False)
        found.append([value for one in result.samples for value in one["log_likelihoods"]])
    assert max(abs(a - b) for a, b in zip(*found, strict=True)) < 1e-3, found


def chat(folder: Path) -> None:
    """Ask it."""
    from training.posttrain.chat import generate

    assert isinstance(generate(folder / "aligned_model" / "model", [TALK], max_new_tokens=8)[0], str)


def export(folder: Path) -> None:
    """Lay it out for a hub, and open this by the stock class: logits must be those of the model that was tuned."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from evaluation.hub.repository import export_model
    from training.contract.artifact import find
    from training.generate.model_folder import open_model

    made, target = find(folder / "aligned_model"), folder / "exported"
    (folder / "model_card").mkdir()
    (folder / "model_card" / "README.md").write_text("A model.\n")
    commit_by_hand(folder / "model_card", "model_card")
    card = find(folder / "model_card")
    assert made is not None and card is not None
    export_model(made, card, (), (), target, scores=None)
    model, told = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32, output_loading_info=True)
    tokens = AutoTokenizer.from_pretrained(target).apply_chat_template(TALK, return_tensors="pt", return_dict=False)
    with torch.inference_mode():
        ours = open_model(made.path / "model", dtype=torch.float32).eval()(tokens).logits
        assert torch.equal(model.eval()(tokens).logits, ours)
    assert not any(told.values()), told
    given = json.loads((folder / "given" / "config.json").read_text())["architectures"]
    assert given == [type(model).__name__], given


def _inputs(folder: Path, *assets: str) -> tuple[Any, ...]:
    return tuple(tiny.made(folder, asset) for asset in assets)


def table(models: list[str]) -> str:
    """Return the matrix of some models in Markdown, with a list of the sentences that its cells refer to."""
    rows, sentences = [], dict[str, int]()
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            row = {
                column: one.replace(folder, "DIR").replace(repr(MODELS[model]["kind"]), "TYPE")
                for column, one in cells(model, Path(folder)).items()
            }
        numbers = [one if one == "ok" else f"[{sentences.setdefault(one, len(sentences) + 1)}]" for one in row.values()]
        rows.append(f"| {model} | {' | '.join(numbers)} |")
    head = f"| model | {' | '.join(row)} |"
    said = [f"{number}. {sentence}" for sentence, number in sentences.items()]
    return "\n".join([head, "|---" * (len(row) + 1) + "|", *rows, "", *said])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(table(sys.argv[1:] or list(MODELS)))
