"""Ways in which `pedigree run` ends: exit code, object, webhook, Dagster's runs and terminal say the same."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import dagster as dg
import pytest
import yaml

from assets.registry.refusal import refusal_sentence
from assets.services.stores import opened_instance
from tests.assets.run.test_result import kill_stages
from tests.end_to_end.test_faults import is_extracting
from tests.hook import webhook
from tests.screen import Screen
from tests.small_kitchen import RECIPES, linked_copy, pedigree_in_terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = "kitchen-small"
EXTRACTED = (SMALL, "--snapshots", "kitchen-1", "--until", "extracted_documents")


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A run, and what all five must say of it.

    `says` begins its sentence. `told` are kind and asset of the webhook's message, `ran` is
    the status of the last run in Dagster; both are empty if there is none. `prepared` gets the untouched root and the
    run's own; `strike` is the signal that ends the run when `when` holds. `root` is another root.
    """

    arguments: tuple[str, ...]
    code: int
    root: Path | str = ""
    says: str = "ok: "
    told: tuple[str, ...] = ()
    ran: str = ""
    prepared: Callable[[Path, Path], object] = lambda untouched, root: None
    strike: int = 0
    when: Callable[[Path], Callable[[Screen], bool]] = is_extracting


def undecided(untouched: Path, root: Path) -> None:
    """All but the decision on the promotion."""
    linked_copy(untouched, root)
    for gone in ("promoted_model", "refs/promoted_model"):
        shutil.rmtree(root / gone)


def demanding(untouched: Path, root: Path) -> None:
    """The same, with a recipe that asks for more than the model can do."""
    undecided(untouched, root)
    recipe = yaml.safe_load((RECIPES / f"{SMALL}.yaml").read_text("utf-8"))
    recipe |= {"name": "demanding", "promote": {**recipe["promote"], "min_scores": {"cloze": 1.0}}}
    (root / "recipes").mkdir(exist_ok=True)
    (root / "recipes" / "demanding.yaml").write_text(yaml.safe_dump(recipe), "utf-8")


def killed(untouched: Path, root: Path) -> None:
    """Somebody kills the first stage as often as it begins."""
    Thread(target=kill_stages, args=(root / "crawl_archives",), daemon=True).start()


def is_deciding(root: Path) -> Callable[[Screen], bool]:
    """The job of the decision has started."""
    return lambda screen: any(root.glob("promoted_model/*/process.json"))


def another_promotes(untouched: Path, root: Path) -> None:
    """All but the decision, and this process holds the lock of the registry to its end."""
    undecided(untouched, root)
    fcntl.flock(os.open(f"{root / 'mlflow.db'}.registry.lock", os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)


def is_waiting(root: Path) -> Callable[[Screen], bool]:
    """The run has waited for the lock of the registry."""
    return lambda screen: any("the model registry" in line for line in screen.lines)


ENDINGS = {
    "all-made": Ending(arguments=(SMALL,), code=0, ran="SUCCESS", prepared=undecided),
    "refused": Ending(
        arguments=("demanding",), code=3, says="refused by gate promotion of promoted_model [demanding]: cloze: ",
        told=("refused", "promoted_model"), ran="FAILURE", prepared=demanding,
    ),
    "failed": Ending(
        arguments=EXTRACTED, code=1, says="crawl_archives", told=("failed", "crawl_archives"), ran="FAILURE",
        prepared=killed,
    ),
    "Ctrl-C": Ending(arguments=EXTRACTED, code=130, says="interrupted by Ctrl-C", ran="CANCELED", strike=signal.SIGINT),
    "SIGTERM": Ending(arguments=EXTRACTED, code=143, says="ended by SIGTERM", ran="CANCELED", strike=signal.SIGTERM),
    "Ctrl-C-decision": Ending(
        arguments=(SMALL,), code=130, says="interrupted by Ctrl-C", ran="CANCELED", prepared=undecided,
        strike=signal.SIGINT, when=is_deciding,
    ),
    "SIGTERM-registry": Ending(
        arguments=(SMALL,), code=143, says="ended by SIGTERM", ran="CANCELED", prepared=another_promotes,
        strike=signal.SIGTERM, when=is_waiting,
    ),
    "until": Ending(
        arguments=EXTRACTED, code=0, ran="SUCCESS",
        says="ok: 2 of 2 artifacts up to extracted_documents of kitchen-1 and what they need are made, 2 by this run",
    ),
    "nothing-to-do": Ending(arguments=(SMALL,), code=0, prepared=linked_copy),
    "address": Ending(arguments=(SMALL,), root="hdfs://b/x", code=2, says="--root: hdfs://b/x is an address"),
}  # fmt: skip


def runs_of(root: Path) -> dict[str, str]:
    """The runs in Dagster, newest first, each with its status."""
    if not (root / "dagster").exists():
        return {}
    with opened_instance(root) as instance:
        return {run.run_id: run.status.value for run in instance.get_runs()}


def end_in_dagster(root: Path, run: str) -> str:
    """What the log of a run tells of the command's end."""
    with opened_instance(root) as instance:
        events = instance.all_logs(run, dg.DagsterEventType.ENGINE_EVENT)
    (said,) = [one.message for one in events if one.message.startswith("`pedigree run` of ")]
    return said.partition(" ended: ")[2]


def unwrapped(lines: str) -> str:
    return "".join(lines.split())


@pytest.mark.parametrize("name", ENDINGS)
def test_all_five_say_the_same(first, untouched, tmp_path, monkeypatch, name):
    one, root, profile = ENDINGS[name], tmp_path / "root", tmp_path / "told.yaml"
    one.prepared(untouched, root)
    before = runs_of(root)
    profile.write_text('{name: told, default: {retries: 0}, notify: {webhook: "${HOOK}"}}')
    strike = (one.when(root), one.strike) if one.strike else None
    with webhook() as hook:
        monkeypatch.setenv("HOOK", hook.address)
        arguments = ("run", *one.arguments, "--profile", str(profile))
        ran = pedigree_in_terminal(*arguments, root=one.root or root, strike=strike)
    assert (ran.code, ran.answer["ok"]) == (one.code, one.code == 0), ran.errors
    refusals = ran.answer.get("refusals", [])
    sentence = "; ".join([ran.answer["error"]] * (not refusals) + [refusal_sentence(one) for one in refusals])
    if one.code == 0:
        assert not sentence
        sentence = "ok: " + " ".join(ran.errors.split()).rpartition("ok: ")[2]
        assert re.fullmatch(r"ok: (\d+) of \1 artifacts.* are made, \d+ by this run", sentence)
    assert sentence.startswith(one.says)
    shown = unwrapped(ran.errors)
    assert unwrapped(sentence) in shown and ("error:" in shown) == (one.code not in (0, 3))
    assert ("refusedbygate" in shown) == (one.code == 3)
    assert [(said["kind"], said["asset"]) for said in hook.messages] == ([one.told] if one.told else [])
    assert all(said["cause"] in sentence for said in hook.messages)
    new = {run: status for run, status in runs_of(root).items() if run not in before}
    if not one.ran:
        assert not new
        return
    assert next(iter(new.values())) == one.ran and set(new.values()) <= {one.ran, "SUCCESS"}
    assert end_in_dagster(root, next(iter(new))) == sentence
