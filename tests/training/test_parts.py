from training.parts import parts_in


def test_a_package_has_a_part_for_each_of_its_files_by_name(tmp_path, monkeypatch):
    folder = tmp_path / "made_up_parts"
    (folder / "family").mkdir(parents=True)
    (folder / "__init__.py").write_text("from training.parts import parts_in\nPARTS = parts_in(__name__)\n")
    (folder / "family" / "__init__.py").write_text("VALUE = 3\n")
    for name, value in (("two", 2), ("one", 1)):
        (folder / f"{name}.py").write_text(f"VALUE = {value}\n")
    (folder / "page.md").write_text("no part\n")
    monkeypatch.syspath_prepend(tmp_path)
    import made_up_parts

    assert [(name, part.VALUE) for name, part in made_up_parts.PARTS.items()] == [("family", 3), ("one", 1), ("two", 2)]
    assert parts_in("made_up_parts") == made_up_parts.PARTS
