"""Print the table of bad inputs: what is said of each, with its exit code.

    python -m tests.bad_inputs [--only WORD]

Recipes, profiles and commands of tests/assets/test_bad_inputs.py are given to the real command line, files of YAML and
JSON of tests/training/test_plain_data.py to their loader, and the model folders of tests/model_folders.py to adoption.
The exit code is 1 if one of them is accepted, ends in a traceback, or gets more than one sentence.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests import model_folders
from tests.assets.test_bad_inputs import COMMANDS, PROFILES, RECIPES, write_files
from tests.training.test_plain_data import JSON, YAML
from training.adopt.folder import shape_of
from training.plain_data import json_value, yaml_value
from training.records import RecipeError

SECONDS = 120
SHOWN = 160


def main() -> None:
    """Print one line for each bad input; exit with 1 if one is answered in another way than by a sentence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a word of the inputs to try")
    only = parser.parse_args().only
    number = faults = 0
    with tempfile.TemporaryDirectory() as place:
        for name, said in answers(Path(place), only):
            number += 1
            faults += said.startswith("!")
            print(f"{name}: {said.replace(place, '')[:SHOWN]}", flush=True)
    print(f"{number} bad inputs, {faults} without a sentence")
    raise SystemExit(1 if faults else 0)


def answers(place: Path, only: str) -> Iterator[tuple[str, str]]:
    """Yield each bad input's name and what is said of it; `!` before it if that is no sentence."""
    write_files(place)
    (place / "other.yaml").write_text("extends: mine\nname: other\n")
    commands = [
        (f"recipe, {name}", text, "run {folder}/mine.yaml --until crawl_archives")
        for name, (text, _) in RECIPES.items()
    ]
    commands += [
        (f"profile, {name}", text, "run kitchen --profile {folder}/mine.yaml") for name, (text, _) in PROFILES.items()
    ]
    commands += [(f"command, {name}", "", asked) for name, (asked, _) in COMMANDS.items()]
    for name, text, asked in commands:
        if only in name:
            (place / "mine.yaml").write_text(text.replace("{folder}", str(place)))
            yield name, of_command(asked.replace("{folder}", str(place)).split(), place / "root")
    for kind, cases, read in (("YAML", YAML, yaml_value), ("JSON", JSON, json_value)):
        for name, (text, _) in cases.items():
            if only in f"{kind}, {name}":
                yield f"{kind}, {name}", of_call(lambda read=read, text=text: read(text.encode(), "file"))
    good = model_folders.sound(place / "sound")
    for case in model_folders.CASES:
        if only in f"model, {case}" and case not in model_folders.IN_WEIGHTS:
            folder = model_folders.changed(case, good, place / case.replace("/", "_"))
            yield f"model, {case}", of_call(lambda folder=folder: shape_of(str(folder)))


def of_command(arguments: list[str], root: Path) -> str:
    """Return the exit code and the sentence of a command."""
    command = [sys.executable, "-c", "from assets.cli import main; main()", *arguments, "--root", str(root)]
    alone = {name: value for name, value in os.environ.items() if name != "PEDIGREE_DATA"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=alone)
    except subprocess.TimeoutExpired:
        return f"! does not end within {SECONDS} s"
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    is_right = done.returncode == 2 and len(lines) == 1 and "Traceback" not in done.stderr
    return f"{'' if is_right else '! '}{done.returncode}, {' '.join(lines) or done.stderr[-SHOWN:]}"


def of_call(call: object) -> str:
    """Return the sentence with which a reader refuses a file."""
    assert callable(call)
    try:
        call()
    except RecipeError as error:
        return f"2, {error}"
    except Exception as error:
        return f"! {type(error).__name__}: {error}"
    return "! accepted"


if __name__ == "__main__":
    main()
