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
    assert texts[1:] == ["4.99", "1", "1", "to step 400"] and len(line["d"].split()) == 100
    (tmp_path / "shards").mkdir()
    np.save(tmp_path / "shards" / "00000.offsets.npy", np.cumsum([0, 1, 5, 6, 7]))
    texts, _ = drawn("token_shards", tmp_path)
    assert texts[1:] == ["1 to 1", "1", "2 to 3", "0", "4 to 7", "3"]


def test_scores_stand_with_their_intervals_and_nothing_is_drawn_of_nothing(tmp_path):
    metrics = {"base_cloze": 0.5, "base_cloze_low": 0.25, "base_cloze_high": 0.75, "base_cloze_stated": 0.5}
    texts, shapes = drawn("model_scores", tmp_path, metrics=metrics)
    assert texts[1:] == ["base_cloze", "0.5"] and len(shapes) == 1
    metrics = {f"{name}{end}": 0.5 for name in ("win_rate", "sft_rating") for end in ("", "_low", "_high")}
    texts, _ = drawn("judged_chat", tmp_path, metrics=metrics | {"verdicts": 9.0})
    assert texts == ["share, with its interval of 95 %", "win_rate", "0.5"]  # a rating is no share
    nothing = {"counts": None, "metrics": {}, "gates": [], "asset": "model_card"}
    assert picture_of(SimpleNamespace(record=nothing, path=tmp_path)) == ""
