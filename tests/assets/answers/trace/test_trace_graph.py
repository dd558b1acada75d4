"""The picture of a lineage: a box for each artifact, none on another, and every line from left to right."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

from assets.answers.trace.picture import HEIGHT, MOST_CHARACTERS, WIDTH, columns_of, lines_of, picture_of, places_of

SVG = "{http://www.w3.org/2000/svg}"


def node(asset: str, *inputs: str, guards: tuple[str, ...] = (), problem: str = "", partition: str = "a@one"):
    made = {"recipe": "a", "stage_version": "1", "cost": {"cpu_seconds": 1.5}}
    return {**made, "asset": asset, "partition": partition, "inputs": inputs, "guards": guards, "problem": problem}


NODES = {
    "m" * 32: node("base_model", "s1", "s2", "p", guards=("g", "s1"), partition="a"),
    "p": node("training_plan", "s1", "s2", partition="a"),
    "g": node("data_contamination", "d1", partition="a"),
    "s1": node("token_shards", "d1"),
    "s2": node("token_shards", "absent", partition="a@<b>&two"),
    "d1": node("extracted_documents", problem="it is not under the root any more"),
}
TOLD = {"nodes": NODES, "artifact": "m" * 32, "model": "recipe a & <script>alert(1)</script>"}


def test_every_artifact_has_a_box_and_no_box_lies_on_another():
    places = places_of(lines_of(NODES, columns_of(NODES, TOLD["artifact"])))
    boxes = {item.name: place for item, place in places.items() if not item.passes}
    assert boxes.keys() == NODES.keys() and len(places) > len(boxes)
    for (x0, y0), (x1, y1) in itertools.combinations(boxes.values(), 2):
        assert abs(x0 - x1) >= WIDTH or abs(y0 - y1) >= HEIGHT
    for name, one in NODES.items():
        assert all(boxes[below][0] + WIDTH <= boxes[name][0] for below in one["inputs"] if below in boxes)


def test_lines_pass_between_the_boxes_of_a_column():
    picture = ET.fromstring(picture_of(TOLD))
    boxes = [[float(box.get(name)) for name in ("x", "y")] for box in picture.iter(f"{SVG}rect")]
    passing = [line for line in picture.iter(f"{SVG}path") if "H" in line.get("d")]
    assert len(passing) == 3  # d1 to g beside the shards; s1 and s2 to the model beside the plan
    for line in passing:
        *_, x, y = line.get("d").partition("H")[0].split()
        assert all(float(x) != left or not top <= float(y) <= top + HEIGHT for left, top in boxes)


def test_every_text_fits_into_its_box():
    long = {"m": node("a_very_long_name_of_an_asset_from_a_package", partition=f"recipe@{'snapshot-' * 9}")}
    picture = ET.fromstring(picture_of({**TOLD, "nodes": long, "artifact": "m"}))
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert len(texts) == 3 and all(len(text) <= MOST_CHARACTERS for text in texts)
    assert "a_very_long_name_of_an_asset_from_a_package" in picture.find(f"{SVG}g").find(f"{SVG}title").text


def test_the_picture_is_well_formed_and_shows_text_as_text():
    picture = ET.fromstring(picture_of(TOLD))
    boxes = picture.findall(f"{SVG}g")
    assert [box.find(f"{SVG}text").text for box in boxes] == [one["asset"] for one in NODES.values()]
    classes = [box.find(f"{SVG}rect").get("class") for box in boxes]
    assert classes == ["asked", None, None, None, None, "problem"]
    lines = picture.findall(f"{SVG}path")
    assert len(lines) == 8 + 3 and [line.get("class") for line in lines].count("guard") == 1
    assert not list(picture.iter(f"{SVG}script")) and "<b>&two" in "".join(picture.itertext())


def test_a_circle_ends():
    circle = {"a": node("base_model", "b"), "b": node("token_shards", "a")}
    assert picture_of({**TOLD, "nodes": circle, "artifact": "a"}).count("<rect") == 2
