from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest

from resources.compute.size import Size
from resources.profile import Profile
from training.contract.records import (
    RecipeError,
    Uri,
    check_above_zero,
    differences,
    differing_from_defaults,
    read_record,
    uris_in,
    varied,
    write_record,
)
from training.pretrain.models.shape import RotaryScaling
from training.pretrain.stages.long_context_settings import LongContextRecipe
from training.recipe.recipe import Recipe
from training.recipe.settings.evaluation import TrainedOn


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    words: int = 5
    share: float = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    name: str
    kind: Literal["a", "b"] = "a"
    inner: Inner = field(default_factory=Inner)
    parts: tuple[Inner, ...] = ()
    weights: dict[str, float] = field(default_factory=dict)
    way: Literal["in", "out"] | None = None
    days: tuple[int, ...] | Literal["all"] = ()


FULL = {"name": "x", "kind": "b", "inner": {"words": 8}, "parts": [{"share": 1}], "weights": {"web": 2}}


def test_what_is_written_reads_back_equal():
    record = read_record(Outer, FULL)
    assert read_record(Outer, write_record(record)) == record
    assert record.parts[0].share == 1.0 and isinstance(record.weights["web"], float)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"name": "x", "nmae": 1},
            "nmae: unknown field; did you mean `name`? known fields here: days, inner, kind, name, parts, way, weights",
        ),
        ({"name": "x", "inner": {"word": 1}}, "inner.word: unknown field"),
        ({"name": "x", "parts": [{"words": "many"}]}, "parts[0].words: expected int, got 'many'"),
        ({"name": "x", "kind": "c"}, "kind: 'c' is not one of 'a', 'b'"),
        ({"name": "x", "inner": {"words": True}}, "inner.words: expected int, got True"),
        ({"name": "x", "way": "inn"}, "way: 'inn' is not one of 'in', 'out'; did you mean `in`?"),
        ({"name": "x", "way": 3}, "way: expected 'in' or 'out', got 3"),
        ({"name": "x", "days": "some"}, "days: expected a list or 'all', got 'some'"),
        ({}, "name: missing"),
    ],
)
def test_a_mistake_is_said_with_its_place_and_what_would_be_right(data, said):
    with pytest.raises(RecipeError) as error:
        read_record(Outer, data)
    assert said in str(error.value)


def test_every_mistake_is_said_at_once_each_with_its_place():
    data = {
        "kind": "c",
        "inner": {"word": 1, "share": "much"},
        "parts": [{"words": "many"}, {}, {"shares": 1}],
        "weights": {"web": "a", "books": 1, "code": "b"},
        "colour": 1,
    }
    with pytest.raises(RecipeError) as error:
        read_record(Outer, data)
    known = "known fields here: share, words"
    assert sorted(error.value.problems) == [
        "colour: unknown field; known fields here: days, inner, kind, name, parts, way, weights",
        "inner.share: expected float, got 'much'",
        f"inner.word: unknown field; did you mean `words`? {known}",
        "kind: 'c' is not one of 'a', 'b'",
        "name: missing; it has no default",
        "parts[0].words: expected int, got 'many'",
        f"parts[2].shares: unknown field; did you mean `share`? {known}",
        "weights.code: expected float, got 'b'",
        "weights.web: expected float, got 'a'",
    ]
    assert str(error.value.in_file("own.yaml")).splitlines()[:2] == [
        "own.yaml: 9 mistakes",
        "  kind: 'c' is not one of 'a', 'b'",
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    parts: tuple[Inner, ...] = ()
    named: dict[str, Inner] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.parts:
            raise RecipeError(f"parts: at least one, got {self.parts}")


@pytest.mark.parametrize("data", [{"parts": [{"words": "many"}]}, {"parts": [{}], "named": {"a": {"words": "many"}}}])
def test_a_record_is_not_checked_without_a_part_that_was_refused(data):
    with pytest.raises(RecipeError) as error:
        read_record(Listed, data)
    (said,) = error.value.problems
    assert said.endswith(".words: expected int, got 'many'")


def test_a_number_that_yaml_reads_as_text_is_a_number():
    assert read_record(Inner, {"share": "3e-4"}).share == 3e-4


def test_a_field_at_its_default_changes_no_identity():
    assert differing_from_defaults(read_record(Outer, {"name": "x", "inner": {"words": 5}})) == {"name": "x"}
    assert differing_from_defaults(read_record(Outer, {"name": "x", "inner": {"words": 6}})) == {
        "name": "x",
        "inner": {"words": 6},
    }


def test_differences_name_the_field_and_both_values():
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2, "d": 4}}) == [
        "a.b: 1 → 3",
        "a.d: (not set) → 4",
    ]


def test_a_varied_record_differs_where_a_change_says_so_and_checks_itself_again():
    old = LongContextRecipe(tokens=64, sequence_length=8, global_batch_tokens=16, rope_scaling=RotaryScaling())
    new = varied(old, {"seed": 1, "rope_scaling": {"kind": "linear", "factor": 2.0}})
    assert new == replace(old, seed=1, rope_scaling=RotaryScaling(kind="linear", factor=2.0))
    assert varied(new, {"rope_scaling": RotaryScaling(), "seed": 0}) == old and varied(old, {}) == old
    with pytest.raises(RecipeError, match="1 without a kind"):
        varied(old, {"rope_scaling": {"factor": 2.0}})
    with pytest.raises(RecipeError, match="sequence_length=0"):
        varied(old, {"sequence_length": 0})


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    text: Uri = ""
    texts: tuple[Uri, ...] = ()
    words: tuple[str, ...] = ()
    weights: dict[str, float] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    more: tuple[Inner, ...] = ()
    label: str | None = None
    limit: int | None = None
    most: int | None = 9

    def __post_init__(self) -> None:
        check_above_zero(self, "", "limit", "most")


def test_what_may_be_absent_is_null_and_neither_an_empty_text_nor_zero():
    assert read_record(Named, {"limit": None}) == Named() and differing_from_defaults(Named()) == {}
    assert differing_from_defaults(read_record(Named, {"most": None})) == {"most": None}
    with pytest.raises(RecipeError, match="label: an empty"):
        read_record(Named, {"label": ""})
    with pytest.raises(RecipeError) as error:
        read_record(Named, {"limit": 0, "most": -1})
    assert error.value.problems == ("limit=0; above 0, or null, is right", "most=-1; above 0, or null, is right")


def records_in(hint):
    """Every dataclass in a type, and in the types of their fields."""
    if dataclasses.is_dataclass(hint):
        yield hint
        for inner in typing.get_type_hints(hint).values():
            yield from records_in(inner)
    for inner in typing.get_args(hint):
        yield from records_in(inner)


def test_no_setting_means_nothing_by_an_empty_text():
    empty = set()
    for record in {*records_in(Recipe), *records_in(Size), *records_in(Profile), *records_in(TrainedOn)}:
        empty |= {f"{record.__name__}.{field.name}" for field in dataclasses.fields(record) if field.default == ""}
    assert empty == {"Recipe.description", "Profile.description"}


def test_the_uris_of_a_record_are_what_its_fields_of_that_type_hold():
    one = Named(text="a://1", texts=("b://2", "c://3"), words=("d://4",), weights={"e://5": 1.0})
    assert list(uris_in(one)) == ["a://1", "b://2", "c://3"]
    assert list(uris_in({"x": {"data": (one, Named(text="f://6"))}, "y": [5, "g://7", Named()]})) == [
        *uris_in(one),
        "f://6",
    ]


@dataclass(frozen=True)
class Kept:
    numbers: tuple[int, ...] = ()


@dataclass
class Changing:
    numbers: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Both:
    kept: Kept
    changing: Changing


def test_equal_records_are_one_unless_they_may_change():
    one, other = (read_record(Both, {"kept": {"numbers": [1]}, "changing": {"numbers": [2]}}) for _ in range(2))
    assert one == other and one.kept is other.kept and one.changing is not other.changing
    one.changing.numbers.append(3)
    again = read_record(Both, {"kept": {"numbers": [4]}, "changing": {"numbers": [2]}})
    assert again.changing == other.changing != one.changing and again.kept == Kept((4,))
