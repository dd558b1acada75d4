"""Filter rules from the user's own environment, among them filters and formatters of datatrove."""

import pytest

from tests.outside import EXAMPLES, writer
from tests.training.data import chain
from tests.training.data.filter.pages import GERMAN, GOOD, INSULTS, judge
from training.contract.job import DataError
from training.contract.parts.code import PARTS, check_parts, code_digest, identified
from training.contract.parts.outside import OutsidePart, PartFailed, find_part
from training.contract.records import RecipeError, read_record
from training.data.filter.judge import make_rules
from training.data.filter.outside_rules import outside_rule
from training.data.filter.score import score
from training.data.filter.settings import FilterRecipe


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a module of the user's, which defines `rule`; return its name."""
    head = "from training.data.filter.rule import *\nfrom training.data.filter.rule import numbers\n"
    written = writer(tmp_path, monkeypatch)
    return lambda body: written(head + body)


def recipe_of(place: str, *rules: str, **given) -> FilterRecipe:
    data = {"rules": [*rules, "mine"], "parts": {"mine": {"from": place, **given}}}
    return read_record(FilterRecipe, data, where="filter")


def row(text: str) -> dict:
    return chain.document("s1", "a.warc.gz", 0, text, language="en", language_score=1.0)


def judged(recipe: FilterRecipe, text: str):
    page, reason = judge(row(text), make_rules(recipe, None))
    return page.text, reason


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return "long_lines:rule"


def test_a_rule_of_the_users_drops_under_its_own_name(example):
    recipe = recipe_of(example, "gopher_quality", most=100.0)
    assert judged(recipe, GOOD)[1] == ""
    assert judged(recipe, GOOD.replace("\n", " "))[1] == "mine:too_long"
    scored = score(row(GOOD), make_rules(recipe, None), recipe)
    assert scored["long_lines.mean"] == pytest.approx(len(GOOD.replace("\n", "")) / 6)


def test_a_limit_of_such_a_rule_changes_no_measurement(example):
    assert recipe_of(example, most=100.0).measured() == recipe_of(example, most=200.0).measured()


BLOCKS = {
    "C4QualityFilter": {"min_num_sentences": 2},
    "C4ParagraphFilter": {},
    "FineWebQualityFilter": {"short_line_thr": 0.2},
    "GopherQualityFilter": {"min_doc_words": 30},
    "GopherRepetitionFilter": {},
    "RegexFilter": {"regex_exp": "idiot"},
    "SamplerFilter": {"rate": 0.5, "seed": 7},
    "URLFilter": {"banned_subwords": ["test"], "use_integrated_lists": False},
    "UnigramLogProbFilter": None,  # downloads its frequencies
    "FTFYFormatter": {},
    "PIIFormatter": {"email_replacement": "EMAIL"},
    "SymbolLinesFormatter": {"symbols_to_remove": ["|"], "replace_char": "-"},
}
MADE = [
    *(GOOD, GERMAN, GOOD + INSULTS, "", "Too short.", GOOD + "\n| | |\ntext\n| |", GOOD * 3, "schÃ¶n " + GOOD),
    *("write to a.b@cook.example now\n" + GOOD, "{ } " + GOOD, "\n".join(word for word in GOOD.split())),
]


@pytest.mark.parametrize("name", [name for name, given in BLOCKS.items() if given is not None])
def test_a_block_of_datatrove_decides_as_in_its_own_pipeline(name):
    from datatrove.data import Document
    from datatrove.pipeline import filters, formatters

    module = filters if hasattr(filters, name) else formatters
    given = BLOCKS[name]
    documents = [Document(text=text, id=str(n), metadata={"url": row(text)["url"]}) for n, text in enumerate(MADE)]
    theirs = {document.id: document.text for document in getattr(module, name)(**given).run(iter(documents))}
    recipe = recipe_of(f"{module.__name__}:{name}", **given)
    rules, edit = make_rules(recipe, None), recipe.in_order()["mine"].edit
    ours = {str(n): page.text for n, text in enumerate(MADE) for page, why in [judge(row(text), rules)] if not why}
    assert ours == theirs
    assert len(theirs) < len(MADE) or any(text != theirs[str(n)] for n, text in enumerate(MADE)), "tries nothing"
    edits = edit and edit(recipe.settings_of("mine"))  # what the report shows of a formatter
    assert {str(n): edits(text) for n, text in enumerate(MADE)} == theirs if module is formatters else edits is None


def test_a_reason_of_datatrove_is_kept():
    recipe = recipe_of("datatrove.pipeline.filters:GopherQualityFilter")
    assert judged(recipe, "Too short.")[1] == "mine:gopher_short_doc"


@pytest.mark.parametrize(
    ("place", "given", "problem"),
    [
        ("long_lines:none", {}, "cannot be imported: AttributeError"),
        ("long_lines:mean_line", {}, "is a function; a rule is"),
        ("long_lines:rule", {"most": "many"}, r"filter.parts.mine.most: expected"),
        ("long_lines:rule", {"languages": ["de"]}, "filter.parts.mine.languages"),
        ("datatrove.pipeline.filters:RegexFilter", {}, "filter.parts.mine.regex_exp: missing"),
        ("datatrove.pipeline.filters:RegexFilter", {"regex": "a"}, "filter.parts.mine.regex: not an argument"),
        ("datatrove.pipeline.filters:RegexFilter", {"exclusion_writer": "x"}, "exclusion_writer: not an argument"),
    ],
)
def test_a_wrong_part_is_refused_when_the_recipe_is_read(example, place, given, problem):
    with pytest.raises(RecipeError, match=problem):
        recipe_of(place, **given)


def test_two_rules_with_one_column_are_refused(example):
    recipe = {"rules": ["a", "b"], "parts": {name: {"from": "long_lines:rule"} for name in "ab"}}
    with pytest.raises(RecipeError, match=r"'b' .*'long_lines.mean'"):
        read_record(FilterRecipe, recipe, where="filter")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("rule = Rule(settings=CommonSettings, measure=lambda s, t: lambda page: 1 / 0)", "ZeroDivisionError"),
        ("rule = Rule(settings=CommonSettings, measure=lambda s, t: lambda page: None)", "gave None"),
        ("rule = Rule(settings=CommonSettings, measure=lambda s, t: 1 / 0)", "cannot be prepared: ZeroDivisionError"),
        ("rule = Rule(settings=CommonSettings, decide=lambda s: lambda page: True)", "gave True"),
        (
            "rule = Rule(settings=CommonSettings, columns=(Column('x.y'),), measure=lambda s, t: lambda page: '')",
            "None in column x.y",
        ),
        (
            "rule = Rule(settings=CommonSettings, columns=(Column('x.y'),),"
            " measure=lambda s, t: numbers('x', lambda page: {'y': float('nan')}))",
            "nan in column x.y",
        ),
        (
            "def measure(page):\n    page.text = None\n    return ''\n"
            "rule = Rule(settings=CommonSettings, measure=lambda s, t: measure)",
            "NoneType",
        ),
    ],
)
def test_what_a_rule_does_wrong_is_told_under_its_name(write, body, problem):
    place = f"{write(body)}:rule"
    with pytest.raises(PartFailed, match=rf"filter rule mine \({place}\).*{problem}"):
        judged(recipe_of(place), GOOD)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (
            "class S(CommonSettings):\n    least: int\nrule = Rule(settings=dataclass(frozen=True)(S))",
            "'least' .*default",
        ),
        (
            "rule = Rule(settings=CommonSettings, columns=(Column('id'),))",
            "column 'id'",
        ),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused(write, body, problem):
    with pytest.raises(RecipeError, match=problem):
        outside_rule("mine", f"{write('from dataclasses import dataclass' + chr(10) + body)}:rule", ())


# Registered by a package


@pytest.fixture
def package(tmp_path, monkeypatch, write):
    """An installed package, as pip leaves it, that registers the rule `strict` by an entry point."""
    name = write(
        "from own_words import LEAST\nrule = Rule(settings=CommonSettings, measure=lambda s, t: lambda page: '')"
    )
    (tmp_path / "own_words.py").write_text("LEAST = 3\n")
    installed = tmp_path / "own-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[pedigree.rules]\nstrict = {name}:rule\n")
    return name


def test_a_registered_rule_is_named_without_its_place(package):
    recipe = read_record(FilterRecipe, {"rules": ["strict"]}, where="filter")
    assert recipe.outside_parts() == {"strict": OutsidePart(f"{package}:rule")}
    assert judged(recipe, GOOD)[1] == ""


def test_a_name_registered_twice_is_refused(package, tmp_path):
    other = tmp_path / "other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[pedigree.rules]\nstrict = long_lines:rule\n")
    with pytest.raises(RecipeError, match=r"'strict' .* twice"):
        find_part("rules", "strict")


# Identity


def test_the_code_of_a_part_identifies_it(write, tmp_path):
    part = OutsidePart(f"{write('MOST = 3')}:rule")
    path = tmp_path / f"{part.module}.py"
    first = code_digest(part)
    path.write_text("# a comment\n" + path.read_text())
    assert code_digest(part) == first
    path.write_text(path.read_text().replace("MOST = 3", "MOST = 4"))
    assert code_digest(part) != first


def test_a_module_beside_it_counts_and_another_package_does_not(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, source in {
        "pack/a.py": "from pack import b\nimport other\n",
        "pack/b.py": "X = 1\n",
        "other.py": "Y = 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    (tmp_path / "pack" / "__init__.py").write_text("")
    first = code_digest(OutsidePart("pack.a:rule"))
    (tmp_path / "other.py").write_text("Y = 2\n")
    assert code_digest(OutsidePart("pack.a:rule")) == first
    (tmp_path / "pack" / "b.py").write_text("X = 2\n")
    assert code_digest(OutsidePart("pack.a:rule")) != first


def test_a_job_is_refused_where_the_part_has_other_code(write, tmp_path):
    part = OutsidePart(f"{write('MOST = 3')}:rule")
    settings = {PARTS: identified({"mine": part})}
    check_parts(settings)
    path = tmp_path / f"{part.module}.py"
    path.write_text(path.read_text() + "MORE = 1\n")
    with pytest.raises(DataError, match=rf"mine \({part.place}\): .* digest"):
        check_parts(settings)
