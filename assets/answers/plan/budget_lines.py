"""The answer of `pedigree plan --budget` as lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from assets.answers.plan.budget import REPETITIONS, TRAINING, WORTHWHILE_EPOCHS, Purpose
from assets.answers.plan.goodput import PUBLISHED
from training.contract.tables import folded, table_lines

UNITS = {1e12: "T", 1e9: "B", 1e6: "M", 1e3: "k"}


def lines_of(told: Mapping[str, Any], purpose: Purpose) -> list[str]:
    """Return the lines of an answer."""
    return [line for one in _lines(told, purpose) for line in folded(one)]


def _lines(told: Mapping[str, Any], purpose: Purpose) -> Iterator[str]:
    yield f"{told['flops']:.3g} operations of training{_spent(told, purpose)}."
    if purpose.money is not None:
        yield f"At the rates of published runs, all booked hours counted: {_published(purpose)}."
    yield ""
    rows = [one for one in told["rows"] if "without" not in one]
    head = ["by", "weights", "tokens", "each", "loss"]
    head[4:4] = ["epochs", "worth"] if told["unique_tokens"] else []
    cells = [_cells(one) for one in rows]
    yield from table_lines([[row[name] for name in head] for row in cells], head=head, right=set(range(1, len(head))))
    yield from _remarks(told, rows)


def _cells(one: Mapping[str, Any]) -> dict[str, str]:
    """Return a row of the table by the head of its columns."""
    return {
        "by": one["by"] + "*" * one["is_outside"],
        "weights": _short(one["parameters"]),
        "tokens": _short(one["tokens"]),
        "each": f"{one['tokens'] / one['parameters']:,.0f}",
        "epochs": f"{one['epochs'] or 0:,.1f}",
        "worth": _short(one["worth"]),
        "loss": "–" if one["loss"] is None else f"{one['loss']:.3f}",
    }


def _remarks(told: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what the table does not say of itself."""
    if any(one["is_outside"] for one in rows):
        yield "* outside the sizes that the fit was made on, where it says little"
    published, *other = dict.fromkeys(one["loss_unit"] for one in rows if one["loss_unit"])
    yield f"Losses are in {published}{''.join(f', that of the ladder in {unit}' for unit in other)}."
    yield from (f"{one['by']}, 95 %: {_intervals(one)}." for one in rows if one.get("parameters_interval"))
    yield from (f"{one['by']}: {one['without']}." for one in told["rows"] if "without" in one)
    if unique := told["unique_tokens"]:
        yield _data(unique, max(one["epochs"] for one in rows))
    for one in rows:
        if "saved" in one:
            yield (
                f"{one['by']} {_short(told['served_tokens'])} tokens: as good, and training and serving together take"
                f" {100 * one['saved']:.0f} % fewer operations; training takes"
                f" {TRAINING * one['parameters'] * one['tokens']:.3g}."
            )


def _data(unique: float, epochs: float) -> str:
    if epochs <= 1:
        return f"The {_short(unique)} tokens suffice for each of these."
    return (
        f"`worth`: tokens read once that teach as much. Up to {WORTHWHILE_EPOCHS} epochs are almost as good as new"
        f" tokens; {_short(unique)} are worth at most {_short(unique * (1 + REPETITIONS))}, however often read."
    )


def _spent(told: Mapping[str, Any], purpose: Purpose) -> str:
    if purpose.device is None:
        return ""
    assumed = " (assumed)" if purpose.gpu_hour_price is None else ""
    price = "no price" if purpose.price is None else f"price {told['price']:,.0f} at {purpose.price:g} an hour{assumed}"
    grams = "" if told["kilograms"] is None else f", {told['kilograms']:,.0f} kg of CO2"
    pue = f" at a PUE of {purpose.pue:g}"
    return (
        f": {told['gpu_hours']:,.0f} GPU-hours of {purpose.device.name} at {purpose.mfu:g} of its peak, {price},"
        f" at most {told['kwh']:,.0f} kWh of the GPUs{pue}{grams}"
    )


def _published(purpose: Purpose) -> str:
    """Return the operations that the money would buy at the rates of published runs."""
    return ", ".join(f"{purpose.operations * share / purpose.mfu:.2g} as {name}" for name, share in PUBLISHED.items())


def _short(number: float) -> str:
    """Return a number with three digits that count and its unit: 9.13 B."""
    for size, unit in UNITS.items():
        if number >= 0.9995 * size:
            return f"{number / size:.3g} {unit}" if number < 999.5 * size else f"{number / size:,.0f} {unit}"
    return f"{number:.3g}"


def _intervals(one: Mapping[str, Any]) -> str:
    (least, most), (low, high) = one["parameters_interval"], one["loss_interval"]
    return f"{_short(least)} to {_short(most)} weights, loss {low:.3f} to {high:.3f}"
