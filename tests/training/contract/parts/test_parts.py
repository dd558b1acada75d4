"""Parts found by listing a package, with what they declare read from their source."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from training.contract.parts.packages import declaration, load_part, part_names, parts_in


@dataclass(frozen=True, kw_only=True)
class Declared:
    size: int
    names: tuple[str, ...] = ()


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A package of three parts, two of which cannot be imported here."""
    place = tmp_path_factory.mktemp("parts")
    folder = place / "declared_parts"
    folder.mkdir()
    for name, source in {
        "__init__": "",
        "large": "import no_such_library\nLARGE = Declared(size=3, names=('a', 'b'))\n",
        "small": "from tests.training.contract.parts.test_parts import Declared\nSMALL = Declared(size=1)\n",
        "silent": "import no_such_library\n",
    }.items():
        (folder / f"{name}.py").write_text(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        yield "declared_parts"


def test_parts_are_the_modules_of_the_package(package):
    assert part_names(package) == ("large", "silent", "small")


def test_a_declaration_is_read_without_importing_the_part(package):
    assert declaration(package, "large", Declared) == Declared(size=3, names=("a", "b"))


def test_what_is_read_is_what_the_module_makes(package):
    assert declaration(package, "small", Declared).size == load_part(f"{package}.*", "small").SMALL.size == 1


def test_a_part_that_declares_nothing_is_an_error_that_names_its_file(package):
    with pytest.raises(TypeError, match=r"silent\.py: .* Declared"):
        declaration(package, "silent", Declared)


def test_a_package_has_a_part_for_each_of_its_files_by_name(tmp_path, monkeypatch):
    folder = tmp_path / "made_up_parts"
    (folder / "family").mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "from training.contract.parts.packages import parts_in\nPARTS = parts_in(__name__)\n"
    )
    (folder / "family" / "__init__.py").write_text("VALUE = 3\n")
    for name, value in (("two", 2), ("one", 1)):
        (folder / f"{name}.py").write_text(f"VALUE = {value}\n")
    (folder / "page.md").write_text("no part\n")
    monkeypatch.syspath_prepend(tmp_path)
    import made_up_parts

    assert [(name, part.VALUE) for name, part in made_up_parts.PARTS.items()] == [("family", 3), ("one", 1), ("two", 2)]
    assert parts_in("made_up_parts") == made_up_parts.PARTS
