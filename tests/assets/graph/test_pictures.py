"""The pictures of artifacts, read back as what a browser would draw."""

from __future__ import annotations

import base64
import json
import os
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np

from assets.graph.pictures import picture_of

BEFORE = "data:image/svg+xml;base64,"


def drawn(asset, path, **record):
    """The texts and shapes of an artifact's picture."""
    filled = {"counts": None, "metrics": {}, "gates": [], **record, "asset": asset}
    said = picture_of(SimpleNamespace(record=filled, path=path))
    assert said.startswith(f"![{asset}]({BEFORE}") and len(said) < 12_000
    tree = ElementTree.fromstring(base64.b64decode(said.partition(BEFORE)[2][:-1]))
    texts = [one.text for one in tree.iter() if one.tag.endswith("}text")]
    return texts, [one.attrib for one in tree.iter() if one.tag.endswith(("}rect", "}path"))]


def test_a_funnel_has_a_bar_for_each_reason_of_its_length(tmp_path):
    counts = {"in": 200, "kept": 100, "dropped": {"<language>": 99}, "quarantined": {"truncated": 1}}
    texts, shapes = drawn("filtered_documents", tmp_path, counts=counts)
    assert texts == ["records", "in", "200", "<language>", "99", "truncated", "1", "kept", "100"]
    widths = [float(one["width"]) for one in shapes]
    assert widths[0] == 2 * widths[3] and widths[1] == round(widths[0] * 0.495, 1)


def test_a_pipe_in_place_of_the_losses_shows_nothing(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    record = {"asset": "base_model", "counts": None, "metrics": {}, "gates": []}
    assert picture_of(SimpleNamespace(record=record, path=tmp_path)) == ""


def test_a_training_shows_its_loss_and_shards_the_lengths_of_their_documents(tmp_path):
    rows = [{"step": step, "loss": 5.0 - step / 100} for step in range(1, 401)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    texts, (line,) = drawn("base_model", tmp_path)
    assert texts == ["training loss over steps", "4.99", "1", "1", "to step 400"] and len(line["d"].split()) == 100
    (tmp_path / "shards").mkdir()
    np.save(tmp_path / "shards" / "00000.offsets.npy", np.cumsum([0, 1, 5, 6, 7]))
    texts, _ = drawn("token_shards", tmp_path)
    assert texts[1:] == ["1 to 1", "1", "2 to 3", "0", "4 to 7", "3"]


def test_a_watched_training_shows_its_four_curves_over_tokens_each_line_with_its_colour(tmp_path):
    rows = [
        {
            "step": step,
            "tokens": 100 * step,
            "loss": 5.0 - step / 10,
            "training_loss/web": 5.0 - step / 9,
            "training_loss/books": 4.0,
            "watched_accuracy_cloze": 0.1 * step,
            "watched_bits_per_byte_cloze": 3.0,
            "held_out_bits_per_byte_web": 2.0,
            "held_out_bits_per_byte_language:de": 2.5,
            "gradient_norm/layer_0": 1.0,
        }
        for step in range(1, 5)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    record = {"asset": "base_model", "counts": None, "metrics": {}, "gates": []}
    pictures = picture_of(SimpleNamespace(record=record, path=tmp_path)).splitlines()
    trees = [ElementTree.fromstring(base64.b64decode(one.partition(BEFORE)[2][:-1])) for one in pictures]
    texts = [[one.text for one in tree.iter() if one.tag.endswith("}text")] for tree in trees]
    assert [some[:2] for some in texts] == [
        ["training loss over tokens", "all: blue, web: red, books: green"],
        ["bits per byte of held-out text over tokens", "web: blue, language:de: red"],
        ["score on watched items over tokens", "cloze: blue"],
        ["bits per byte of the right answers over tokens", "cloze: blue"],
    ]
    assert [some[-2:] for some in texts] == [["100", "to token 400"]] * 4
    kinds = [[one.get("class") for one in tree.iter() if one.tag.endswith("}path")] for tree in trees]
    assert kinds == [["line l0", "line l1", "line l2"], ["line l0", "line l1"], ["line l0"], ["line l0"]]
    assert ".l1 { stroke: #c9513b; }" in base64.b64decode(pictures[0].partition(BEFORE)[2][:-1]).decode()


def test_scores_stand_with_their_intervals_and_nothing_is_drawn_of_nothing(tmp_path):
    metrics = {"base_cloze": 0.5, "base_cloze_low": 0.25, "base_cloze_high": 0.75, "base_cloze_stated": 0.5}
    texts, shapes = drawn("model_scores", tmp_path, metrics=metrics)
    assert texts[1:] == ["base_cloze", "0.5"] and len(shapes) == 1
    metrics = {f"{name}{end}": 0.5 for name in ("win_rate", "sft_rating") for end in ("", "_low", "_high")}
    texts, _ = drawn("judged_chat", tmp_path, metrics=metrics | {"verdicts": 9.0})
    assert texts == ["share, with its interval of 95 %", "win_rate", "0.5"]  # a rating is no share
    nothing = {"counts": None, "metrics": {}, "gates": [], "asset": "model_card"}
    assert picture_of(SimpleNamespace(record=nothing, path=tmp_path)) == ""
