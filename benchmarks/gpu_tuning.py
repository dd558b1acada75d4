"""Compare SFT and DPO on one GPU with TRL: tokens per second and peak memory for the same rows.

    PEDIGREE_DATA=… python -m benchmarks.gpu_tuning --out FILE [--parts sft dpo] [--rows 512] [--tiny]

All sides begin with one random model of 0.99e9 weights (the layers of Llama 3.2 1B) and read the same rows once, in
batches of the same size and in bf16. Each is a process of its own. Counted are the steps after the first WARM, from the
end of one step to the end of the next, so without loading and compiling; and the peak of torch's allocator. `stock` are
TRL's defaults. `best` turns off the recomputation of layers and takes rows of similar length or, for DPO, a reference
that is computed once; `liger` adds Liger's kernels. Packing needs FlashAttention's package and is not among them.

Our side is the stage itself, to its artifact. `--tiny` is a dry run with a small model, also without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.posttraining import Shape, pairs_of_texts, rows_of, write_model
from training.contract.artifact import write_json
from training.posttrain.rows.sorting import read_jsonl

PARTS, SIDES = ("sft", "dpo"), ("own", "best", "liger", "stock")
SHAPE: Shape = (2048, 16, 32, 8, 8192)
TINY: Shape = (64, 2, 4, 2, 128)
VOCABULARY, MOST_CHARACTERS, LENGTH, BATCH, WARM, HELD_OUT = 8192, 4000, 2048, 16, 4, 0.01
SORTED = "group_by_length"


def main() -> int:
    """Measure all sides, each once, and print their figures and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--tiny", action="store_true", help="a dry run, and no measurement")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", nargs=3, metavar=("PART", "SIDE", "FOLDER"), help="what the processes are given")
    options = parser.parse_args()
    if options.side:
        part, side, folder = options.side
        print(json.dumps(measured(part, side, Path(folder))))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        prepare(Path(temporary), options.rows, TINY if options.tiny else SHAPE)
        told: dict[str, dict[str, Any]] = {part: {} for part in options.parts}
        for part in options.parts:
            for side in options.sides:
                told[part][side] = process(part, side, Path(temporary))
                print(part, side, told[part][side], file=sys.stderr, flush=True)
                if options.out:
                    write_json(options.out, {"is_dry": options.tiny, "found": told})
            print("\n".join(lines(part, told[part])), flush=True)
    return 0


def lines(part: str, told: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each side: tokens a second, how many times as many our own makes, and the peak of memory."""
    for side, one in told.items():
        if "error" in one:
            yield f"{part} {side}: not measured: {one['error']}"
            continue
        own = told.get("own", {}).get("tokens_per_second")
        ratio = f", own is {own / one['tokens_per_second']:.2f} x" if own and side != "own" else ""
        yield (
            f"{part} {side}: {one['tokens_per_second']:,.0f} tokens/s{ratio},"
            f" {1e3 * one['step_seconds']:.0f} ms a step,"
            f" peak {one['peak_gigabytes']:.1f} GB, loss {one['loss']}, {one['steps']} steps"
        )


def process(part: str, side: str, folder: Path) -> dict[str, Any]:
    """Return what a process measured for a side, or the last words of one that failed."""
    argv = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu_tuning", "--side", part, side, str(folder)]
    alone = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, env=os.environ | alone)
    if done.returncode:
        return {"error": done.stderr.strip()[-600:]}
    return json.loads(done.stdout.splitlines()[-1])


def prepare(folder: Path, number: int, shape: Shape) -> None:
    """Write the random model, our inputs made from the rows, and the rows as TRL reads them."""
    from tests.training.posttrain import tiny

    dolly = rows_of("sft/dolly_15k_subset.jsonl.gz")
    answers = [{"prompt": row["prompt"], "completion": row["answer"]} for row in dolly]
    pairs = pairs_of_texts()
    short = lambda *texts: sum(map(len, texts)) < MOST_CHARACTERS  # noqa: E731 - characters: no side cuts a row
    answers = list(islice((row for row in answers if short(*row.values())), number))
    pairs = list(islice((row for row in pairs if short(*row.values())), number))
    texts = [" ".join(row.values()) for row in answers + pairs]
    write_model(folder / "base_model" / "model", texts, vocabulary=VOCABULARY, length=LENGTH, shape=shape)
    tiny.commit(folder, "base_model")
    tiny.write_rows(folder / "answers.jsonl", answers)
    tiny.write_rows(folder / "pairs.jsonl", pairs)
    source = {"uri": str(folder / "answers.jsonl"), "format": "prompt_answer", "prompt_field": "prompt"}
    tiny.run("instructions", folder / "instruction_data", {"sft": {"data": [{**source, "answer_field": "completion"}]}})
    source = {"uri": str(folder / "pairs.jsonl"), "format": "chosen_rejected"}
    tiny.run(
        "preferences", folder / "preference_data", {"preferences": {"data": [source], "held_out_fraction": HELD_OUT}}
    )


# The sides


def measured(part: str, side: str, folder: Path) -> dict[str, Any]:
    """Return what one side takes, with what shows that it did the same work."""
    with timed() as told, tempfile.TemporaryDirectory(dir=folder) as out:
        if side == "own":
            own(part, folder)
        else:
            trl(part, folder, Path(out), side)
    return told


@contextlib.contextmanager
def timed() -> Iterator[dict[str, Any]]:
    """Measure the steps of the trainer of transformers that is made inside, and the tokens that they train on."""
    import torch
    from transformers import Trainer, TrainerCallback

    on_gpu = torch.cuda.is_available()

    class Steps(TrainerCallback):
        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
            if on_gpu:
                torch.cuda.synchronize()
            self.ends.append(time.perf_counter())

    told: dict[str, Any] = {}
    train, prepare = Trainer.train, Trainer._prepare_inputs

    def training(self: Any, *given: Any, **named: Any) -> Any:
        steps, tokens = Steps(), []
        self.add_callback(steps)

        def preparing(self: Any, inputs: Any) -> Any:
            found = prepare(self, inputs)
            if "attention_mask" in inputs:
                tokens.append(inputs["attention_mask"].sum())
            return found

        Trainer._prepare_inputs = preparing
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        done = train(self, *given, **named)
        Trainer._prepare_inputs = prepare
        seconds = [end - begin for begin, end in zip(steps.ends[WARM:], steps.ends[WARM + 1 :], strict=False)]
        counted = sum(int(one) for one in tokens[WARM + 1 :])
        told.update(
            steps=self.state.global_step,
            loss=round(done.training_loss, 3),
            step_seconds=statistics.fmean(seconds),
            median_step_seconds=statistics.median(seconds),
            tokens_per_second=counted / sum(seconds),
            tokens=counted,
            train_seconds=time.perf_counter() - began,
            peak_gigabytes=torch.cuda.max_memory_allocated() / 1e9 if on_gpu else 0.0,
        )
        return done

    Trainer.train = training
    try:
        yield told
    finally:
        Trainer.train = train


def own(part: str, folder: Path) -> None:
    """Run our stage. The model that SFT makes is the one that DPO of all sides begins with."""
    from tests.training.posttrain import tiny

    common = {"epochs": 1.0, "batch_size": BATCH, "max_length": LENGTH, "precision": "bf16"}
    if part == "sft":
        inputs = (tiny.made(folder, "base_model"), tiny.made(folder, "instruction_data"))
        settings = {"sft": {**common, "learning_rate": 2e-5, "data": [{"uri": "x"}]}}
        tiny.run("sft", folder / "sft_model", settings, inputs, threads=8)
    else:
        inputs = (tiny.made(folder, "sft_model"), tiny.made(folder, "preference_data"))
        settings = {"align": {**common, "learning_rate": 1e-6, "method": part}}
        tiny.run("align", folder / "aligned_model", settings, inputs, threads=8)


def trl(part: str, folder: Path, out: Path, side: str) -> None:
    """Train by TRL's trainer, with the settings of a side."""
    import torch
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name = {"sft": "SFT", "dpo": "DPO"}[part]
    start = folder / ("base_model" if part == "sft" else "sft_model") / "model"
    rows = read_jsonl(folder / ("answers.jsonl" if part == "sft" else "pairs.jsonl"))
    settings: dict[str, Any] = {
        "output_dir": str(out),
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": 1,
        "max_length": LENGTH,
        "report_to": "none",
        "save_strategy": "no",
        "bf16": torch.cuda.is_available(),
        "use_cpu": not torch.cuda.is_available(),
    }
    if side != "stock":
        settings |= {"gradient_checkpointing": False, "use_liger_kernel": side == "liger"}
        # TRL's pairs have no field by whose length transformers could sort them.
        settings |= {"precompute_ref_log_probs": True} if part == "dpo" else {"train_sampling_strategy": SORTED}
    trainer = getattr(trl, f"{name}Trainer")(
        model=AutoModelForCausalLM.from_pretrained(
            start, local_files_only=True, use_safetensors=True, trust_remote_code=False
        ),
        args=getattr(trl, f"{name}Config")(**settings),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(start, local_files_only=True, trust_remote_code=False),
    )
    trainer.train()


if __name__ == "__main__":
    sys.exit(main())
