"""What a declaration of a stage says of the libraries that decide its output."""

from __future__ import annotations

import shutil

from training.contract.stage import Stage


def installed(folder, version):
    place = folder / f"leaven-{version}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: leaven\nVersion: {version}\n\nVersion: none\n")
    return place


def test_a_library_that_is_installed_replaced_or_removed_has_its_new_version_at_once(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    stage = Stage(name="proof", version="1", module="training.proof", libraries=("leaven",))

    def version():
        return stage.library_versions()["leaven"]

    assert version() == "absent"
    first = installed(tmp_path, "1.0")
    assert version() == "1.0"
    shutil.rmtree(first)
    installed(tmp_path, "2.0")
    assert version() == "2.0"
    shutil.rmtree(tmp_path / "leaven-2.0.dist-info")
    assert version() == "absent"
