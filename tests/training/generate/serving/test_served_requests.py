"""Requests to a served model: what is done passes, everything else is refused by the name of its field."""

from __future__ import annotations

import pytest

from training.generate.serving.served_requests import CHAT, PLAIN, RESPONSES, Template, why_not

CHATS, BASE = Template(chats=True, tools=False), Template(chats=False, tools=False)
ASKED = {"model": "m", "messages": [{"role": "user", "content": "How hot?"}]}
TOOLS = [{"type": "function", "function": {"name": "oven", "parameters": {}}}]


@pytest.mark.parametrize(
    "more",
    [
        {"n": 1, "logprobs": False, "presence_penalty": 0, "frequency_penalty": 0.0, "tool_choice": "none"},
        {"temperature": 0.7, "top_p": 0.9, "seed": 3, "stop": ["\n"], "max_completion_tokens": 5, "user": "me"},
        {"stream": True, "stream_options": {"include_usage": True}, "response_format": {"type": "text"}},
        {"logprobs": None, "tools": None, "stop": None, "n": None},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "How hot?"}]}]},
        {
            "messages": [
                {"role": "assistant", "content": "Hot.", "refusal": None, "annotations": []},
                *ASKED["messages"],
            ]
        },
        {"max_tokens": 5, "max_completion_tokens": 5},
    ],
)
def test_what_is_done_or_asks_for_nothing_passes(more):
    assert why_not(CHAT, ASKED | more, CHATS) == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("n", True),  # 1 is not true
        ("logprobs", True),
        ("logprobs", 0),  # of the other interface: the chosen tokens' own
        ("top_logprobs", 5),
        ("response_format", {"type": "json_object"}),
        ("tools", TOOLS),
        ("functions", TOOLS),
        ("logit_bias", {"5": 100}),
        ("frequency_penalty", 0.5),
        ("presence_penalty", -0.5),
        ("reasoning_effort", "low"),
        ("generation_config", "{}"),
        ("chat_template_kwargs", {"thinks": True}),
        ("no_such_field", 1),
        ("temperature", 2.5),
        ("temperature", "hot"),
        ("top_p", float("nan")),
        ("seed", -1),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("stream", "no"),
        ("stop", ""),
        ("stop", [1]),
        ("messages", []),
        ("messages", [{"role": "cook", "content": "hot"}]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "refusal", "text": "lost"}]}]),
        ("messages", [{"role": "user", "content": [{"text": "without a type"}]}]),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"a": 1}}]}]),
        ("messages", [{"role": "user", "content": "hot", "name": "Ann"}]),
        ("messages", [{"role": "assistant", "content": "hot", "refusal": "no"}]),
    ],
)
def test_everything_else_is_refused_by_its_name(field, value):
    assert why_not(CHAT, ASKED | {field: value}, CHATS).startswith(field)


def test_two_limits_of_an_answer_are_refused():
    assert why_not(CHAT, ASKED | {"max_tokens": 2, "max_completion_tokens": 5}, CHATS).startswith("max_tokens: another")


def test_a_stop_text_is_not_done_in_a_stream_which_has_shown_it():
    assert why_not(CHAT, ASKED | {"stop": "\n", "stream": True}, CHATS).startswith("stop: not done in a stream")


def test_a_stop_text_is_not_done_where_the_server_parses_the_answer():
    assert why_not(CHAT, ASKED | {"stop": "."}, Template(chats=True, tools=True, parsed=True)).startswith("stop: not")
    assert why_not(CHAT, ASKED | {"stop": "."}, CHATS) == ""


@pytest.mark.parametrize(
    ("calls", "content", "said"),
    [
        ([{"function": {"name": "oven", "arguments": '{"heat": 3}'}}], None, ""),
        ([{"name": "oven", "arguments": {"heat": 3}}], "", ""),
        ([{"function": {"name": "oven", "arguments": "hot"}}], None, "messages[0].tool_calls: "),
        ([{"function": {"name": "oven", "arguments": "[3]"}}], None, "messages[0].tool_calls: "),
        (["oven"], None, "messages[0].tool_calls: "),
        ([{"function": {"name": "oven", "arguments": "{}"}}], "I look.", "messages[0].content: a text beside"),
    ],
)
def test_calls_of_a_message_are_read_or_refused(calls, content, said):
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    assert why_not(CHAT, ASKED | {"messages": [message]}, CHATS)[: len(said) or None] == said


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"tool_call_id": "b", "name": "oven"}, ""),
        ({"tool_call_id": "a", "name": "oven"}, "messages[1].name: 'oven' is not done"),  # of another call
        ({"name": "oven"}, "messages[1].name: 'oven' is not done"),
    ],
)
def test_a_tool_s_name_that_its_call_has_said_is_read(result, said):
    calls = [{"id": i, "function": {"name": n, "arguments": "{}"}} for i, n in (("a", "clock"), ("b", "oven"))]
    messages = [{"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": "hot", **result}]
    assert why_not(CHAT, ASKED | {"messages": messages}, CHATS)[: len(said) or None] == said


def test_tools_are_done_where_the_template_writes_them():
    writes = Template(chats=True, tools=True)
    assert why_not(CHAT, ASKED | {"tools": TOOLS, "tool_choice": "auto"}, writes) == ""
    assert why_not(CHAT, ASKED | {"tools": TOOLS, "tool_choice": "none"}, writes).startswith("tool_choice")
    flat = {"input": "How hot?", "tools": [{"type": "function", "name": "f"}]}
    assert why_not(RESPONSES, flat, writes) == ""
    for other in ({"type": "web_search"}, {"type": "custom", "name": "f"}, {"type": "function"}, "f"):
        assert why_not(RESPONSES, flat | {"tools": [*flat["tools"], other]}, writes).startswith("tools[1]: ")
        assert why_not(CHAT, ASKED | {"tools": [other]}, writes).startswith("tools[0]: ")


def test_each_address_has_its_own_fields():
    assert why_not(PLAIN, {"model": "m", "prompt": "The oven", "stop": "."}, BASE) == ""
    assert why_not(PLAIN, {"model": "m", "prompt": ["The", "oven"]}, BASE).startswith("prompt")
    assert why_not(PLAIN, {"model": "m", "prompt": "The oven", "suffix": "."}, BASE).startswith("suffix")
    assert why_not(CHAT, ASKED, BASE).startswith("this is a base model")
    assert why_not(RESPONSES, {"input": "How hot?", "instructions": "Be brief."}, CHATS) == ""
    assert why_not(RESPONSES, {"input": "How hot?", "previous_response_id": "1"}, CHATS).startswith("previous")


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA"}


@pytest.mark.parametrize(
    "given",
    [
        ["How hot?"],
        [IMAGE],
        [{"role": "user", "content": [IMAGE]}],
        [{"role": "user", "content": "?", "name": "Ann"}],
        [{"role": "user", "content": "?"}, {"type": "item_reference"}],
        {"a": 1},
    ],
)
def test_an_input_of_which_a_part_would_be_left_out_is_refused(given):
    assert why_not(RESPONSES, {"input": given}, CHATS).startswith("input")


@pytest.mark.parametrize(
    "given",
    [
        [{"role": "user", "content": "How hot?"}],
        [{"role": "user", "content": [{"type": "input_text", "text": "How hot?"}]}],
        [{"type": "input_text", "text": "How hot?"}],
        [
            {"role": "user", "content": "How hot?"},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "1", "name": "oven", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "200"},
        ],
    ],
)
def test_an_input_of_texts_and_calls_is_done(given):
    assert why_not(RESPONSES, {"input": given}, CHATS) == ""


def test_a_receipt_is_given_for_a_whole_text_by_a_server_that_has_them():
    able = Template(chats=True, tools=True, parsed=True, receipts=True)
    asked = ASKED | {"receipt": True}
    assert why_not(CHAT, asked, able) == why_not(CHAT, ASKED | {"receipt": False, "stream": True}, CHATS) == ""
    assert why_not(PLAIN, {"model": "m", "prompt": "How", "receipt": True}, able) == ""
    assert why_not(CHAT, {**asked, "stream": True}, able) == ""
    for address, more, template, problem in (
        (CHAT, {}, CHATS, "started without --receipts"),
        (CHAT, {"tools": TOOLS}, able, "not done with tools"),
        (CHAT, {"receipt": "yes"}, able, "true or false is needed, not 'yes'"),
        (RESPONSES, {}, able, "not done at /v1/responses; ask at /v1/chat/completions"),
    ):
        said = why_not(address, asked | more, template)
        assert said.startswith("receipt: ") and problem in said
