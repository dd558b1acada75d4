"""A model family from the user's own environment: trained, exported, read back, identified, and told when it fails."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from assets.state.recipe_folders import load_recipe
from tests.training.pretrain import tiny
from training.contract.job import DataError
from training.contract.parts.outside import PartFailed
from training.contract.records import RecipeError
from training.data.sections import outside_parts, with_parts
from training.pretrain.capacity.divisible import check_degrees
from training.pretrain.models import export
from training.pretrain.models.account import parameter_shapes
from training.pretrain.models.attention import one_document
from training.pretrain.models.borrowed import BORROWED
from training.pretrain.models.config_json import read_config
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.families import family_of_type, inexpressible
from training.pretrain.models.shape import ModelConfig, ModelRecipe
from training.pretrain.parallel.degrees import Degrees

pytestmark = pytest.mark.usefixtures("examples")


def model(name: str = "granite", place: str = "granite:family", **given) -> ModelRecipe:
    return replace(tiny.MODEL, family=name, parts={name: {"from": place, **given}})


def shape(*given, **more) -> ModelConfig:
    return model(*given, **more).shape(vocab_size=tiny.VOCABULARY)


def filled(config: ModelConfig) -> Decoder:
    made = Decoder(config)
    initialise(made, zero_outputs=False, generator=torch.Generator().manual_seed(0))
    return made


TOKENS = torch.randint(tiny.VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(2))


def logits_of(made: Decoder) -> torch.Tensor:
    return made.logits(TOKENS, one_document(TOKENS, dtype=torch.float32))


def test_a_family_from_outside_is_the_class_of_transformers_and_comes_back(tmp_path):
    made, tokenizer = filled(shape()), Path(tiny.make_tokenizer(tmp_path / "tokenizer").path)
    export.write_model(made, tmp_path / "model", tokenizer=tokenizer, eos_id=tiny.EOS)
    written = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (written["model_type"], written["residual_multiplier"]) == ("granite", 0.22)
    assert "granite:family" not in json.dumps(written)
    assert tiny.compared(made, tmp_path / "model", TOKENS).is_equal
    back = export.read_model(tmp_path / "model")
    assert torch.equal(logits_of(back), logits_of(made))
    plain = filled(replace(tiny.MODEL, parts={}).shape(vocab_size=tiny.VOCABULARY))
    assert not torch.allclose(logits_of(plain), logits_of(made))
    assert made.config.parameter_count == plain.config.parameter_count
    # A weight that the layer does not have, or lacks, is an error of the files.
    weights = load_file(tmp_path / "model" / "model.safetensors")
    save_file(weights | {"model.layers.0.more": torch.ones(1)}, tmp_path / "model" / "model.safetensors")
    with pytest.raises(DataError, match=r"model\.layers\.0\.more .* granite"):
        export.read_model(tmp_path / "model")


def test_its_code_is_in_the_settings_of_the_models_that_have_it():
    assert outside_parts(tiny.MODEL) == {} and with_parts({"model": tiny.MODEL}) == {"model": tiny.MODEL}
    asked = with_parts({"model": model()})
    assert asked["parts"]["granite"]["from"] == "granite:family" and len(asked["parts"]["granite"]["code"]) > 20


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"family": "llama"}, r"model\.family: 'llama' is chosen by the shape"),
        ({"family": "olmo2"}, r"model\.family: olmo2 does not have: layers without qk_norm"),
        ({"family": "olmo3", "qk_norm": True}, r"olmo3 does not have: layers without a window; OLMo 2 has none"),
        ({"family": "mine", "qk_norm": True, "parts": {"mine": {"from": "granite:family"}}}, r"not have: qk_norm"),
    ],
)  # fmt: skip
def test_a_family_that_does_not_fit_is_refused_where_it_stands(given, said):
    with pytest.raises(RecipeError, match=said):
        replace(tiny.MODEL, **given)


def test_its_layers_are_not_divided_by_tensor_parallelism():
    for config, refused in ((tiny.MODEL.shape(vocab_size=9), False), (shape(), True)):
        given = {"phases": [tiny.PRETRAIN], "optimizer": "adamw", "processes": 2}
        if refused:
            with pytest.raises(RecipeError, match=r"tensor=2: .*'granite'"):
                check_degrees(Degrees(tensor=2), config, **given)
        else:
            check_degrees(Degrees(tensor=2), config, **given)
        check_degrees(Degrees(pipeline=2), config, **given)


FAMILY = """
from dataclasses import dataclass
from training.pretrain.models.family import Family, Layers, layer_weights
@dataclass(frozen=True, kw_only=True)
class Settings:
    share: float = 1.0
def make(config, layer):
    import torch
    from training.pretrain.models.decoder import Block
    share = config.settings_of(Settings).share
    class Mine(Block):
        def forward(self, x, table, mask):
            {forward}
    {make}
    return Mine(config, layer)
family = Family(
    class_name="Llama", settings=Settings, layers=Layers(make=make{layers}), fields=lambda config: {fields},
)
"""


def test_what_fails_in_a_family_is_told_under_its_name(write):
    def made(forward="return x * share, None", make="pass", layers="", fields="{}", **given) -> Decoder:
        body = FAMILY.format(forward=forward, make=make, layers=layers, fields=fields)
        return filled(shape("mine", f"{write(body)}:family", **given))

    assert not torch.equal(logits_of(made(share=1.0)), logits_of(made(forward="return x + 0.1 * table[0].sum(), None")))
    for wrong, said in (
        ({"make": "raise ValueError('no layer')"}, r"family mine cannot make layer 0: ValueError: no layer"),
        ({"make": "return torch.nn.Linear(2, 2)"}, r"family mine made Linear; it must be a .*decoder\.Block"),
        ({"layers": ", weights=lambda config, layer: []"}, r"family mine: layer 0 has attention.* \(\d.*none of this"),
        ({"layers": ", weights=lambda config, layer: 1 / 0"}, r"mine does not say its weights: ZeroDivisionError"),
    ):
        with pytest.raises(PartFailed, match=said):
            made(**wrong)
    for wrong, said in (
        ("raise ValueError('too deep')", r"family mine failed in layer 0: ValueError: too deep"),
        ("return x", r"family mine failed in layer 0: it returned states of \(40, 32\); they must"),
        ("return x[:, :3], None", r"family mine failed in layer 0: it returned states of \(2, 3, 32\); they must"),
    ):
        with pytest.raises(PartFailed, match=said):
            logits_of(made(forward=wrong))
    with pytest.raises(PartFailed, match=r"family mine .*config\.json: ZeroDivisionError"):
        export.hugging_face_config(made(fields="1 / 0").config, eos_id=0)
    assert inexpressible(made().config) == ()
    recomputing = made()
    recomputing.set_recompute("full")
    logits_of(recomputing).sum().backward()  # torch ends a recomputation by an error of its own
    names = {name: tuple(one.shape) for name, one in recomputing.named_parameters()}
    assert dict(parameter_shapes(recomputing.config)) == names


def test_a_registered_family_is_named_without_its_place(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    installed = tmp_path / "own-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[pedigree.families]\nstill = granite:family\n")
    registered = replace(tiny.MODEL, family="still")
    assert outside_parts(registered)["still"].place == "granite:family"
    written = export.hugging_face_config(registered.shape(vocab_size=9), eos_id=0)
    assert read_config(written) == registered.shape(vocab_size=9)
    with pytest.raises(DataError, match=r"model_type 'os:system'"):  # a file cannot name code
        read_config(written | {"model_type": "os:system"})


def test_a_family_of_an_earlier_recipe_is_none_of_a_later_one():
    kitchen = load_recipe("kitchen")
    own = replace(kitchen, model=replace(kitchen.model, qk_norm=False, family="granite", parts=model().parts))
    own_type = family_of_type("granite")
    assert own_type is not None and own_type is not BORROWED["granite"]
    replace(own, name="again")
    assert family_of_type("granite") is own_type
    load_recipe("kitchen")
    assert family_of_type("granite") is BORROWED["granite"]


def test_the_place_of_its_code_is_in_no_file_of_the_model(tmp_path):
    capped = replace(model(), logit_softcap=30.0).shape(vocab_size=tiny.VOCABULARY)
    made, tokenizer = filled(capped), Path(tiny.make_tokenizer(tmp_path / "tokenizer").path)
    export.write_model(made, tmp_path / "model", tokenizer=tokenizer, eos_id=tiny.EOS, own_layout=True)
    written = (tmp_path / "model" / "config.json").read_text()
    assert "granite:family" not in written and '"family"' in written
    assert torch.equal(logits_of(export.read_model(tmp_path / "model")), logits_of(made))
