"""Compare SFT, DPO, GRPO and exams on a CPU with TRL and lm-eval: processor seconds for the same rows.

    PEDIGREE_DATA=… python -m benchmarks.posttraining [--parts sft dpo grpo choices written] [--rounds 3] [--rows 96]

All begin with one random model and its tokenizer, read the same rows once, in batches of the same size, with one
thread. Sides take turns, each in a process of its own; the ratios are those of a round. Counted are the processor
seconds from the making of the trainer to the end of its training (so with DPO's reference, and without imports,
tokenizing and writing), and for exams those of the answers.

| part | rows | peer, stock | peer, best |
|---|---|---|---|
| sft | prompts and answers (Dolly, GSM8K) | TRL's SFTTrainer | no checkpointing, rows of similar length, eager |
| dpo | at most 64 pairs (dpo_en_demo), 8 a step | TRL's DPOTrainer | no checkpointing, the reference computed once |
| grpo | prompts of these pairs, 8 answers of 32 tokens each | TRL's GRPOTrainer | no checkpointing, eager |
| choices | ARC-easy and HellaSwag | lm-eval's HFLM, batches of 1 | batches of 64 |
| written | questions of GSM8K, answers of at most 64 tokens | lm-eval's HFLM, batches of 1 | batches of 64 |

"Best" are settings that TRL documents and that work on a CPU: packing and padding-free rows need FlashAttention. TRL
can put rows of similar length together only if there are some hundred rows; with fewer, its "best" could be better.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.rounds import ratios, spread
from training.posttrain.rows.sorting import TRAIN_FILE, read_jsonl

PARTS, SIDES = ("sft", "dpo", "grpo", "choices", "written"), ("own", "stock", "best")
Shape = tuple[int, int, int, int, int]  # width, layers, heads, key-value heads, width of the MLP
SHAPES: dict[str, Shape] = {"kitchen": (192, 4, 3, 3, 512), "12.5M": (320, 8, 5, 5, 864)}
VOCABULARY = {"kitchen": 2048, "12.5M": 8192}
LENGTH, BATCH = 512, 16
PAIRS_BATCH = 8  # pairs of a step; each has two rows
NEW_TOKENS, GENERATIONS = 32, 8
ANSWER_TOKENS = 64


def main() -> int:
    """Measure all sides in turns, and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=96, help="rows of each training; items of each suite")
    parser.add_argument("--shape", choices=SHAPES, default="kitchen")
    parser.add_argument("--side", nargs=3, metavar=("PART", "SIDE", "FOLDER"), help="what the processes are given")
    options = parser.parse_args()
    if options.side:
        part, side, folder = options.side
        print(json.dumps(measured(part, side, Path(folder))))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        prepare(Path(temporary), options.rows, options.shape)
        for part in options.parts:
            told: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
            for _ in range(options.rounds):
                for side in SIDES:
                    told[side].append(process(part, side, Path(temporary)))
                    print(part, side, told[side][-1], file=sys.stderr, flush=True)
            print("\n".join(lines(part, told)), flush=True)
    return 0


def lines(part: str, told: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield a line for each side: its median, and how many times as many processor seconds it takes as our own."""
    for side, rounds in told.items():
        seconds = [one["seconds"] for one in rounds]
        span = spread(ratios(seconds, [one["seconds"] for one in told["own"]]), 2)
        more = ", ".join(f"{name} {value}" for name, value in rounds[0].items() if name != "seconds")
        yield f"{part:8} {side:6} {statistics.median(seconds):8.2f} s   ÷ own {span}   {more}"


def process(part: str, side: str, folder: Path) -> dict[str, Any]:
    """Return what a process measured for a side."""
    argv = [sys.executable, "-m", "benchmarks.posttraining", "--side", part, side, str(folder)]
    alone = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, env=os.environ | alone)
    if done.returncode:
        sys.exit(f"{part} {side}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# What all sides are given


def rows_of(name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of the shared data."""
    with gzip.open(Path(os.environ["PEDIGREE_DATA"], name), "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def prepare(folder: Path, number: int, shape: str) -> None:
    """Write the random model, our inputs made from the rows, and the rows as TRL reads them."""
    from tests.training.posttrain import tiny

    answers = [
        {"prompt": row[asked], "completion": row["answer"]}
        for name, asked in (("dolly_15k_subset", "prompt"), ("gsm8k_train", "question"))
        for row in islice(rows_of(f"sft/{name}.jsonl.gz"), 10 * number)
    ]
    random.Random(0).shuffle(answers)
    pairs = pairs_of_texts()
    texts = [" ".join(row.values()) for row in answers + pairs]
    write_model(
        folder / "base_model" / "model", texts, vocabulary=VOCABULARY[shape], length=2 * LENGTH, shape=SHAPES[shape]
    )
    base = tiny.commit(folder, "base_model")
    # By characters, so that no side cuts a row.
    answers = list(islice((row for row in answers if sum(map(len, row.values())) < 2 * LENGTH), number))
    longest = lambda row: len(row["prompt"]) + max(len(row["chosen"]), len(row["rejected"]))  # noqa: E731
    pairs = list(islice((row for row in pairs if longest(row) < 4 * LENGTH), number))
    tiny.write_rows(folder / "answers.jsonl", answers)
    tiny.write_rows(folder / "all_pairs.jsonl", pairs)
    source = {"uri": str(folder / "answers.jsonl"), "format": "prompt_answer", "prompt_field": "prompt"}
    tiny.run("instructions", folder / "instruction_data", {"sft": {"data": [{**source, "answer_field": "completion"}]}})
    source = {"uri": str(folder / "all_pairs.jsonl"), "format": "chosen_rejected"}
    tiny.run("preferences", folder / "preference_data", {"preferences": {"data": [source], "held_out_fraction": 0.01}})
    trained = read_jsonl(folder / "preference_data" / TRAIN_FILE)  # TRL must not train on the held-out pairs either
    said = [{side: row[side][-1]["content"] for side in ("prompt", "chosen", "rejected")} for row in trained]
    tiny.write_rows(folder / "pairs.jsonl", said)
    # DPO and GRPO begin with a model that has a chat template; SFT gives it one.
    settings = {
        "epochs": 1.0,
        "warmup_fraction": 0.0,
        "batch_size": BATCH,
        "learning_rate": 1e-3,
        "max_length": 2 * LENGTH,
    }
    inputs = (base, tiny.made(folder, "instruction_data"))
    tiny.run("sft", folder / "sft_model", {"sft": {**settings, "data": [{"uri": "x"}]}}, inputs)


def pairs_of_texts() -> list[dict[str, str]]:
    """Return the shared preference pairs as prompt, chosen and rejected answer."""
    return [
        {
            "prompt": row["conversations"][-1]["value"],
            "chosen": row["chosen"]["value"],
            "rejected": row["rejected"]["value"],
        }
        for row in rows_of("preference/dpo_en_demo.jsonl.gz")
    ]


def write_model(folder: Path, texts: list[str], *, vocabulary: int, length: int, shape: Shape) -> None:
    """Write a random Llama for rows of `length` tokens, and a tokenizer trained on the texts."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.training.posttrain import tiny

    tiny.write_tokenizer(folder, texts, vocabulary=vocabulary)
    width, layers, heads, kv_heads, mlp_width = shape
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocabulary,
                hidden_size=width,
                intermediate_size=mlp_width,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=kv_heads,
                max_position_embeddings=length,
                bos_token_id=None,
                eos_token_id=0,
                pad_token_id=1,
                tie_word_embeddings=True,
            )
        )
    model.save_pretrained(folder)


# The sides


def measured(part: str, side: str, folder: Path) -> dict[str, Any]:
    """Return the processor seconds of one side, with what shows that it did the same work."""
    import torch

    torch.set_num_threads(1)
    if part in ("choices", "written"):
        return (choices if part == "choices" else written)(side, folder)
    with timed() as told, tempfile.TemporaryDirectory() as out:
        (own if side == "own" else trl)(part, folder, Path(out), best=side == "best")
    return told


@contextlib.contextmanager
def timed() -> Iterator[dict[str, Any]]:
    """Measure from the making of a trainer of transformers to the end of its training."""
    from transformers import Trainer

    told: dict[str, Any] = {}
    began: list[float] = []
    make, train = Trainer.__init__, Trainer.train

    def making(self: Any, *given: Any, **named: Any) -> None:
        began.append(time.process_time())
        make(self, *given, **named)

    def training(self: Any, *given: Any, **named: Any) -> Any:
        done = train(self, *given, **named)
        told.update(seconds=time.process_time() - began[-1])
        told.update(steps=self.state.global_step, loss=round(done.training_loss, 3))
        return done

    Trainer.__init__, Trainer.train = making, training
    try:
        yield told
    finally:
        Trainer.__init__, Trainer.train = make, train


def own(part: str, folder: Path, out: Path, *, best: bool) -> None:
    """Run our stage."""
    from tests.training.posttrain import tiny

    del best  # ours has one form
    size = PAIRS_BATCH if part == "dpo" else BATCH
    common = {"epochs": 1.0, "batch_size": size, "max_length": 2 * LENGTH, "precision": "bf16"}
    pairs = tiny.made(folder, "preference_data")
    if part == "sft":
        inputs = (tiny.made(folder, "base_model"), tiny.made(folder, "instruction_data"))
        settings = {"sft": {**common, "learning_rate": 2e-5, "data": [{"uri": "x"}]}}
    else:
        inputs = (tiny.made(folder, "sft_model"), pairs)
        settings = {"align": {**common, "learning_rate": 1e-6, "method": part}}
    if part == "grpo":
        settings["align"] |= {
            "num_generations": GENERATIONS,
            "max_new_tokens": NEW_TOKENS,
            "rewards": {"length": 1.0},
            "parts": {"length": {"most_words": NEW_TOKENS}},
            "beta": 0.0,
        }
    tiny.run("sft" if part == "sft" else "align", out / part, settings, inputs, threads=1)


def trl(part: str, folder: Path, out: Path, *, best: bool) -> None:
    """Train by TRL's trainer: with its defaults or, if `best`, with the fastest settings that work on a CPU."""
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from training.posttrain.rewards import length
    from training.posttrain.scoring import Sampled

    name = {"sft": "SFT", "dpo": "DPO", "grpo": "GRPO"}[part]
    start = folder / ("base_model" if part == "sft" else "sft_model") / "model"
    rows = read_jsonl(folder / ("answers.jsonl" if part == "sft" else "pairs.jsonl"))
    settings: dict[str, Any] = {
        "output_dir": str(out),
        "per_device_train_batch_size": PAIRS_BATCH if part == "dpo" else BATCH,
        "num_train_epochs": 1,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
    }
    if part == "grpo":
        rows = [{"prompt": row["prompt"]} for row in rows]
        settings |= {"num_generations": GENERATIONS, "max_completion_length": NEW_TOKENS}
    if best:
        settings |= {"gradient_checkpointing": False}
        if part == "sft":
            settings["train_sampling_strategy"] = "group_by_length"
        if part == "dpo":
            settings["precompute_ref_log_probs"] = True
    model = AutoModelForCausalLM.from_pretrained(
        start, local_files_only=True, use_safetensors=True, trust_remote_code=False
    )
    if best and part != "dpo":  # its rows are so long that plain attention takes longer than the default
        model.set_attn_implementation("eager")
    few_words = length.Settings(most_words=NEW_TOKENS)
    scored = lambda completions, **_: [length.score(Sampled(text=one), few_words) for one in completions]  # noqa: E731
    more = {"reward_funcs": scored}
    trainer = getattr(trl, f"{name}Trainer")(
        model=model,
        args=getattr(trl, f"{name}Config")(**settings),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(start, local_files_only=True, trust_remote_code=False),
        **(more if part == "grpo" else {}),
    )
    trainer.train()


def choices(side: str, folder: Path) -> dict[str, Any]:
    """Return the seconds that log-likelihoods of all choices take, and how many of the likeliest are the right ones."""
    from lm_eval.api.instance import Instance

    number = len(read_jsonl(folder / "answers.jsonl"))
    items = [
        item
        for name in ("arc_easy", "hellaswag_val")
        for item in islice(rows_of(f"benchmarks/{name}.jsonl.gz"), number)
    ]
    requests = [
        Instance("loglikelihood", {}, (f"{item['query']}", f" {choice}"), n)
        for item in items
        for n, choice in enumerate(item["choices"])
    ]
    model = exam_model(side, folder)
    began = time.process_time()
    found = iter(model.loglikelihood(requests))
    seconds = time.process_time() - began
    right = 0
    for item in items:
        values = [next(found)[0] for _ in item["choices"]]
        right += values.index(max(values)) == item["gold"]
    return {"seconds": seconds, "items": len(items), "right": right}


def written(side: str, folder: Path) -> dict[str, Any]:
    """Return the seconds that written answers take, and how much was written, with a digest of all answers."""
    from lm_eval.api.instance import Instance

    number = len(read_jsonl(folder / "answers.jsonl"))
    asked = {"until": ["Question:"], "max_gen_toks": ANSWER_TOKENS, "do_sample": False}
    rows = islice(rows_of("benchmarks/gsm8k_test.jsonl.gz"), number)
    texts = [f"Question: {row['question']}\nAnswer:" for row in rows]
    requests = [Instance("generate_until", {}, (text, dict(asked)), n) for n, text in enumerate(texts)]
    model = exam_model(side, folder)
    began = time.process_time()
    answers = model.generate_until(requests)
    seconds = time.process_time() - began
    said = sha256("\0".join(answers).encode()).hexdigest()[:8]
    return {"seconds": seconds, "items": number, "characters": sum(map(len, answers)), "answers": said}


def exam_model(side: str, folder: Path) -> Any:
    """Return the fine-tuned model as a side asks it."""
    where = folder / "sft_model" / "model"
    if side == "own":
        from evaluation.exams.local_model import LocalModel

        return LocalModel(where, batch_size=64)
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(where), device="cpu", batch_size=64 if side == "best" else 1)


if __name__ == "__main__":
    sys.exit(main())
