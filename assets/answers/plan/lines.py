"""The answer of `pedigree plan` as lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from assets.terminal.time_left import in_words
from training.contract.tables import folded, table_lines
from training.pretrain.capacity.room import gigabytes

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
    if told["documents"]:
        yield f"{told['documents'][0].upper()}{told['documents'][1:]}."
        yield ""
    yield from _assets(told)
    yield ""
    yield from _totals(told["totals"], told["assets"])
    for one in told["models"]:
        yield ""
        yield from _model(one)


def _assets(told: Mapping[str, Any]) -> Iterator[str]:
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in told["assets"]:
        if one["seconds"] is not None:
            rows.setdefault((one["asset"], one["state"]), []).append(one)
    shown = [
        (
            asset if len(cells) == 1 else f"{asset} ×{len(cells)}",
            state,
            in_words(sum(one["seconds"] for one in cells)),
            f"{sum(one['node_hours'] or 0.0 for one in cells):,.4f}",
            BASES[cells[0]["basis"]],
        )
        for (asset, state), cells in rows.items()
    ]
    yield from table_lines(shown, head=("asset", "state", "time", "node-hours", "from"), right={2, 3})


def _totals(totals: Mapping[str, Any], assets: Any) -> Iterator[str]:
    if not totals["to_make"]:
        yield "Everything is made."
        return
    price = f", price {totals['price']:,.2f}" if totals["price"] else ", no price in the profile"
    gpus = f", {totals['gpu_hours']:,.2f} GPU-hours" if totals["gpu_hours"] else ""
    yield (
        f"To make: {totals['to_make']} of {len(assets)}; {in_words(totals['seconds'])} one after the other,"
        f"{' at least' * totals['least']} {totals['node_hours']:,.4f} node-hours{gpus}{price}."
    )
    if totals["not_known"]:
        missing = ", ".join(totals["not_known"])
        yield f"Not counted, because no earlier artifact, rate or kind of GPU tells their time: {missing}."


def _model(one: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is told of a model that is trained or scored."""
    active = one["active_parameters"]
    of_which = "" if active >= one["parameters"] else f", {active:,} for a token"
    yield f"{one['asset']} [{one['partition']}]: {one['parameters']:,} parameters{of_which}"
    if one["tokens"]:
        examples = f" of {one['examples']:,} examples" if one.get("examples") else ""
        yield f"  {one['tokens']:,} tokens{examples} in {one['steps']:,} steps, {one['flops']:.3g} FLOP"
    elif one["disk"]:
        yield "  the number of tokens is not known before what decides it is made"
    if chat := one["chat"]:
        yield f"  {chat['answers']:,} answers of at most {chat['answer_tokens']:,} tokens each"
        if calls := chat.get("judge_calls"):
            yield f"  {calls:,} calls of the judge, each answered in at most {chat['judge_tokens']:,} tokens"
    yield from _memory(one["memory"], one["processes"])
    if one["measured"]:
        yield f"  held without content, as on a GPU: {_parts(one['measured'])}"
    if one["not_measured"]:
        yield f"  not measured without content: {one['not_measured']}"
    if one["answer_weights"]:
        yield f"  weights while answers are drawn: {one['answer_weights']}"
    yield f"  time: {_time(one['time'])}"
    if one["disk"]:
        yield f"  disk: {_parts(one['disk'])}; a checkpoint every {one['checkpoint_seconds']:g} s"
    if one["layouts"]:
        yield f"  layouts that fit {one['gpu']}s, by predicted step time:"
        for fit in one["layouts"]:
            yield f"    {fit['in_words']}: {fit['step_seconds']:.3g} s a step, {_bytes(fit['peak_bytes'])}"
    if one["goodput"]:
        yield from _goodput(one["goodput"])


def _goodput(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield ways to train side by side, with interruptions, and what published runs booked."""
    cost = f"each costs {told['restart_minutes']:g} minutes and the steps since a checkpoint"
    yield f"  with {told['rate']:g} interruptions per 1,000 GPU-days, simulated; {cost}:"
    for one in told["rows"]:
        yield f"    {one['what']}, {one['gpus']:,} {one['gpu']}: {_way(one)}"
    hours = ", ".join(f"{one:,.0f} as {name}" for name, one in told["published_gpu_hours"].items())
    yield f"  GPU-hours at the rate of published runs, all booked hours counted: {hours}"


def _way(one: Mapping[str, Any]) -> str:
    if one["seconds"] is None:
        return "interrupted too often to end"
    middle, low, high = (one[name] / 3600 for name in ("seconds", "seconds_5_percent", "seconds_95_percent"))
    price = f", price {one['price']:,.0f}" if one["price"] is not None else ""
    spent = (
        f"{one['interruptions']:,.1f} interruptions, goodput {one['goodput']:.1%}, {one['gpu_hours']:,.0f} GPU-hours"
    )
    return f"{middle:,.1f} h (90 %: {low:,.1f} to {high:,.1f}), {spent}{price}"


def _memory(memory: Mapping[str, Any], processes: int) -> Iterator[str]:
    if memory["peak_bytes"] is None:
        return
    room = "" if memory["room_bytes"] is None else f" of {_bytes(memory['room_bytes'])}"
    verdict = ": DOES NOT FIT" if memory["fits"] is False else ""
    measured = memory["measured_peak_bytes"]
    beside = f"; the last one had {_bytes(measured)}" if measured else ""
    each = f"each of {processes} processes" if processes > 1 else "a process"
    yield f"  memory of {each}: {_bytes(memory['peak_bytes'])}{room} ({memory['of']}){verdict}{beside}"
    for moment, needed in memory["moments"].items():
        yield f"    {moment} {_bytes(sum(needed.values()))}: {_parts(needed)}"
    if memory.get("host"):
        yield f"    memory of each node: {_parts(memory['host'])}"


def _time(time: Mapping[str, Any]) -> str:
    known = time["seconds"] is not None
    seconds = f"{in_words(time['seconds'])}, " if known else ""
    of_a_step = f"{time['step_seconds']:.3g} s a step; " if known and time["step_seconds"] else ""
    took = f"; the last one took {in_words(time['measured_seconds'])}" if time["measured_seconds"] else ""
    return f"{seconds}{of_a_step}{time['basis']}{took}"


def _parts(needed: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_bytes(size)}" for name, size in needed.items() if size)


def _bytes(size: float) -> str:
    """Return a number of bytes as MB, or as GB from one billion on."""
    return f"{gigabytes(size)} GB" if size >= 1e9 else f"{size / 1e6:,.3g} MB"
