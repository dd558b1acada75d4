"""A model in small numbers: what is written, opened and refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from assets.state.compare import compare
from assets.state.recipe_folders import SHIPPED, load_recipe
from tests.jobs import commit_by_hand, job_by_hand
from tests.model_folders import sound
from training.adopt.trial import check_tried
from training.contract.artifact import find
from training.contract.job import DataError
from training.contract.records import RecipeError, varied, write_record
from training.contract.running.runner import run_job
from training.generate.checked_folder import FORMS
from training.generate.model_folder import open_model
from training.quantize.quantize import check_groups
from training.quantize.settings import METHODS, QuantizeRecipe
from training.quantize.stage import ASSETS
from training.stages import STAGES

BITS = {"int8": 8, "int8_activations": 8, "int4": 4}
E4M3 = torch.finfo(torch.float8_e4m3fn)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The artifacts that the stage makes of one model, by method, and the folder of the model."""
    root = tmp_path_factory.mktemp("made")
    source = sound(root / "sft_model" / "s" / "model")
    item = commit_by_hand(root / "sft_model" / "s", "sft_model")
    found = {}
    for method in METHODS:
        recipe = write_record(QuantizeRecipe(method=method, group_size=8 if method == "int4" else None))
        output = root / "quantized_model" / method
        assert (
            run_job(job_by_hand("quantize", output, {"quantize": recipe}, (item,), asset="quantized_model"), STAGES)
            == 0
        )
        found[method] = find(output)
    return found, source


def quantized(folder: Path) -> dict[str, torch.Tensor]:
    return {name: one for name, one in load_file(folder / "model.safetensors").items() if name.endswith("_qdata")}


@pytest.mark.parametrize("method", METHODS)
def test_each_matrix_of_the_layers_is_rounded_to_its_scale_and_all_else_stays(made, method):
    found, source = made
    folder = found[method].file("model")
    before, after = load_file(source / "model.safetensors"), load_file(folder / "model.safetensors")
    assert {name for name in before if name in after and torch.equal(before[name], after[name])} == {
        name for name in before if before[name].dim() == 1 or "layers" not in name
    }
    for name, numbers in quantized(folder).items():
        scale = after[name.replace("_qdata", "_scale")]
        whole = before[name.replace("._weight_qdata", ".weight")]
        width = numbers.shape[1] // scale.shape[1]
        error = (numbers.float() * scale.repeat_interleave(width, 1) - whole).abs()
        if method == "fp8":  # half of the last bit of each weight, or of the smallest number
            most, nearest = E4M3.max, (whole.abs() * E4M3.eps).maximum(scale * E4M3.smallest_normal * E4M3.eps) * 0.51
        else:
            most, nearest = 2 ** (BITS[method] - 1), scale.amax(1, keepdim=True) * 0.51
        assert numbers.float().abs().max() <= most and (error <= nearest).all(), name
    assert found[method].record["gates"][0] == {
        "name": "opens_as_written",
        "passed": True,
        "evidence": {"largest_difference": 0.0, "tokens": 64},
    }


def test_the_same_bytes_are_written_each_time_and_transformers_opens_them(made, tmp_path):
    found, _ = made
    job = json.loads((found["int8"].path / "job.json").read_text())
    assert job["stage"] == "quantize" and found["int8"].record["notes"]["calibration"] == []
    for method, one in found.items():
        with safe_open(one.file("model") / "model.safetensors", framework="pt") as file:
            assert json.loads(file.metadata()["tensor_names"]) == sorted(json.loads(file.metadata()["tensor_names"]))
        model = open_model(one.file("model"), dtype="auto")
        config = model.config.quantization_config.to_dict()["quant_type"]["default"]
        assert config["_type"] == FORMS[method]
        check_tried(one.file("model"))
        with pytest.raises(DataError, match=r"quantized weights \(quantization_config\) are not trained; take whole"):
            check_tried(one.file("model"), "adopted")


def test_a_weight_that_lacks_its_scale_is_refused(made, tmp_path):
    from safetensors.torch import save_file

    folder = tmp_path / "model"
    shutil.copytree(made[0]["int8"].file("model"), folder)
    path = folder / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    lost = next(name for name in tensors if name.endswith("_scale"))
    save_file({name: one for name, one in tensors.items() if name != lost}, path, metadata=metadata)
    with pytest.raises(DataError, match=f"{lost} is missing, a part of a quantized weight; copy the whole model"):
        open_model(folder, dtype="auto")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "gptq"}, "gptq is not made, because it needs llm-compressor or gptqmodel, .*; there are int8, "),
        ({"method": "gguf"}, "gguf is not made, because it is a file for other programs"),
        ({"method": "nf4"}, "nf4 is not made, because it needs bitsandbytes"),
        (
            {"method": "int5"},
            r"quantize.method: int5; did you mean .*there are none, int8, int8_activations, fp8, int4",
        ),
        ({"method": "int8", "group_size": 32}, "group_size: without effect, because the method is int8, not int4"),
        ({"method": "int4", "group_size": 1}, "group_size=1; at least 2 weights share a scale"),
        ({"max_drop": 0.1}, "max_drop: without effect, because quantize.method is none"),
        ({"method": "int8", "max_drop": 1.5}, "max_drop=1.5: must be a share from 0 to 1"),
    ],
)
def test_a_method_that_is_not_made_or_a_setting_without_effect_is_refused(given, said):
    with pytest.raises(RecipeError, match=said):
        QuantizeRecipe(**given)


def test_the_methods_are_those_with_a_form():
    assert tuple(FORMS) == METHODS


def test_groups_that_do_not_divide_a_matrix_are_refused_when_the_recipe_is_read(made):
    kitchen = load_recipe("kitchen", (SHIPPED,))
    asked = varied(kitchen, {"quantize": {"method": "int4", "group_size": 7}})
    with pytest.raises(RecipeError, match=r"quantize.group_size=7 does not divide model.width \(\d+\)"):
        for check in ASSETS[0].checks:
            check(asked)
    for check in ASSETS[0].checks:
        check(replace(asked, quantize=QuantizeRecipe(method="int4", group_size=8)))
    with pytest.raises(DataError, match=r"group_size=7 does not divide the \d+ columns of model.layers.0"):
        check_groups(made[1], QuantizeRecipe(method="int4", group_size=7))


def test_nothing_else_that_a_recipe_makes_depends_on_it(tmp_path):
    kitchen = load_recipe("kitchen", (SHIPPED,))
    plain, asked = (
        {key: cell.fingerprint for key, cell in compare(recipe, tmp_path).cells.items()}
        for recipe in (kitchen, replace(kitchen, quantize=QuantizeRecipe(method="int8", max_drop=0.1)))
    )
    assert asked.keys() - plain.keys() == {("quantized_model", "kitchen"), ("quantized_scores", "kitchen")}
    assert plain.items() <= asked.items()
