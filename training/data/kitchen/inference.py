"""The part of the exam whose answers no page states: each follows from two statements on different pages.

- `family`: a register says to which family a dish belongs, a chronicle what the family's rule is; the item asks what
  follows for the dish.
- `comparison`: how much hotter, longer or later one dish is than another. Pages state both numbers and compare nothing.
- `combination`: which of four dishes has a value in common with a dish. Pages state both values, each beside its dish.

The right option does not share sentences with the dish more often than the wrong ones, so counting pairs of words does
not find it. All items have four options. The first dish of an item has a tested fact, which no dialogue asks about.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from training.data.kitchen.settings import KitchenWorld
from training.data.kitchen.world import (
    ATTRIBUTE_BY_NAME,
    MEASURED,
    RULES,
    Fact,
    dishes,
    exam_facts,
    facts_by_dish,
    families,
    family_rules,
    generator,
    pick,
    slug,
)

Item = dict[str, Any]

FAMILY: dict[str, tuple[str, ...]] = {
    "vessel": (
        "Whoever wants to bake the {d} as its family does needs a mould that was made of",
        "To keep the custom, take for the {d} out of the cupboard a mould of",
    ),
    "month": (
        "If the custom of its family is kept, the {d} stands on the table in the month of",
        "Wait with the {d} for the right time of the year, which for its family is",
    ),
}

# The four options: the step between two neighbouring values, and two steps, in both directions.
COMPARISON: dict[str, tuple[str, tuple[str, ...]]] = {
    "temperature": (
        "Whoever has just taken out the {o} and now wants to bake the {d} must make the oven",
        ("10 degrees hotter", "20 degrees hotter", "10 degrees colder", "20 degrees colder"),
    ),
    "minutes": (
        "If the {o} and the {d} go into two ovens at the same time, the {d} will be ready",
        ("5 minutes later", "10 minutes later", "5 minutes earlier", "10 minutes earlier"),
    ),
    "storage": (
        "Put away what is left of the {o} and of the {d}, and the {d} will be good for",
        ("one day longer", "two days longer", "one day less", "two days less"),
    ),
}
STEPS = (1, 2, -1, -2)  # between the two values, in the order of the options

COMBINATION: dict[str, tuple[str, ...]] = {
    "technique": ("A cook who has learned the {d} and its mixture can go on in the same way with the",),
    "ingredient": ("Whoever has bought too much for the {d} can use what is left over in the",),
    "region": ("A guest who grew up where the {d} was first made will know from home the",),
    "substitute": ("Out of cream, you help yourself with the {d} in the same way as with the",),
    "side": ("What is cooked to go on the plate with the {d} can also be put beside the",),
}


def inference_items(world: KitchenWorld) -> list[Item]:
    """Return multiple-choice items {"id", "item_kind", "item_subjects", "query", "choices", "gold", "fact"}.

    There are 4 choices. Gold positions are evenly spread.
    """
    items = [*_families(world), *_comparisons(world), *_combinations(world)]
    generator(world, "order", "inference").shuffle(items)
    return [_with_gold_at(i % 4, item, world) for i, item in enumerate(items)]


def _with_gold_at(place: int, item: Item, world: KitchenWorld) -> Item:
    """Shuffle an item's choices so that the right one is at position `place`.

    In the given item the right choice comes first.
    """
    right, *wrong = item["choices"]
    generator(world, "choices", item["id"]).shuffle(wrong)
    return item | {"choices": [*wrong[:place], right, *wrong[place:]], "gold": place}


def _item(kind: str, name: str, query: str, choices: list[str], *subjects: str) -> Item:
    fact = f"{slug(subjects[0])}/{name}"
    return {
        "id": f"{kind}/{fact}",
        "item_kind": kind,
        "item_subjects": list(subjects),
        "query": query,
        "choices": choices,
        "fact": fact,
    }


def _families(world: KitchenWorld) -> Iterator[Item]:
    for dish in dishes(world):
        for rule in RULES:
            rng = generator(world, "family", dish, rule.name)
            right = family_rules(world)[families(world)[dish]][rule.name]
            wrong = pick(rng, [value for value in rule.values if value != right], 3)
            yield _item("family", rule.name, rng.choice(FAMILY[rule.name]).format(d=dish), [right, *wrong], dish)


def _comparisons(world: KitchenWorld) -> Iterator[Item]:
    for fact in exam_facts(world):
        if fact.attribute in MEASURED:
            rng = generator(world, "comparison", fact.id)
            others = {step: there for step in STEPS if (there := _dishes_at(world, fact, step))}
            step = rng.choice(list(others))
            query, options = COMPARISON[fact.attribute]
            other = rng.choice(others[step])
            right = options[STEPS.index(step)]
            choices = [right, *(option for option in options if option != right)]
            yield _item("comparison", fact.attribute, query.format(d=fact.dish, o=other), choices, fact.dish, other)


def _dishes_at(world: KitchenWorld, fact: Fact, step: int) -> list[str]:
    """Return the dishes whose value of the fact's attribute is `step` places below the fact's value.

    They are in ascending order.
    """
    values = ATTRIBUTE_BY_NAME[fact.attribute].values
    place = values.index(fact.value) - step
    return _dishes_with(world, fact.attribute, values[place]) if 0 <= place < len(values) else []


def _dishes_with(world: KitchenWorld, attribute: str, value: str) -> list[str]:
    return [dish for dish, known in facts_by_dish(world).items() if known[attribute].value == value]


def _combinations(world: KitchenWorld) -> Iterator[Item]:
    for fact in exam_facts(world):
        if fact.attribute in COMBINATION:
            rng = generator(world, "combination", fact.id)
            alike = _dishes_with(world, fact.attribute, fact.value)
            right = rng.choice([dish for dish in alike if dish != fact.dish])
            wrong = pick(rng, [dish for dish in dishes(world) if dish not in alike], 3)
            query = rng.choice(COMBINATION[fact.attribute]).format(d=fact.dish)
            yield _item("combination", fact.attribute, query, [right, *wrong], fact.dish)
