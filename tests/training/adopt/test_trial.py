"""A stranger's model folder is tried in a process of its own, and answered by one sentence."""

from __future__ import annotations

import json
import shutil
import struct

import pytest

from tests.model_folders import CASES, CONFIG, IN_WEIGHTS, changed, fields, header, sound
from training.adopt import trial
from training.adopt.folder import shape_of
from training.contract.job import DataError
from training.contract.records import RecipeError
from training.contract.sandbox.confined import why_unavailable
from training.contract.sandbox.module import run_confined

ENDLESS = ("template that loops", "template that computes without end", "template that takes all memory")
ENDLESS += ("tokenizer that makes texts a million times longer",)
ENDLESS_TOKENIZER = (ENDLESS[-1], "tokenizer.json")
IN_A_PROCESS = (
    "10⁹ layers",
    "config.json is nested 100,000 deep",
    "template that takes all memory",
)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return sound(tmp_path_factory.mktemp("sound"))


def test_a_sound_folder_is_opened(good):
    assert shape_of(str(good)).layers == 2


@pytest.mark.parametrize("case", [case for case in CASES if case not in (*ENDLESS, *IN_WEIGHTS)])
def test_a_folder_that_cannot_be_used(good, tmp_path, case):
    folder = changed(case, good, tmp_path / "changed")
    with pytest.raises((DataError, RecipeError)) as error:
        trial.try_folder(folder, "adopted")
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_masks_of_older_files_are_no_weights(tmp_path):
    mask = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    for name in ("gpt_neox.layers.0.attention.bias", "gpt_neox.layers.0.attention.dense.weight"):
        head = json.dumps({name: mask}).encode()
        (tmp_path / name).write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))
    assert trial.check_header(tmp_path / "gpt_neox.layers.0.attention.bias")
    with pytest.raises(DataError, match="has dtype U8; weights are floating-point numbers"):
        trial.check_header(tmp_path / "gpt_neox.layers.0.attention.dense.weight")


@pytest.mark.parametrize("case", IN_A_PROCESS)
def test_a_folder_is_tried_in_a_process_of_its_own(good, tmp_path, case):
    folder = changed(case, good, tmp_path / "changed")
    with pytest.raises(RecipeError, match=r"^adopt\.model: \S"):
        shape_of(str(folder))


OWN = {"vocab_size": 300, "width": 32, "layers": 2, "heads": 4, "kv_heads": 4, "mlp_width": 64, "max_length": 64}


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        ({"model_type": "pedigree_decoder", "shape": OWN}, ""),
        ({"model_type": "pedigree_decoder", "shape": OWN | {"layers": 0}}, "layers"),
        ({"model_type": "pedigree_decoder"}, "config.json has no 'shape'"),
        ({"model_type": "gizmo", "shape": OWN}, "model_type 'gizmo'"),
        ({"model_type": "gizmo", "shape": None}, "model_type 'gizmo'"),
        (
            {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 403},
            "'gpt2' is run by transformers' own class alone and cannot be a teacher",
        ),
        ({"model_type": "gpt2", "n_layer": 10**9}, "num_hidden_layers=1000000000"),
    ],
)
def test_a_teacher_is_of_a_family_or_of_the_projects_own_form(good, tmp_path, config, wrong):
    folder = shutil.copytree(good, tmp_path / "teacher")
    (folder / CONFIG).write_text(json.dumps(config), "utf-8")
    if not wrong:
        trial.try_folder(folder, "teacher")
        return
    with pytest.raises((DataError, RecipeError), match=wrong):
        trial.try_folder(folder, "teacher")


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
        {"model_type": "apertus", "hidden_act": "xielu"},
        {"model_type": "opt", "hidden_size": 64},  # wider than its embeddings
        {"model_type": "llama", "hidden_act": "tanh"},
    ],
)
def test_words_and_sizes_of_other_classes_are_for_transformers_to_judge(good, tmp_path, config):
    folder = shutil.copytree(good, tmp_path / "model")
    (folder / CONFIG).write_text(json.dumps(json.loads((good / CONFIG).read_text("utf-8")) | config), "utf-8")
    trial.try_folder(folder, "model")


def test_layers_and_heads_of_other_classes_have_other_names(good, tmp_path):
    folder = shutil.copytree(good, tmp_path / "model")
    fields(CONFIG, model_type="rwkv")(folder)

    def renamed(found):
        for name in [*found]:
            found[name.replace("model.layers", "rwkv.blocks").replace("lm_head", "head")] = found.pop(name)

    header(renamed)(folder)
    trial.try_folder(folder, "model")


def test_what_does_not_end_is_ended(good, tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "SECONDS", 4)
    folder = changed("template that loops", good, tmp_path / "changed")
    with pytest.raises(RecipeError, match=r"/chat_template\.jinja: does not open within 4 s"):
        shape_of(str(folder))


def test_who_takes_too_much_memory_is_named(good, tmp_path):
    for case, file in (("template that takes all memory", "chat_template.jinja"), ENDLESS_TOKENIZER):
        with pytest.raises(DataError) as refused:
            trial.check_tried(changed(case, good, tmp_path / file))
        assert str(refused.value).startswith(f"{tmp_path / file / file}: ") and "4 GiB" in str(refused.value)


@pytest.mark.skipif(bool(why_unavailable()), reason=why_unavailable())
def test_the_process_sees_the_folder_and_nothing_else_of_its_user(good, tmp_path):
    """`timeit` runs code that is given on its command line."""
    (tmp_path / "secret").write_text("")
    probes = {
        "the folder": f"open({str(good / CONFIG)!r})",
        "another file": f"open({str(tmp_path / 'secret')!r})",
        "users": "open('/etc/passwd')",
        "a connection": "import socket; socket.socket()",
        "a thread": "import threading; threading.Thread(target=print).start()",
        "a change": f"open({str(good / CONFIG)!r}, 'a')",
        "a process": "import os; os.fork()",
        "variables": "import os; assert not {'PATH', 'PEDIGREE_DATA'} & os.environ.keys()",
    }
    codes = {
        name: run_confined("timeit", "-n1", "-r1", code, folder=good, scratch_bytes=1 << 20, seconds=60).returncode
        for name, code in probes.items()
    }
    assert codes == dict.fromkeys(probes, 1) | {"the folder": 0, "variables": 0}


def test_links_to_files_elsewhere_are_shown_as_well(good, tmp_path):
    """The cache of a hub has a folder of links."""
    blobs = shutil.copytree(good, tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    for path in blobs.iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    trial.check_tried(tmp_path / "snapshot", "adopted")
