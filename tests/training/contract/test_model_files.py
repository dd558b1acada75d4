"""A folder is opened if its files hold exactly the model's weights; the digest covers every file that a loader uses."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from evaluation.exams.local_model import rewards
from tests.evaluation.conftest import make_model
from training.contract.job import DataError
from training.contract.model_files import INDEX, WEIGHTS, model_digest
from training.generate.chat_template import DIGEST_FIELD, TEMPLATE_FILE, template_digest
from training.generate.checked_folder import check_folder
from training.generate.model_folder import open_model
from training.pretrain.models import export

NAME = "model.layers.0.mlp.up_proj.weight"
Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("sound") / "model", template=True)


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "model")


def rewrite(folder: Path, change: Callable[[Weights], Weights]) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, {"format": "pt"})


def configure(folder: Path, name: str = "config.json", **fields: object) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def in_files(folder: Path, place: Callable[[str], str]) -> None:
    """Put the weights into a.safetensors, and an index beside it that says for each weight where it is."""
    (folder / WEIGHTS).rename(folder / "a.safetensors")
    names = load_file(folder / "a.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {name: place(name) for name in names}}))


def without(weights: Weights, part: str) -> Weights:
    return {name: tensor for name, tensor in weights.items() if part not in name}


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "renamed": (
        lambda f: rewrite(f, lambda w: {name.replace("0.mlp.up", "0.mlp.upper"): one for name, one in w.items()}),
        r"layers\.0\.mlp\.up(per)?_proj\.weight is (missing|no weight)",
    ),
    "a layer fewer": (lambda f: rewrite(f, lambda w: without(w, ".1.")), r"model\.layers\.1\.\S+ is missing"),
    "no head": (lambda f: rewrite(f, lambda w: without(w, "lm_head")), r"lm_head\.weight is missing"),
    "tied": (lambda f: configure(f, tie_word_embeddings=True), r"lm_head\.weight differs from model\.embed_tokens"),
    "one too many": (
        lambda f: rewrite(f, lambda w: w | {"model.layers.7.norm": torch.ones(2)}),
        r"model\.layers\.7\.norm is (unexpected|no weight)",
    ),
    "shape": (
        lambda f: rewrite(f, lambda w: w | {NAME: w[NAME][:8].clone()}),
        r"up_proj\.weight is \(8, 32\), the configuration wants \(64, 32\)",
    ),
    "nan": (lambda f: rewrite(f, lambda w: w | {NAME: w[NAME] * float("nan")}), rf"{NAME} has values that are not"),
    "infinity": (lambda f: rewrite(f, lambda w: w | {NAME: w[NAME] / 0}), rf"{NAME} has values that are not finite"),
    "too large": (lambda f: rewrite(f, lambda w: w | {NAME: w[NAME].double() * 1e300}), rf"{NAME} has values that are"),
    "cut": (lambda f: os.truncate(f / WEIGHTS, 900), r"model\.safetensors: .*; copy the whole file again"),
    "pickle": (lambda f: in_files(f, lambda n: "x.bin" if n == NAME else "a.safetensors"), r"names 'x\.bin'; it may"),
    "elsewhere": (lambda f: in_files(f, lambda n: "../x.safetensors"), r"names '\.\./x\.safetensors'; it may only"),
    "absent": (lambda f: in_files(f, lambda n: "b.safetensors"), r"names b\.safetensors, and there is no such file"),
    "twice": (
        lambda f: (
            save_file({NAME: torch.ones(2)}, f / "b.safetensors"),
            in_files(f, lambda n: "b.safetensors" if n == NAME else "a.safetensors"),
        ),
        rf"places {NAME} in b\.safetensors, but a\.safetensors holds it",
    ),
    "another file": (lambda f: configure(f, transformers_weights="b.safetensors"), "transformers_weights names 'b"),
}  # fmt: skip


@pytest.mark.parametrize("open_", [lambda f: open_model(f, dtype="auto"), export.read_model], ids=["theirs", "ours"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_exactly_the_models_weights_is_refused_by_name(folder, change, open_):
    change_, said = CHANGES[change]
    change_(folder)
    with pytest.raises(DataError, match=said):
        open_(folder)


def test_weights_in_several_files_and_old_copies_of_a_tied_head_are_read(folder):
    rewrite(folder, lambda w: w | {"lm_head.weight": w["model.embed_tokens.weight"].clone()})
    configure(folder, tie_word_embeddings=True)
    in_files(folder, lambda name: "a.safetensors")
    theirs, ours = open_model(folder, dtype="auto"), export.read_model(folder)
    assert torch.equal(theirs.get_output_embeddings().weight.cpu(), ours.head_weight)


def test_a_type_that_does_not_hold_the_weights_is_refused(folder):
    rewrite(folder, lambda w: w | {NAME: w[NAME] * 1e30})
    configure(folder, dtype="float16")
    with pytest.raises(DataError, match=rf"{NAME} has values up to \S+, and is opened as torch\.float16, which"):
        open_model(folder, dtype="auto")
    open_model(folder, dtype=torch.float32)


def test_nobody_is_asked_to_run_a_strangers_code(folder, monkeypatch):
    configure(folder, model_type="odd", auto_map={"AutoConfig": "odd.Config", "AutoModelForCausalLM": "odd.Model"})
    (folder / "odd.py").write_text("raise AssertionError('it ran')")
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # whoever is asked says yes
    with pytest.raises(ValueError, match="contains custom code"):
        open_model(folder, dtype="auto")


def test_a_language_model_is_no_judge(folder):
    with pytest.raises(DataError, match=r"score\.weight is missing"):
        rewards(folder, [], batch_size=1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: {name: one for name, one in w.items() if "0.mlp.experts.1.up" not in name}, "is missing"),
        (lambda w: {n.replace("0.mlp.experts.1.up", "0.mlp.experts.9.up"): one for n, one in w.items()}, "is missing"),
        (lambda w: {n: one[:4].clone() if "0.mlp.experts.1.up" in n else one for n, one in w.items()}, r"is \(4, 16\)"),
    ],
)
def test_an_expert_of_a_layer_does_not_take_the_place_of_another(tmp_path, change, said):
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    small = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 0}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "num_key_value_heads": 1}
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**small, **experts)).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    open_model(tmp_path, dtype="auto")
    rewrite(tmp_path, change)
    with pytest.raises(DataError, match=rf"model\.layers\.0\.mlp\.experts\.1\.up_proj\.weight {said}"):
        open_model(tmp_path, dtype="auto")


def test_no_other_file_takes_the_place_of_tokenizer_or_template(folder):
    configure(folder, "tokenizer_config.json", fast_tokenizer_files=["tokenizer.4.0.0.json"])
    with pytest.raises(DataError, match="fast_tokenizer_files names"):
        check_folder(folder)
    configure(folder, "tokenizer_config.json", fast_tokenizer_files=None)
    configure(folder, **{DIGEST_FIELD: template_digest((folder / TEMPLATE_FILE).read_text())})
    check_folder(folder)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "default.jinja").write_text("{{ messages }}")
    with pytest.raises(DataError, match=r"additional_chat_templates: the model was trained with one chat template"):
        check_folder(folder)


def test_the_digest_covers_subfolders_and_believes_no_record_beside_the_weights(folder, sound):
    found = {model_digest(folder)}
    assert found == {model_digest(sound)}
    (folder / ".cache").mkdir()
    (folder / ".cache" / "download").write_text("some time")
    assert model_digest(folder) in found
    for name in ("additional_chat_templates/tool_use.jinja", "artifact.json", "sub/folder/part.safetensors"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
        found.add(model_digest(folder))
    assert len(found) == 4
    (folder / "linked").symlink_to(sound)
    with pytest.raises(DataError, match="linked: is a link to a folder"):
        model_digest(folder)
    (folder / "linked").unlink()
    os.mkfifo(folder / "pipe.json")
    with pytest.raises(DataError, match=r"pipe\.json: is no file that can be read"):
        model_digest(folder)
