"""Receipts of answers on the small kitchen: what they name is there, and a changed field or withdrawn page is found."""

from __future__ import annotations

import copy
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assets.answers.models import receipt_check
from assets.answers.models.attest import attest
from assets.answers.models.offers import Followed, Offer
from assets.answers.models.receipt_check import checked_receipt
from assets.answers.models.receipts import DIGEST, MOST_SPANS, Receipts, opened
from assets.answers.models.serve import Questions
from assets.state.tombstones import Entry, Tombstone, append
from resources.tracking.reports import Tracking
from tests.small_kitchen import RECIPES, linked_copy, pedigree
from training.contract.artifact import digest_of
from training.contract.job import DataError
from training.data.documents import read_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def place(first, untouched, tmp_path_factory) -> Path:
    assert first.code == 0
    return linked_copy(untouched, tmp_path_factory.mktemp("receipts") / "root")


@pytest.fixture(scope="module")
def receipts(place) -> Iterator[Receipts]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEDIGREE_RECIPES", str(RECIPES))
        yield opened("kitchen-small", place, Tracking("", place, in_background=False))


@pytest.fixture(scope="module")
def answer(receipts) -> str:
    """Words of two pages in an order of their own, and what a row teaches."""
    (index, *_) = receipts.rows
    row = next(read_lines(index.inputs["instruction_data"].file("instructions.jsonl")))
    said = max((turn["content"] for turn in row["messages"]), key=len)
    shard = receipts.shards[0]
    pieces = [shard.tokens[shard.offsets[n] + 9 : shard.offsets[n] + 40].tolist() for n in (2, 5)]
    return " And then: ".join([*map(receipts.tokenizer.decode, pieces), said])


@pytest.fixture(scope="module")
def told(receipts, answer) -> dict[str, Any]:
    return receipts.receipt(answer)


def leaves(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in items:
        yield from leaves(one, (*where, name))
    if not isinstance(value, (dict, list)) or not value:
        yield where


def altered(value: Any) -> Any:
    """Return another value of the same kind."""
    if isinstance(value, (dict, list)):
        return {"other": ""} if isinstance(value, dict) else ["other"]
    return not value if isinstance(value, bool) else value + (1 if isinstance(value, (int, float)) else "x")


def with_another(receipt: dict[str, Any], where: tuple[Any, ...]) -> dict[str, Any]:
    """Return a copy of a receipt in which the value at a place is another one."""
    made = copy.deepcopy(receipt)
    *path, last = where
    within = made
    for name in path:
        within = within[name]
    within[last] = altered(within[last])
    return made


def named(where: tuple[Any, ...]) -> str:
    return "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in where).removeprefix(".")


def test_the_spans_are_the_rarest_and_their_pages_hold_them_and_were_read_in_these_steps(receipts, told, answer):
    assert told["spans"] and told["row_spans"] and len(told["spans"]) <= MOST_SPANS
    counts = sum(np.bincount(shard.tokens, minlength=4096) for shard in receipts.shards)
    for span in told["spans"]:
        assert answer[span["start"] : span["stop"]] == span["text"]
        for page in span["pages"]:
            held = receipts.page(page["shard"], page["document"])
            assert span["text"].strip() in held["text"] and (held["url"], held["id"]) == (page["url"], page["id"])
            for seen in page["seen"]:
                for step in seen["steps"]:
                    read = receipts.tracer.step(step, training=seen["training"], texts=True)["documents"]
                    assert page["id"] in [one["id"] for one in read]
        ids = receipts.tokenizer.encode(span["text"], add_special_tokens=False).ids
        if len(ids) == span["tokens"]:
            assert span["bits"] == pytest.approx(-np.log2(counts[ids] / counts.sum()).sum(), abs=0.002)
    fewer = receipt_check.replace(receipts, most_spans=1).receipt(answer)
    assert fewer["spans"] == [max(told["spans"], key=lambda span: span["bits"])]
    ids = {row["id"] for span in told["row_spans"] for row in span["rows"]}
    assert ids and all(row["models"] for span in told["row_spans"] for row in span["rows"])
    assert receipts.receipt("Zzyzx.")["spans"] == []


def test_a_changed_field_is_found_also_where_the_digest_is_made_again(receipts, told, tmp_path, monkeypatch):
    monkeypatch.setattr(receipt_check, "opened", lambda *_: receipts)
    file, tracking = tmp_path / "receipt.json", receipts.tracking

    def problems(receipt: dict[str, Any]) -> list[str]:
        file.write_text(json.dumps(receipt))
        try:
            return checked_receipt(file, "", receipts.root, tracking).problems
        except DataError as error:
            return [str(error)]

    assert problems(told) == []
    for where in leaves(told):
        changed = with_another(told, where)
        (first, *_) = problems(changed)
        assert first.startswith((DIGEST, f"{file}: is no receipt")), where
        changed[DIGEST] = digest_of({name: value for name, value in changed.items() if name != DIGEST})
        if where != (DIGEST,):
            found = problems(changed)
            name = "answer.sha256" if where == ("answer", "text") else named(where)
            assert any(one.startswith((name, f"{file}: is no receipt")) for one in found), (where, found)


def test_a_request_gets_its_receipt_from_the_version_that_answered_it(receipts, place, answer):
    def offer(model: str) -> Offer:
        found = opened(model, place, receipts.tracking)
        return Offer(folder=found.tracer.lineage.last.made.file("model"), name="m", says=model, receipts=found)

    sft = f"sft_model/{next(iter(receipts.tracer.lineage.of('sft_model'))).item.fingerprint}"
    names = iter([receipts.model, sft, sft, ""])
    followed = Followed(model="m@champion", tried=receipts.model, offer=offer, now=lambda: next(names))
    own, other = socket.socketpair()
    with own, other:
        asked = Questions(own, offer(receipts.model), followed)
        asked.stream.close()

        def says(number: int) -> str:
            told = asked._answer({"answer": answer, "by": number})
            return f"{told['model']['asset']}/{told['model']['fingerprint']}"

        first = asked._answer({"serving": 0, "problem": ""})
        assert (first["number"], first["follows"], first["receipts"]) == (1, True, True)
        assert asked._answer({"serving": 1, "problem": ""}) == {}
        second = asked._answer({"serving": 1, "problem": ""})
        assert (second["number"], second["says"]) == (2, sft) and second["folder"] != first["folder"]
        assert (says(1), says(2)) == (receipts.model, sft)  # while the server opens the second, the first answers
        assert asked._answer({"serving": 2, "problem": ""}) == asked._answer({"serving": 2, "problem": ""}) == {}
        assert (says(1), says(2)) == (receipts.model, sft)  # a request that began before is still being answered


def test_a_response_and_a_receipt_for_another_answer_or_model_are_refused(receipts, told, tmp_path, monkeypatch):
    monkeypatch.setattr(receipt_check, "opened", lambda *_: receipts)
    monkeypatch.setenv("PEDIGREE_RECIPES", str(RECIPES))
    file = tmp_path / "response.json"
    for said, number in ((told["answer"]["text"], 0), ("Something else.", 1)):
        file.write_text(json.dumps({"choices": [{"message": {"content": said}}], "receipt": told}))
        found = checked_receipt(file, "kitchen-small", receipts.root, receipts.tracking)
        assert len(found.problems) == number and all("the response says" in one for one in found.problems)
    (base,) = (node.item for node in receipts.tracer.lineage.of("base_model"))
    found = checked_receipt(file, f"base_model/{base.fingerprint}", receipts.root, receipts.tracking)
    assert "base_model/" in found.problems[-1] and "the receipt names aligned_model/" in found.problems[-1]
    surrogate = {**told, "answer": {**told["answer"], "text": "\ud800"}}
    for held in ("[1]", json.dumps(surrogate), json.dumps({**told, "takedowns": float("nan")})):
        file.write_text(held)
        with pytest.raises(DataError, match="is no receipt"):
            checked_receipt(file, "", receipts.root, receipts.tracking)


def test_whoever_has_only_the_attestation_checks_the_digests(receipts, told, tmp_path, monkeypatch):
    monkeypatch.setenv("PEDIGREE_RECIPES", str(RECIPES))
    file, own = tmp_path / "receipt.json", tmp_path / "own"
    file.write_text(json.dumps(told))
    attest("kitchen-small", own, root=receipts.root, tracking=receipts.tracking, key=None)
    nowhere = tmp_path / "nowhere"
    checked = checked_receipt(file, str(own), nowhere, receipts.tracking)
    assert checked.problems == [] and "need the root" in checked.not_checked[0]
    statement = own / "attestation.json"
    statement.write_bytes(statement.read_bytes().replace(b'"seed":', b'"seed" :'))
    found = pedigree("verify", str(own), "--receipt", str(file), root=nowhere)
    assert found.code == 1 and [one.partition(":")[0] for one in found.answer["problems"]] == ["attestation.sha256"]


def test_a_withdrawn_page_is_in_no_receipt_and_an_earlier_one_still_holds(receipts, told, place, tmp_path, monkeypatch):
    """The last test of the module: it withdraws a page."""
    monkeypatch.setenv("PEDIGREE_RECIPES", str(RECIPES))
    page = told["spans"][0]["pages"][0]
    append(
        place, Tombstone(number=1, time="2026-11-30T00:00:00+00:00", reason="asked", entries=(Entry(entry=page["id"]),))
    )
    after = receipts.current()
    again = after.receipt(told["answer"]["text"])
    assert page["url"] in json.dumps(told) and again["takedowns"] == 1 and again["withdrawn_places"] >= 1
    assert page["url"] not in json.dumps(again) and page["id"] not in json.dumps(again)
    with pytest.raises(DataError, match="was withdrawn"):
        after.page(page["shard"], page["document"])
    file = tmp_path / "receipt.json"
    monkeypatch.setattr(receipt_check, "opened", lambda *_: after)
    for receipt, number in ((told, 0), (with_another(told, ("spans", 1, "pages", 0, "warc_offset")), 2)):
        file.write_text(json.dumps(receipt))
        found = checked_receipt(file, "", place, receipts.tracking)
        assert len(found.problems) == number and " withdrawn since" in found.not_checked[0]
