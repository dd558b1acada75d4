"""What programs may ask of a served model: what the server does not do is refused by name, never left out.

`transformers serve` accepts every field of OpenAI's interface and answers as if most of them were not there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CHAT, PLAIN, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
RECEIPT = "receipt"  # a field of our own: true asks for the answer's receipt
BY_ALL = {"model", "stream", "temperature", "top_p", "seed"}
DONE = {
    CHAT: BY_ALL | {"messages", "max_tokens", "max_completion_tokens", "stop", "tools"},
    PLAIN: BY_ALL | {"prompt", "max_tokens", "stop"},
    RESPONSES: BY_ALL | {"input", "instructions", "max_output_tokens", "tools"},
}
LABELS = {"user", "metadata", "safety_identifier", "prompt_cache_key"}  # for the accounts of a service
# The values of other fields that ask for what is done anyway. Usage stands in each answer and at the end of a stream.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "text": ({"format": {"type": "text"}}, {}),
    "modalities": (["text"],),
    "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True,),
    "stream_options": ({"include_usage": True}, {"include_usage": False}, {}),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "background": (False,),
    "truncation": ("disabled",),
    "include": ([],),
}
LIMITS = {  # lowest, highest, and whether the value is a whole number
    "temperature": (0, 2, False),
    "top_p": (0, 1, False),
    "seed": (0, 2**32 - 1, True),
    "max_tokens": (1, math.inf, True),
    "max_completion_tokens": (1, math.inf, True),
    "max_output_tokens": (1, math.inf, True),
}
ROLES = ("system", "developer", "user", "assistant", "tool")
TEXTS = ("text", "input_text", "output_text")  # types of the parts of a message that are texts
# Former reasoning is left out, as templates do; the last three say nothing to a model.
MESSAGE = {"role", "content", "tool_calls", "tool_call_id", "reasoning_content", "type", "id", "status"}
PART = {"type", "text"}
WITHOUT_ROLE = ("function_call", "function_call_output", "reasoning")  # items between the messages of an input


@dataclass(frozen=True)
class Template:
    """What the chat template of the served model writes."""

    chats: bool  # False: a base model without a template
    tools: bool
    parsed: bool = False  # the server makes messages of the answer's tokens, not of its text
    receipts: bool = False  # the server was started with them


def why_not(address: str, body: Mapping[str, Any], template: Template) -> str:
    """Return why a request to an address is refused, with the name of the field; empty if everything in it is done."""
    if address != PLAIN and not template.chats:
        return f"this is a base model without a chat template: it completes texts, at {PLAIN}"
    asked = {name: value for name, value in body.items() if value is not None and name not in LABELS}
    if RECEIPT in asked and (problem := _no_receipt(address, asked, template)):
        return f"{RECEIPT}: {problem}"
    for name, value in asked.items():
        if name == RECEIPT:
            continue
        if name not in DONE[address] and not _is_neutral(name, value):
            return f"{name}: {value!r:.80} is not done by this server"
        if name in LIMITS and (problem := _out_of_limits(value, *LIMITS[name])):
            return f"{name}: {problem}, not {value!r:.80}"
    if asked.get("stream") not in (None, False, True):
        return f"stream: true or false is needed, not {asked['stream']!r:.80}"
    if len({asked[name] for name in ("max_tokens", "max_completion_tokens") if name in asked}) > 1:
        return "max_tokens: another number than max_completion_tokens is not done by this server"
    if "stop" in asked and (problem := _wrong_stop(asked["stop"], is_shown=asked.get("stream") or template.parsed)):
        return f"stop: {problem}"
    if asked.get("tools") and asked.get("tool_choice") == "none":
        return "tool_choice: 'none' is not done beside tools; leave the tools out"
    if asked.get("tools") and not template.tools:
        return "tools: the chat template of this model writes no tools, so it would not see them"
    if asked.get("tools") and (problem := _no_functions(asked["tools"])):
        return problem
    return _wrong_messages(asked.get("messages")) if address == CHAT else _wrong_text(asked, address)


def _no_receipt(address: str, asked: Mapping[str, Any], template: Template) -> str:
    """Return why a request gets no receipt; "" if it does, or if it says that it wants none."""
    if not isinstance(asked[RECEIPT], bool):
        return f"true or false is needed, not {asked[RECEIPT]!r:.80}"
    if not asked[RECEIPT]:
        return ""
    if not template.receipts:
        return "this server was started without --receipts"
    if address == RESPONSES:
        return f"not done at {RESPONSES}; ask at {CHAT}"
    return "not done with tools, only for an answer that is a text" if asked.get("tools") else ""


def _no_functions(tools: Any) -> str:
    """Return which tool is no function with a name, such as a search that OpenAI's own servers do; "" if none."""
    for number, tool in enumerate(tools if isinstance(tools, list) else [tools]):
        is_function = isinstance(tool, dict) and tool.get("type") == "function"
        function = tool.get("function", tool) if is_function else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return f"tools[{number}]: {tool!r:.80} is not done by this server: tools are functions with a name"
    return ""


def _is_neutral(name: str, value: Any) -> bool:
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in NEUTRAL.get(name, ()))


def _out_of_limits(value: Any, lowest: float, highest: float, is_whole: bool) -> str:
    kind = "a whole number" if is_whole else "a number"
    is_number = isinstance(value, int if is_whole else (int, float)) and not isinstance(value, bool)
    if is_number and lowest <= value <= highest:
        return ""
    return f"{kind} from {lowest}" + (f" to {highest}" if highest < math.inf else "") + " is needed"


def _wrong_stop(stop: Any, *, is_shown: Any) -> str:
    texts = stop if isinstance(stop, list) else [stop]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        return f"texts that are not empty are needed, not {stop!r:.80}"
    if not is_shown:
        return ""
    return "not done in a stream, or for a model whose answers the server parses; both would show the stop text"


def _wrong_messages(messages: Any) -> str:
    if not isinstance(messages, list) or not messages:
        return "messages: a list of at least one message is needed"
    called: dict[str, Any] = {}  # names of functions by the id of their call
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            return f"messages[{number}]: a role is needed, one of {', '.join(ROLES)}"
        says_again = message["role"] == "tool" and message.get("name") == called.get(str(message.get("tool_call_id")))
        if problem := _left_out({**message, "name": None} if says_again else message):
            return f"messages[{number}].{problem}"
        content = message.get("content")
        if not isinstance(content, (str, list)) and not message.get("tool_calls"):
            return f"messages[{number}].content: a text is needed"
        if message.get("tool_calls") and (problem := _wrong_calls(message["tool_calls"], content)):
            return f"messages[{number}].{problem}"
        for call in message.get("tool_calls") or ():
            called[str(call.get("id"))] = (call.get("function") or call).get("name")
    return ""


def _wrong_calls(calls: Any, content: Any) -> str:
    """Return which call of a message the server cannot read, or that it would leave out the text beside them."""
    if content:
        return "content: a text beside tool_calls is not done by this server"
    try:
        for call in calls:
            arguments = (call.get("function") or call)["arguments"]
            if not isinstance(json.loads(arguments) if isinstance(arguments, str) else arguments, dict):
                raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        return f"tool_calls: {calls!r:.80} are no calls with arguments as a JSON object"
    return ""


def _left_out(message: Mapping[str, Any]) -> str:
    """Return what of a message the server would leave out or fail at, with the name of the field; empty if nothing."""
    for name, value in message.items():
        if value and name not in MESSAGE:
            return f"{name}: {value!r:.80} is not done by this server"
    return (problem := _other_than_text(message.get("content"))) and f"content: {problem}"


def _other_than_text(content: Any) -> str:
    """Return which part of a message's content is more than a text, or none; empty if none is."""
    for part in content if isinstance(content, list) else []:
        is_text = isinstance(part, dict) and part.get("type") in TEXTS and isinstance(part.get("text"), str)
        if not is_text or any(value for name, value in part.items() if name not in PART):
            return f"{part!r:.80} is no plain text, and this model reads nothing else"
    return ""


def _wrong_text(asked: Mapping[str, Any], address: str) -> str:
    name = "prompt" if address == PLAIN else "input"
    given = asked.get(name)
    if not given or not isinstance(given, str if address == PLAIN else (str, list)):
        return f"{name}: a text is needed"
    items = given if isinstance(given, list) else []
    if items and isinstance(items[0], dict) and "role" not in items[0]:  # the parts of one message
        return (problem := _other_than_text(items)) and f"{name}: {problem}"
    for number, item in enumerate(items):
        if not isinstance(item, dict) or ("role" not in item and item.get("type") not in WITHOUT_ROLE):
            return f"{name}[{number}]: {item!r:.80} is not done by this server"
        if "role" in item and (problem := _left_out(item)):
            return f"{name}[{number}].{problem}"
    return ""
