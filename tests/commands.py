"""Commands given in the process of a test."""

from __future__ import annotations

from pathlib import Path

import pytest


def printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    from assets.commands.cli import main

    monkeypatch.setattr("sys.argv", ["pedigree", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr()
    return ended.value.code or 0, output.out, output.err


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The same with the last line of standard output alone."""
    code, output, errors = printed(monkeypatch, capsys, *arguments)
    return code, (output.strip().splitlines() or [""])[-1], errors


def profile_file(tmp_path: Path, text: str) -> str:
    """A profile of this text."""
    (tmp_path / "profile.yaml").write_text(f"name: p\n{text}")
    return str(tmp_path / "profile.yaml")
