"""What is added to the events of a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from training.contract.job import DataError
from training.generate.serving.answers import _events
from training.generate.serving.metrics import Metrics

HEAD = {"id": "1", "object": "chat.completion.chunk", "created": 2, "model": "m"}
NAMED = {"system_fingerprint": "m/3"}


def event(**more: Any) -> str:
    return f"data: {json.dumps({**HEAD, **more})}\n\n"


def told(*parts: str, receipt: Any = None, metrics: Metrics | None = None) -> list[dict[str, Any]]:
    async def given() -> AsyncIterator[str]:
        for part in parts:
            yield part

    async def all_of() -> str:
        return "".join([one async for one in _events(given(), NAMED, receipt, metrics or Metrics())])

    return [json.loads(line.removeprefix("data: ")) for line in asyncio.run(all_of()).split("\n\n") if line]


def words(*texts: str) -> str:
    return "".join(event(choices=[{"delta": {"content": text}}]) for text in texts)


async def of_text(answer: str) -> dict[str, Any]:
    return {"answer": answer}


def test_every_event_names_the_model_and_the_last_one_has_the_receipt_of_all_texts():
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    metrics = Metrics()
    *given, last = told(
        words("The ", "oven"), event(choices=[{"delta": {}}], usage=usage), receipt=of_text, metrics=metrics
    )
    assert [one["choices"][0]["delta"].get("content") for one in given] == ["The ", "oven", None]
    assert last == {**HEAD, **NAMED, "choices": [], "receipt": {"answer": "The oven"}}
    assert all(one["system_fingerprint"] == "m/3" for one in given)
    counted = [metrics.registry.get_sample_value(f"pedigree_{name}_tokens_total") for name in ("prompt", "generated")]
    assert counted == [3, 2]
    assert len(told(words("The ", "oven"))) == 2


@pytest.mark.parametrize("error", ['"no such token"', 'a "word" in quotation marks"'])
def test_an_error_ends_a_stream_without_a_receipt(error):
    given = told(words("The "), f'data: {{"error": {error}}}\n\n', receipt=of_text)
    assert len(given) == 2 and "receipt" not in given[-1] and "o" in given[-1]["error"]


def test_a_text_with_other_ends_of_lines_stays_whole():
    text = "one\u2028two\x85three\x0cfour"
    part = f"data: {json.dumps({**HEAD, 'choices': [{'delta': {'content': text}}]}, ensure_ascii=False)}\n\n"
    (given, last) = told(part, receipt=of_text)
    assert given["choices"][0]["delta"]["content"] == last["receipt"]["answer"] == text


def test_a_receipt_that_cannot_be_made_is_an_error():
    async def gone(_: str) -> dict[str, Any]:
        raise DataError("the text index is gone")

    assert told(words("The "), receipt=gone)[-1]["error"] == "the text index is gone"
