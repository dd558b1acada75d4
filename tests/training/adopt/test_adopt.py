"""A model of somebody else is taken over as it is, says what is not known of it, and is refused where it cannot be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from assets.state.recipe_folders import load_recipe
from evaluation.contamination.search import _unknown
from evaluation.contamination.trained_on import data_of
from evaluation.contamination.verdict import judged
from tests.jobs import job_by_hand
from tests.own_model import write_model, write_tokenizer
from tests.training.data import chain
from tests.training.pretrain.tiny import commit, work_in
from training.adopt import adopt
from training.adopt.settings import AdoptRecipe
from training.adopt.trial import check_tried
from training.contract.job import DataError, InputArtifact, RefusedInput
from training.contract.model_files import model_digest
from training.contract.records import RecipeError, read_record, write_record
from training.data.tokens import tokenizer as tokenizer_stage
from training.data.tokens.adopted_vocabulary import read_vocabulary
from training.data.tokens.tokenizer_settings import TokenizerRecipe
from training.generate.turns import Chat, template
from training.pretrain.models.shape import ModelRecipe
from training.pretrain.settings import PretrainRecipe
from training.pretrain.stages.pretrain import first_weights, model_shape
from training.recipe.recipes import with_adopted
from training.recipe.settings.evaluation import EvaluationRecipe, TrainedOn

SPECIAL = TokenizerRecipe(snapshots=(), vocabulary=400).special_tokens
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
TEXT = "The harbour of Brenna sends wool abroad.\n"


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def given(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    tied = {"tie_word_embeddings": request.param == "qwen3", "head_dim": 8}
    write_model(folder, kind=request.param, **tied)
    return folder


def adopted(given: Path, to: Path, *, digest: str = ""):
    settings = {
        "adopt": write_record(AdoptRecipe(name="somebody/small")),
        "adopted": {"digest": digest or model_digest(given), "path": str(given)},
        "tokenizer": {"special_tokens": list(SPECIAL)},
    }
    return adopt.run(job_by_hand("adopt", to, settings), work_in(to))


@pytest.fixture(scope="module")
def made(given, tmp_path_factory) -> InputArtifact:
    folder = tmp_path_factory.mktemp("adopted")
    outcome = adopted(given, folder)
    assert outcome.gates[0].passed and outcome.gates[0].evidence["positions"] == 128
    return commit(folder, "adopted_model", list(outcome.files))


def logits(folder: Path, text: str) -> torch.Tensor:
    tokens = AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False, return_tensors="pt").input_ids
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(tokens).logits


def test_the_adopted_model_reads_and_says_what_it_did_before(given, made):
    before, after = logits(given, TEXT), logits(made.file("model"), TEXT)
    assert after.shape[:2] == before.shape[:2] and after.shape[2] == 406  # 400 tokens, 6 new ones in 3 padding rows
    assert torch.allclose(after[..., :400], before[..., :400], atol=1e-5)


def test_a_new_token_begins_as_the_mean_of_those_that_spell_it(given, made):
    rows = AutoModelForCausalLM.from_pretrained(made.file("model")).get_input_embeddings().weight
    old = AutoModelForCausalLM.from_pretrained(given).get_input_embeddings().weight
    spelled = Tokenizer.from_file(str(given / "tokenizer.json")).encode("<|user|>", add_special_tokens=False).ids
    number = AutoTokenizer.from_pretrained(made.file("model")).convert_tokens_to_ids("<|user|>")
    assert len(spelled) > 1 and torch.allclose(rows[number], old[spelled].mean(0), atol=1e-6)


def test_its_tokenizer_takes_the_chat_template_and_restores_every_text(made):
    chat = Chat.of(made.file("model"), template())
    assert len(chat.ids) == 6 and chat.decode(chat.encode_texts(["cafe\u0301 <|end|>"])[0]) == "cafe\u0301 <|end|>"
    tokenizer = AutoTokenizer.from_pretrained(made.file("model"))
    assert (tokenizer.eos_token, tokenizer.bos_token, tokenizer.pad_token) == ("</s>", "<s>", "<|pad|>")
    assert tokenizer("a").input_ids[:1] != [tokenizer.bos_token_id]


def test_the_record_says_what_is_known_what_is_not_and_what_was_changed(given, made):
    record = json.loads(made.file("provenance.json").read_text())
    assert (record["name"], record["revision"]) == ("somebody/small", "not stated")
    assert (record["licence"], record["licence_from"]) == ("apache-2.0", "README.md")
    assert {entry["path"] for entry in record["files"]} == {path.name for path in given.iterdir()}
    assert "ruled out" in record["not_known"][0] and len(record["changes"]) == 3


def test_the_padding_and_truncation_of_calls_are_left_out_of_a_tokenizer(given, tmp_path):
    folder, plain = shutil.copytree(given, tmp_path / "model"), Tokenizer.from_file(str(given / "tokenizer.json"))
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.enable_truncation(8)
    library.enable_padding(length=10**9)
    library.save(str(folder / "tokenizer.json"))
    check_tried(folder, "adopted")
    vocabulary = read_vocabulary(folder, SPECIAL)
    assert vocabulary.changes[:2] == ("the padding of texts was left out", "the truncation of texts was left out")
    encoded = Tokenizer.from_str(json.dumps(vocabulary.tokenizer)).encode(TEXT * 9, add_special_tokens=False)
    assert encoded.ids == plain.encode(TEXT * 9, add_special_tokens=False).ids


def test_a_model_that_changed_after_the_job_was_written_is_refused(given, tmp_path):
    with pytest.raises(RefusedInput, match="has changed"):
        adopted(given, tmp_path, digest="another")


def test_a_configuration_that_transformers_refuses_is_told_in_a_sentence(given, tmp_path):
    folder = Path(shutil.copytree(given, tmp_path / "model"))
    _config(folder, layer_types=["zebra", "zebra"])
    with pytest.raises(DataError, match=r"config\.json: .*layer_types|zebra"):
        adopted(folder, tmp_path / "out")


def test_a_decoder_that_differs_from_transformers_does_not_pass(given):
    from training.pretrain.models import export

    model = export.read_model(given)
    with torch.no_grad():
        model.norm *= 1.1
    assert not adopt.import_gate(model, given).passed


def test_gpt_2_as_it_was_published_has_no_prefix_but_masks_and_a_tokenizer_of_no_type(tmp_path, monkeypatch):
    monkeypatch.setattr(adopt, "POSITIONS", 4096)  # every token is among them, but no row that becomes one
    write_model(tmp_path / "given", kind="gpt2")
    path = tmp_path / "given" / "model.safetensors"
    named = {name.removeprefix("transformer."): weight for name, weight in load_file(path).items()}
    masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, 512, 512).tril() for layer in range(2)}
    save_file(named | masks, path, metadata={"format": "pt"})
    path = tmp_path / "given" / "tokenizer.json"
    data = json.loads(path.read_text())
    del data["model"]["type"]
    path.write_text(json.dumps(data))
    assert adopted(tmp_path / "given", tmp_path / "to").gates[0].passed
    written = json.loads((tmp_path / "to/model/generation_config.json").read_text())
    assert written["do_sample"] is False and "transformers_version" not in written


def test_a_file_of_pythia_in_half_precision_holds_masks_that_are_not_finite(tmp_path):
    write_model(tmp_path / "given", kind="gpt_neox")
    path = tmp_path / "given" / "model.safetensors"
    masks = {f"gpt_neox.layers.{layer}.attention.masked_bias": torch.tensor(-1e9).half() for layer in range(2)}
    save_file(load_file(path) | masks, path, metadata={"format": "pt"})
    assert adopted(tmp_path / "given", tmp_path / "to").gates[0].passed


def test_a_special_token_that_takes_the_spaces_beside_it_takes_none_afterwards(tmp_path):
    write_tokenizer(tmp_path)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    flags = dict.fromkeys(FLAGS, False) | {"rstrip": True}
    data["added_tokens"].append({"id": 400, "content": "<|user|>", **flags, "special": True})
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    vocabulary = read_vocabulary(tmp_path, SPECIAL)
    given, made = (Tokenizer.from_str(json.dumps(one)).encode("<|user|>  a") for one in (data, vocabulary.tokenizer))
    assert "<|user|>  " in given.tokens and made.tokens[0] == "<|user|>"
    assert any("without spaces beside them" in change for change in vocabulary.changes)


def test_rows_that_a_model_of_transformers_lacks_are_zero_or_the_mean_of_those_that_spell_them(tmp_path):
    write_model(tmp_path / "given", kind="phi")
    config = json.loads((tmp_path / "given" / "tokenizer.json").read_text())
    config["added_tokens"].append({"id": 410, "content": "<far>", **dict.fromkeys(FLAGS, False), "special": True})
    (tmp_path / "given" / "tokenizer.json").write_text(json.dumps(config))
    adopted(tmp_path / "given", tmp_path / "to")
    head = AutoModelForCausalLM.from_pretrained(tmp_path / "to" / "model").lm_head
    number = AutoTokenizer.from_pretrained(tmp_path / "to" / "model").convert_tokens_to_ids("<|user|>")
    spelled = Tokenizer.from_file(str(tmp_path / "given" / "tokenizer.json")).encode(
        "<|user|>", add_special_tokens=False
    )
    assert number > 410 and not head.weight[404:411].any()
    assert torch.allclose(head.weight[number], head.weight[spelled.ids].mean(0), atol=1e-6)
    assert torch.allclose(head.bias[number], head.bias[spelled.ids].mean(), atol=1e-6)


def test_nothing_names_code_in_a_model_of_transformers_that_was_adopted(tmp_path):
    write_model(tmp_path / "given", kind="phi3", pad_token_id=1)
    _config(tmp_path / "given", auto_map={"AutoModelForCausalLM": "modeling.Gizmo"})
    (tmp_path / "given" / "modeling.py").write_text("raise SystemExit('code of the folder ran')\n")
    adopted(tmp_path / "given", tmp_path / "to")
    assert "auto_map" not in json.loads((tmp_path / "to" / "model" / "config.json").read_text())


# What follows reads it


def test_a_recipe_that_adopts_it_has_a_section_model_of_its_shape(given):
    from training.pretrain.models import export

    data = with_adopted({"adopt": {"model": str(given)}}, {}, "own.yaml")
    shape = export.read_shape(given)
    assert read_record(ModelRecipe, data["model"]).shape(vocab_size=shape.vocab_size) == shape


def test_pretraining_goes_on_from_its_weights(made):
    from training.pretrain.models import export

    base = export.read_shape(made.file("model"))
    shape = model_shape(base.section(), made.file("model"), made.file("model"))
    recipe = PretrainRecipe(tokens=64, sequence_length=8, global_batch_tokens=64)
    begun = dict(first_weights(shape, recipe, made.file("model")))
    assert shape.vocab_size == 406 and torch.equal(begun["embedding"], export.read_model(made.file("model")).embedding)


def test_the_corpus_gets_the_adopted_tokenizer_untrained(made, tmp_path):
    texts = [f"{TEXT * 3}{number}" for number in range(60)]
    documents = chain.documents(tmp_path, "s", [texts], asset="decontaminated_documents")
    recipe = TokenizerRecipe(snapshots=("s",), vocabulary=400, min_bytes_per_token=1.0)
    job = job_by_hand("tokenizer", tmp_path / "t", {"tokenizer": write_record(recipe)}, [documents, made])
    work = work_in(tmp_path / "t")
    outcome = tokenizer_stage.finish(job, work, {"sample": [tokenizer_stage.choose_in_file(job, work, 0)]})
    assert (tmp_path / "t" / "tokenizer.json").read_bytes() == made.file("model/tokenizer.json").read_bytes()
    assert all(gate.passed for gate in outcome.gates), outcome.gates
    assert outcome.counts is not None and outcome.counts.balance and outcome.counts.dropped == {"not_sampled": 59}


# What is refused


@pytest.fixture
def write(tmp_path):
    def recipe(text: str) -> Path:
        path = tmp_path / "r.yaml"
        path.write_text(f"extends: base\nname: r\nsft: {{data: [{{uri: data://own/instructions.jsonl}}]}}\n{text}\n")
        return path

    return recipe


def refusal(path: Path) -> str:
    with pytest.raises(RecipeError) as refused:
        load_recipe(str(path))
    return str(refused.value)


def test_the_shape_is_the_adopted_models_and_no_other_may_be_named(write, given):
    recipe = load_recipe(str(write(f"adopt: {{model: {given}}}")))
    assert (recipe.model.width, recipe.model.layers, recipe.tokenizer.vocabulary) == (32, 2, 403)
    assert "model has 2" in refusal(write(f"adopt: {{model: {given}}}\nmodel: {{layers: 3}}"))


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ({"kind": "olmo2", "pad_token_id": 1}, ""),
        ({"max_position_embeddings": 64}, "pretrain: {sequence_length: 128}"),
        ({}, "pretrain: {objective: {kind: masked}}"),
    ],
)
def test_nothing_is_asked_of_a_pretraining_that_the_chain_does_not_have(write, tmp_path, model, more):
    write_model(tmp_path / "m", **model)
    text = f"adopt: {{model: {tmp_path / 'm'}}}\n{more}"
    load_recipe(str(write(text)))
    assert "pretrain." in refusal(write(f"{text}\nsnapshots: [{{name: s, source: jsonl, paths: [a]}}]"))


def test_a_model_of_transformers_is_not_pretrained_from_nothing_either(tmp_path):
    corpus = "snapshots: [{name: s, source: jsonl, paths: [a]}]"
    (tmp_path / "r.yaml").write_text(f"extends: base\nname: r\nmodel: {{family: gemma2}}\n{corpus}\n")
    assert "'gemma2' is run by transformers' own class alone and cannot be pretrained" in refusal(tmp_path / "r.yaml")


def test_a_text_is_not_written_by_a_model_that_the_chain_does_not_make(write):
    asked = "synthesis: {generator: long_context_model, prompts: data://own/prompts.jsonl}"
    assert "there is no long_context_model" in refusal(write(f"adopt: {{model: data://nowhere}}\n{asked}"))


def test_a_folder_that_is_not_there_is_found_missing_when_it_is_needed(write):
    assert load_recipe(str(write("adopt: {model: data://nowhere}"))).model.width == 256


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda folder: _config(folder, model_type="gizmo"),
            "model_type 'gizmo'; readable are deepseek_v3, gemma, gemma2, gemma3_text, gpt2, gpt_neox, granite, llama,",
        ),
        (lambda folder: _config(folder, attention_bias=True), "biases"),
        (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), "is a pickle"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "an adapter is no model"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "llama"}'), "config.json has no"),
    ],
)
def test_a_folder_that_cannot_be_adopted_is_refused_when_the_recipe_is_read(write, tmp_path, change, said):
    write_model(tmp_path / "m")
    change(tmp_path / "m")
    assert said in refusal(write(f"adopt: {{model: {tmp_path / 'm'}}}"))


def _config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("adopt: {model: hf://somebody/small}", "hf download NAME"),
        ("adopt: {model: kitchen@sft-epoch-1}", "`pedigree export kitchen@sft-epoch-1 FOLDER` writes one"),
        ("adopt: {name: somebody/small}\nsnapshots: [{name: s, source: jsonl, paths: [a]}]", "adopt.name: without eff"),
        ("adopt: {model: data://nowhere}\ndoremi: {tokens: 1000}", "doremi.tokens: needs a corpus"),
        (
            "adopt: {model: data://nowhere}\npretrain: {watch: {every: log, suites: [a]}}",
            "pretrain.watch.suites: needs a corpus",
        ),
        ("description: none", "names must be present"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(write, text, said):
    assert said in refusal(write(text))


def test_a_model_of_which_nothing_is_made_is_refused(tmp_path):
    (tmp_path / "r.yaml").write_text("extends: base\nname: r\nadopt: {model: data://nowhere}\n")
    assert "nothing is made" in refusal(tmp_path / "r.yaml")


def test_a_tokenizer_that_changes_texts_is_refused(tmp_path):
    write_model(tmp_path)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(data | {"normalizer": {"type": "Lowercase"}}))
    with pytest.raises(DataError, match="byte-level BPE"):
        read_vocabulary(tmp_path, SPECIAL)


def test_what_it_was_trained_on_is_unknown_by_name_and_tolerated_by_name_alone(write, tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "instructions.jsonl").write_text("{}\n")
    monkeypatch.setenv("PEDIGREE_DATA", str(tmp_path))
    recipe = load_recipe(str(write("adopt: {model: data://nowhere}")))
    assert data_of(recipe) == {"adopted_model": ("sft_model",), "instruction_data": ("sft_model",)}
    trained_on = write_record(TrainedOn(data=tuple(data_of(recipe))))
    job = job_by_hand("contamination", settings={"trained_on": trained_on})
    unknown = _unknown(job, [{"asset": "instruction_data"}])
    assert unknown == {"adopted_model": "adopted_model: what it was trained on before it was adopted is not known"}
    report = {"suites": {}, "unknown": unknown, "unscanned_documents": 0}
    verdicts = [
        judged(report, EvaluationRecipe(suites=(), tolerate_unknown=names))["verdict"]
        for names in ((), ("teacher",), ("adopted_model",))
    ]
    assert verdicts == ["unknown", "unknown", "tolerated"]
