"""The answer of `pedigree plan` as lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from assets.time_left import in_words
from assets.trace_lines import folded
from training.pretrain.memory import gigabytes

BASES = {
    "measured": "measured",
    "earlier artifact": "as an earlier one",
    "predicted": "predicted",
    "rate of another machine": "by rate",
}


def lines_of(told: Mapping[str, Any]) -> list[str]:
    """Return the lines of an answer."""
    return [line for one in _lines(told) for line in folded(one)]


def _lines(told: Mapping[str, Any]) -> Iterator[str]:
    if told["problem"]:
        yield f"This profile cannot run the recipe: {told['problem']}"
        yield ""
    yield from _assets(told)
    yield ""
    yield from _totals(told["totals"], told["assets"])
    for one in told["trainings"]:
        yield ""
        yield from _training(one)
    for one in told["tunings"]:
        yield ""
        yield from _tuning(one)
    for one in told["scorings"]:
        yield ""
        yield from _scoring(one)


def _assets(told: Mapping[str, Any]) -> Iterator[str]:
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in told["assets"]:
        if one["seconds"] is not None:
            rows.setdefault((one["asset"], one["state"]), []).append(one)
    if rows:
        yield f"{'asset':27} {'state':9} {'time':>13} {'node-hours':>11}  from"
    for (asset, state), cells in rows.items():
        name = asset if len(cells) == 1 else f"{asset} ×{len(cells)}"
        seconds = sum(one["seconds"] for one in cells)
        hours = sum(one["node_hours"] or 0.0 for one in cells)
        yield f"{name:27} {state:9} {in_words(seconds):>13} {hours:>11,.4f}  {BASES[cells[0]['basis']]}"


def _totals(totals: Mapping[str, Any], assets: Any) -> Iterator[str]:
    if not totals["to_make"]:
        yield "Everything is made."
        return
    price = f", price {totals['price']:,.2f}" if totals["price"] else ", no price in the profile"
    gpus = f", {totals['gpu_hours']:,.2f} GPU-hours" if totals["gpu_hours"] else ""
    yield (
        f"To make: {totals['to_make']} of {len(assets)}; {in_words(totals['seconds'])} one after the other,"
        f" {totals['node_hours']:,.4f} node-hours{gpus}{price}."
    )
    if totals["not_known"]:
        missing = ", ".join(totals["not_known"])
        yield f"Not counted, because no earlier artifact, rate or kind of GPU tells their time: {missing}."


def _training(one: Mapping[str, Any]) -> Iterator[str]:
    active = one["active_parameters"]
    of_which = "" if active == one["parameters"] else f", {active:,} for a token"
    yield f"{one['asset']} [{one['partition']}]: {one['parameters']:,} parameters{of_which}"
    if one["tokens"]:
        yield (
            f"  {one['tokens']:,} tokens in {one['steps']:,} steps, {one['flops_per_token'] / 1e6:,.2f} MFLOP a token,"
            f" {one['flops']:.3g} FLOP"
        )
    else:
        yield "  tokens: auto; the training plan decides their number when it is made"
    yield from _memory(one["memory"])
    time = one["time"]
    if time["basis"]:
        yield f"  time: {in_words(time['seconds'])}, {time['step_seconds']:.3g} s a step; {time['basis']}{_took(time)}"
    else:
        yield "  time: unknown; no earlier training on such a machine, and no known kind of GPU (--gpu)"
    disk = one["disk"]
    parts = ", ".join(f"{name} {_bytes(size)}" for name, size in disk.items())
    yield f"  disk: {parts}; a checkpoint every {one['checkpoint_seconds']:g} s"
    if one["layouts"]:
        yield f"  layouts that fit {one['gpu']}s, by predicted step time:"
        yield from (f"    {_layout(fit)}" for fit in one["layouts"])
    elif one["gpu"]:
        yield f"  no layout of these processes fits {one['gpu']}s; more nodes, or a smaller model"


def _memory(memory: Mapping[str, Any]) -> Iterator[str]:
    if memory["problem"]:
        yield f"  memory: {memory['problem']}"
        return
    room = "" if memory["room_bytes"] is None else f" of {_bytes(memory['room_bytes'])}"
    verdict = {True: "", False: ": DOES NOT FIT", None: ""}[memory["fits"]]
    measured = memory["measured_peak_bytes"]
    beside = f"; the last training had {_bytes(measured)}" if measured else ""
    yield f"  memory of a process: {_bytes(memory['peak_bytes'])}{room} ({memory['of']}){verdict}{beside}"
    for moment, needed in memory["moments"].items():
        parts = ", ".join(f"{name} {_bytes(size)}" for name, size in needed.items() if size)
        yield f"    {moment}: {parts}"
    if memory["host"]:
        parts = ", ".join(f"{name} {_bytes(size)}" for name, size in memory["host"].items())
        yield f"    memory of each node: {parts}"


def _layout(fit: Mapping[str, Any]) -> str:
    return (
        f"{fit['in_words']}: {fit['step_seconds']:.3g} s a step (compute {fit['compute_seconds']:.3g},"
        f" messages {fit['message_seconds']:.3g}), {_bytes(fit['peak_bytes'])}"
    )


def _tuning(one: Mapping[str, Any]) -> Iterator[str]:
    yield _model(one)
    if one["tokens"]:
        yield (
            f"  {one['examples']:,} examples in {one['optimizer_steps']:,} steps, {one['tokens']:,} tokens,"
            f" {one['flops']:.3g} FLOP"
        )
    parts = ", ".join(f"{name} {_bytes(size)}" for name, size in one["memory"].items() if size)
    measured = one["measured_peak_bytes"]
    beside = f"; the last training had {_bytes(measured)}" if measured else ""
    yield (
        f"  memory of each of {one['processes']} processes: at least {_bytes(one['least_bytes'])} ({parts}),"
        f" and activations{beside}"
    )
    if one["steps"]:
        yield from _steps(one)
    yield from _answer_weights(one)
    yield from _time(one["time"])
    parts = ", ".join(f"{name} {_bytes(size)}" for name, size in one["disk"].items())
    yield f"  disk: {parts}; a checkpoint every {one['checkpoint_seconds']:g} s"


def _steps(one: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the steps of a post-training need, and what it needs before or after them if that is more."""
    is_more = one["beside_steps_bytes"] > one["steps_bytes"]
    parts = ", ".join(f"{name} {_bytes(size)}" for name, size in one["steps"].items())
    least = "" if one["computes_twice"] else "at least "
    yield f"  in its steps {least}{_bytes(one['steps_bytes'])}{'' if is_more else _verdict(one)} ({parts})"
    if is_more:
        parts = ", ".join(f"{name} {_bytes(size)}" for name, size in one["beside_steps"].items() if size)
        most = f"{_bytes(one['beside_steps_bytes'])}{_verdict(one)}"
        yield f"  before or after its steps {most}: {one['beside_steps_when']} ({parts})"


def _scoring(one: Mapping[str, Any]) -> Iterator[str]:
    flops = f", {one['flops']:.3g} FLOP" if one["flops"] else ""
    yield f"{_model(one)}{flops}"
    measured = one["measured_peak_bytes"]
    if one["memory"]:
        parts = ", ".join(f"{name} {_bytes(size)}" for name, size in one["memory"].items())
        yield (
            f"  memory of each of {one['processes']} processes: {_bytes(one['peak_bytes'])}{_verdict(one)}"
            f" for rows that are as long as they may be ({parts})"
        )
    elif measured:
        yield f"  memory of each of {one['processes']} processes: not predicted; the last one had {_bytes(measured)}"
    yield from _answer_weights(one)
    yield from _time(one["time"])


def _answer_weights(one: Mapping[str, Any]) -> Iterator[str]:
    if one["answer_weights"]:
        yield f"  weights while answers are drawn: {one['answer_weights']}"


def _time(time: Mapping[str, Any]) -> Iterator[str]:
    if time["seconds"] is None:
        yield f"  time: {time['basis']}{_took(time)}"
        return
    yield f"  time: {in_words(time['seconds'])}, {time['basis']}{_took(time)}"
    if len(time["parts"]) > 1:
        parts = ", ".join(f"{name} {in_words(seconds)}" for name, seconds in time["parts"].items())
        yield f"    of which {parts}"


def _took(time: Mapping[str, Any]) -> str:
    return f"; the last one took {in_words(time['measured_seconds'])}" if time["measured_seconds"] else ""


def _model(one: Mapping[str, Any]) -> str:
    return f"{one['asset']}: {one['parameters']:,} parameters, {one['flops_per_token'] / 1e6:,.2f} MFLOP a token"


def _verdict(one: Mapping[str, Any]) -> str:
    """Return of which memory a need is, and whether it does not fit; nothing if the memory is not known."""
    if one["room_bytes"] is None:
        return ""
    return f" of {_bytes(one['room_bytes'])}{': DOES NOT FIT' if one['fits'] is False else ''}"


def _bytes(size: float) -> str:
    """Return a number of bytes as MB, or as GB from one billion on."""
    return f"{gigabytes(size)} GB" if size >= 1e9 else f"{size / 1e6:,.3g} MB"
