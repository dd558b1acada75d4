"""What holds of every rule, a new one too."""

import subprocess
import sys
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.training.data import chain
from tests.training.data.filter.pages import GOOD, no_models
from training.contract.identity.closure import Code
from training.data.dedup.settings import DedupRecipe
from training.data.filter.personal_data import PLACEHOLDERS
from training.data.filter.rule import KEPT, Column, CommonSettings, Rule
from training.data.filter.rules import RULES, personal_data
from training.data.filter.settings import FilterRecipe

CHECKOUT = Path(__file__).parents[5]
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


def test_reading_the_section_imports_all_rules_where_there_is_no_library():
    script = "import sys, training.data.filter.settings; print(*sys.modules)"
    command = [sys.executable, "-S", "-c", script]  # -S: nothing that is installed can be imported
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert {f"training.data.filter.rules.{name}" for name in RULES} <= set(ran.stdout.split())


def test_what_rules_share_to_measure_is_no_part_of_deciding():
    shared = {f"training.data.{name}" for name in ("words.table", "words.language", "quality.quality")}
    code = Code()
    assert shared <= set(code.closure("training.data.filter.score"))
    assert not shared & set(code.closure("training.data.filter.filter"))


def test_a_rule_names_the_column_that_its_documents_get(tmp_path, monkeypatch):
    """Nothing else has to know of the column, neither here nor in the stages that pass documents on."""

    def measure(settings, tools):
        def measured(page):
            page.columns["tone"] = 0.5
            page.columns["loud.letters"] = sum(map(str.isupper, page.text))
            return KEPT

        return measured

    columns = (Column("tone", on_document=True), Column("loud.letters"))
    monkeypatch.setitem(RULES, "loud", Rule(settings=CommonSettings, columns=columns, measure=measure))
    recipe, settings = FilterRecipe(rules=("loud",)), {"dedup": DedupRecipe()}
    documents = chain.documents(tmp_path, "s1", [[GOOD]], asset="extracted_documents")
    scores = chain.run(
        tmp_path, "score", "document_scores", "tiny@s1", {"filter": recipe.measured()}, [documents, no_models(tmp_path)]
    )
    kept = chain.run(tmp_path, "filter", "filtered_documents", "tiny@s1", {"filter": recipe}, [documents, scores])
    signed = chain.run(tmp_path, "sign", "document_signatures", "tiny@s1", settings, [kept])
    passed_on = chain.run(tmp_path, "dedup", "deduplicated_documents", "tiny@s1", settings, [kept, signed])
    for made in (kept, passed_on):
        assert [(row["tone"], "loud.letters" in row) for row in chain.rows(made)] == [(0.5, False)]
