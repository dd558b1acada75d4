"""What MLflow is told of how a registered model is loaded."""

from __future__ import annotations

import json

import pytest

from resources.tracking.loadable import MLMODEL, write_loadable


@pytest.mark.parametrize(
    ("config", "flavors"),
    [
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, {"transformers", "python_function"}),
        ({"model_type": "pedigree_decoder", "shape": {}}, set()),
    ],
)
def test_a_model_that_no_class_of_transformers_runs_is_kept_and_loaded_by_nothing(tmp_path, config, flavors):
    from mlflow.models import Model

    export, folder = tmp_path / "model", tmp_path / "loadable"
    export.mkdir()
    folder.mkdir()
    written = {"config.json": config, "tokenizer.json": {}, "tokenizer_config.json": {"tokenizer_class": "Any"}}
    for name, content in written.items():
        (export / name).write_text(json.dumps(content))
    (export / "model.safetensors").write_bytes(b"weights")
    write_loadable(folder, export, run_id="0" * 32, model_id="m-0")
    found = Model.load(str(folder / MLMODEL))
    assert set(found.flavors) == flavors and (found.signature is not None) == bool(flavors)
