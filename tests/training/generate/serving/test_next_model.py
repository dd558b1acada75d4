"""Which model answers a request, and the questions to the process that started the server."""

from __future__ import annotations

import json
import socket
from contextvars import copy_context
from threading import Thread

import pytest

from training.contract.job import DataError
from training.generate.serving.served import Served, ServedPlace, asking
from training.generate.serving.served_requests import Template


def served(number: int) -> Served:
    return Served(
        number=number, says=f"m/{number}", model=None, tokenizer=None, template=Template(chats=True, tools=False)
    )


def test_a_request_keeps_the_model_that_was_the_newest_when_it_began():
    place = ServedPlace(served(1))
    earlier = copy_context()
    earlier.run(place.begin)
    place.newest = served(2)
    assert earlier.run(lambda: place.own.number) == 1
    assert copy_context().run(place.begin).number == 2
    assert copy_context().run(lambda: place.own.number) == 2


def test_a_question_gets_its_answer_an_error_or_the_end_of_the_other_side():
    own, other = socket.socketpair()
    ask = asking(own.detach())

    def answers() -> None:
        with other, other.makefile("rwb") as stream:
            for told in ({"folder": "here"}, {"error": "this page was withdrawn"}):
                assert json.loads(stream.readline()) == {"serving": 1}
                stream.write(json.dumps(told).encode() + b"\n")
                stream.flush()
            stream.readline()

    thread = Thread(target=answers)
    thread.start()
    assert ask({"serving": 1}) == {"folder": "here"}
    with pytest.raises(DataError, match="this page was withdrawn"):
        ask({"serving": 1})
    with pytest.raises(DataError, match="the process that started this server has ended"):
        ask({"serving": 1})
    thread.join()
