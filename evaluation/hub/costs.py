"""What a model cost, for its card and its bill of materials: time, price, measured energy and emissions.

It differs between runs of one recipe, so it is written at an export, and no stage computes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.hub.sourced import CardTable, Cell, Origin, total
from evaluation.report.truth_comparison import Record, of_asset
from training.recipe.settings.provider import ProviderRecipe

JOULES_PER_KWH = 3.6e6


def cost_table(records: Sequence[Record]) -> CardTable:
    """Return what was spent on each asset. It differs between runs, so it is written at an export, not on the card."""
    names = {"cpu_seconds": "processor seconds", "node_hours": "node-hours", "price": "price"}
    rows: list[list[Cell]] = []
    for asset in dict.fromkeys(record["asset"] for _, record in records):
        origins = [Origin(folder, record) for folder, record in of_asset(records, asset)]
        spent = [
            [one.value_at("cost", name) for one in origins if one.record["cost"].get(name) is not None]
            for name in names
        ]
        used = energy_of([one.record for one in origins], among=[record for _, record in records])
        energy = origins[0].value_at("cost", of=lambda _, said=used.shown: said) if used else "absent"
        rows.append([asset, *(total(numbers) if numbers else "unknown" for numbers in spent), energy])
    return CardTable(
        "Cost",
        "What making the artifacts behind the model took. The price is in the unit of the profile. Energy is what"
        " meters counted, at most so much where a machine did two things at once; it is absent where one attempt was"
        " not metered. An attempt whose end nobody saw counts to its last sign of life.",
        ("asset", *names.values(), "energy"),
        rows,
    )


@dataclass(frozen=True, slots=True)
class Energy:
    """Measured energy, and the counters that measured it.

    It `is_shared` if an attempt went on beside another one on the same machine, whose meters count all of it for both.
    """

    kwh: float
    counters: tuple[str, ...]
    is_shared: bool = False

    @property
    def shown(self) -> str:
        """Return the energy with its unit and counters, as a text."""
        return f"{'at most ' * self.is_shared}{self.kwh:.4g} kWh ({', '.join(self.counters)})"


def energy_of(
    records: Sequence[Mapping[str, Any]], *, among: Sequence[Mapping[str, Any]] | None = None
) -> Energy | None:
    """Return the energy that was measured for all of these records, or None if one of them has none.

    A node's meter counts its processors and GPUs too, so they are added only where the node has no meter. `among` are
    all records whose attempts may have gone on at the same time; without them, these.
    """
    joules, counters = 0.0, set[str]()
    for record in records:
        noted = record["cost"].get("energy", {})
        own = {name: one["joules"] for name, one in noted.items() if one["state"] == "measured"}
        own = {"nodes": own["nodes"]} if "nodes" in own else own
        if not own:
            return None
        joules += sum(own.values())
        counters |= own.keys()
    attempts = {attempt for record in records for _, _, _, attempt in _spans(record)}
    is_shared = bool(attempts & _at_once(among or records))
    return Energy(joules / JOULES_PER_KWH, tuple(sorted(counters)), is_shared) if counters else None


def _at_once(records: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the attempts that had a machine while another one had it. Machines without a name count as one."""
    found, last, until, machine = set[str](), "", 0.0, None
    for name, begin, end, attempt in sorted({span for record in records for span in _spans(record)}):
        if name == machine and begin < until:
            found |= {last, attempt}
        if name != machine or end > until:
            machine, last, until = name, attempt, end
    return found


def _spans(record: Mapping[str, Any]) -> Iterator[tuple[str, float, float, str]]:
    """Yield machine, begin, end and name of each attempt whose times are known."""
    for one in record["cost"].get("attempts", ()):
        if None not in (one["begin"], one["end"]):
            for name in one.get("names", "").split(","):
                yield name, one["begin"], one["end"], one["attempt"]


def emissions_of(provider: ProviderRecipe, records: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the emissions of measured energy for a hub's card; None if energy or the grams per kWh are not known."""
    energy, grams = energy_of(records), provider.grams_per_kwh
    if energy is None or grams is None:
        return None
    source = f"measured energy, {energy.shown}, at {grams:g} g/kWh as the provider states"
    return {"emissions": round(energy.kwh * grams, 3), "source": source}
