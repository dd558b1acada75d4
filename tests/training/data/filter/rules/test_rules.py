"""What holds of every rule, a new one too."""

from collections import Counter
from dataclasses import fields, replace

import pytest

from training.data.filter.personal_data import PLACEHOLDERS
from training.data.filter.rule import CommonSettings
from training.data.filter.rules import RULES, personal_data
from training.data.filter.settings import FilterRecipe

COMMON = {field.name for field in fields(CommonSettings)}
OWN = {name: {field.name for field in fields(rule.settings)} - COMMON for name, rule in RULES.items()}


def test_no_setting_and_no_column_is_of_two_rules():
    settings = Counter(setting for own in OWN.values() for setting in own)
    columns = Counter(column.name for rule in RULES.values() for column in rule.columns)
    assert set(settings.values()) == set(columns.values()) == {1}
    assert not settings.keys() & {"min_kept_fraction", "max_kept_fraction"}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_has_an_effect_on_the_scores_by_its_own_settings_and_limits_its_own_columns(name):
    rule = RULES[name]
    assert set(rule.measured_by) <= OWN[name]
    limited = {limit.column for limit in rule.limits(FilterRecipe())}
    assert limited <= {column.name for column in rule.columns if not column.is_text}


def test_a_measurement_sees_no_setting_that_the_rule_does_not_name():
    other = FilterRecipe(rules=("c4",), c4_min_sentences=1, c4_strip_lines=False).measured()
    assert other == replace(FilterRecipe(rules=("c4",)), c4_strip_lines=False)


def test_the_kinds_of_personal_data_are_those_that_are_found():
    assert tuple(PLACEHOLDERS) == personal_data.KINDS
