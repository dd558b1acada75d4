"""Print the table of bad inputs: what is said of each, with its exit code.

    python -m tests.bad_inputs [--only WORD]

Recipes, profiles and commands of test_bad_inputs.py are given to the real command line, files of YAML and
JSON of tests/training/contract/user_input/test_plain_data.py to their loader, the model folders of
tests/model_folders.py to adoption, and a recipe and a profile with one bad value, for every field
(tests/bad_values.py), to their readers. Each input but those of fields has a process of its own, forked from one that
has imported everything, so that an input that ends its process or never ends is counted too. The exit code is 1 if an
input is answered in another way than by one sentence.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from assets.commands.cli import main as command_line
from resources.profile import Profile, ProfileError, load_profile
from tests import bad_values, model_folders
from tests.assets.commands.test_bad_inputs import COMMANDS, PROFILES, RECIPES, write_files
from tests.training.contract.user_input.test_plain_data import JSON, YAML
from training.adopt.folder import shape_of
from training.contract.process.exit_codes import BAD_INPUT, FAILED, OK
from training.contract.records import RecipeError
from training.contract.user_input.plain_data import json_value, yaml_value

SECONDS = 120
SHOWN = 160
SENTENCE, UNNAMED, ACCEPTED = "one sentence before the start", "a sentence without the field", "wrongly accepted"
EXCEPTION, ENDLESS = "exception", "endless"
KINDS = (SENTENCE, UNNAMED, ACCEPTED, EXCEPTION, ENDLESS)


def main() -> None:
    """Print one line for each bad input; exit with 1 if one is answered in another way than by a sentence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a word of the inputs to try")
    only = parser.parse_args().only
    counts, started = Counter[str](), time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        for name, call in inputs(Path(place)):
            if only in name:
                kind, said = answer_here(name, call) if name.startswith("field") else answer(call, Path(place, "said"))
                counts[kind] += 1
                print(
                    f"{'' if kind == SENTENCE else f'! {kind}: '}{name}: {said.replace(place, '')[:SHOWN]}", flush=True
                )
    told = ", ".join(f"{kind} {counts[kind]}" for kind in KINDS)
    print(f"{counts.total()} bad inputs in {time.monotonic() - started:.0f} s: {told}")
    raise SystemExit(0 if counts.total() == counts[SENTENCE] else 1)


def inputs(place: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each bad input's name and what reads it."""
    write_files(place)
    (place / "other.yaml").write_text("extends: mine\nname: other\n")
    commands = [
        *(
            (f"recipe, {name}", text, "run {folder}/mine.yaml --until crawl_archives")
            for name, (text, _) in RECIPES.items()
        ),
        *(
            (f"profile, {name}", text, "run kitchen --profile {folder}/mine.yaml")
            for name, (text, _) in PROFILES.items()
        ),
        *((f"command, {name}", "", asked) for name, (asked, _) in COMMANDS.items()),
    ]
    for name, text, asked in commands:
        arguments = f"{asked} --root {{folder}}/root".replace("{folder}", str(place)).split()
        yield name, lambda text=text, arguments=arguments: command(place / "mine.yaml", text, arguments)
    for kind, cases, read in (("YAML", YAML, yaml_value), ("JSON", JSON, json_value)):
        for name, (text, _) in cases.items():
            yield f"{kind}, {name}", lambda read=read, text=text: read(text.encode(), "file")
    for name, call in bad_values.of_recipes():
        yield f"field of a recipe, {name}", call
    for name, content in bad_values.of_profiles():
        yield f"field of a profile, {name}", lambda content=content: profile_of(place / "mine.yaml", content)
    good = model_folders.sound(place / "sound")
    for case in model_folders.CASES:
        if case not in model_folders.IN_WEIGHTS:
            folder = place / case.replace("/", "_")
            yield (
                f"model, {case}",
                lambda case=case, folder=folder: shape_of(str(model_folders.changed(case, good, folder))),
            )


def command(file: Path, text: str, arguments: list[str]) -> None:
    """Give the command line a command that may name a file of this text."""
    file.write_text(text.replace("{folder}", str(file.parent)))
    os.environ.pop("PEDIGREE_DATA", None)
    sys.argv = ["pedigree", *arguments]
    command_line()


def profile_of(file: Path, content: dict[str, Any]) -> Profile:
    """Return the profile of this content, read from a file."""
    file.write_text(json.dumps(content))
    return load_profile(str(file))


def answer(call: Callable[[], object], said: Path) -> tuple[str, str]:
    """Return how a call in a process of its own ended, and what it said. `said` is a file for its standard error."""
    if not (process := os.fork()):
        os.setsid()
        _in_the_child(call, said)
    until = time.monotonic() + SECONDS
    while not (ended := os.waitpid(process, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)  # and what it started
    if not ended[0]:
        os.waitpid(process, 0)
        return ENDLESS, f"does not end within {SECONDS} s"
    code, text = os.waitstatus_to_exitcode(ended[1]), said.read_text()
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    if code == OK:
        return ACCEPTED, text[-SHOWN:]
    is_right = code == BAD_INPUT and len(lines) == 1 and "Traceback" not in text
    return SENTENCE if is_right else EXCEPTION, f"{code}, {' '.join(lines) or text[-SHOWN:]}"


def answer_here(name: str, call: Callable[[], object]) -> tuple[str, str]:
    """Return the same for a call in this process that does nothing but read a recipe or profile.

    What is said must hold the last part of the field in the input's `name`, or its line.
    """
    field = re.sub(r"\.\d+$", "", name.partition("=")[0]).rpartition(".")[2].rpartition(" ")[2]
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(SECONDS)
    try:
        call()
    except (RecipeError, ProfileError) as error:
        return SENTENCE if re.search(rf"{field}|line \d+, column \d+", str(error)) else UNNAMED, f"2, {error}"
    except KeyboardInterrupt:
        return ENDLESS, f"does not end within {SECONDS} s"
    except Exception as error:
        return EXCEPTION, f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return ACCEPTED, ""


def _in_the_child(call: Callable[[], object], said: Path) -> None:
    """Call, write standard error to a file, and end this process with the exit code of the command line."""
    code: object = FAILED
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        call()
        code = OK
    except (RecipeError, ProfileError) as error:
        print(f"error: {error}", file=sys.stderr)
        code = BAD_INPUT
    except SystemExit as ended:
        code = ended.code or OK
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else FAILED)


if __name__ == "__main__":
    main()
