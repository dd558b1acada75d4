"""Commands that show what a recipe has made: `status`, `why`, `inspect`, `report`, `verify`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from assets.commands.options import (
    DEFAULT_ROOT,
    JsonOption,
    ProfileOption,
    RecipeArgument,
    RootOption,
    check_asset,
    names_of_assets,
    place,
    read,
)
from assets.state.cell import Comparison, last_made
from assets.state.compare import compare
from assets.state.liveness import killed_launches
from assets.terminal.harmless import harmless
from assets.terminal.standard_error import say
from training.contract.job import DataError
from training.contract.process.exit_codes import FAILED, OK


def status(
    recipe: RecipeArgument,
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    all_: Annotated[
        bool, typer.Option("--all", help="show every cell with all its reasons, without shortening")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Show what is made, missing or outdated, and which field of the recipe makes it outdated."""
    from assets.registry.champion import with_stale_noted
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    comparison = compare(read(recipe, root), root.resolve(), skip_unavailable=True)
    comparison = with_stale_noted(comparison, Tracking(load_profile(profile).tracker, root.resolve()))
    killed = killed_launches(root.resolve())
    if json_:
        assets = _status_data(comparison.cells.values())
        answer = {"recipe": comparison.recipe.name, "assets": assets, "killed": [asdict(one) for one in killed]}
        print(json.dumps(answer, ensure_ascii=False))
        return
    for one in killed:
        say([f"{one} was killed; the next `pedigree run`, or `pedigree dev`, ends its runs in Dagster and MLflow"])
    from assets.answers.status.lines import show_cells, show_status

    if all_:
        show_cells(comparison)
    else:
        show_status(comparison, recipe)


def _status_data(cells: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for cell in cells:
        result.setdefault(cell.asset, {})[cell.partition] = {
            "state": cell.state,
            "fingerprint": cell.fingerprint,
            "recorded": cell.is_recorded,
            "reasons": list(cell.reasons),
            "way_out": cell.way_out,
            "remark": cell.remark,
            "other_code": list(cell.other_code),
            "refused_by": [gate["name"] for gate in cell.artifact.failed_gates] if cell.artifact else [],
            "numerics": cell.artifact.record.get("numerics") if cell.artifact else None,
            "reused_ranks": cell.artifact.record.get("reused_ranks") if cell.artifact else None,
        }
    return result


def why(
    asset: Annotated[str, typer.Argument(help="name of an asset", autocompletion=names_of_assets)],
    recipe: RecipeArgument,
    other: Annotated[str, typer.Argument(help="another recipe to compare with; empty: the recorded artifact")] = "",
    root: RootOption = DEFAULT_ROOT,
    json_: JsonOption = False,
) -> None:
    """Show field by field why an asset is outdated, or how the artifacts of two recipes differ."""
    from assets.answers.status.why import explain

    answer = explain(asset, read(recipe, root), read(other, root) if other else None, root.resolve())
    if json_:
        print(json.dumps(answer, ensure_ascii=False))
        return
    for entry in answer["partitions"]:
        print(f"{answer['asset']} [{entry['partition']}]: {entry['state']}")
        for line in (*entry["differences"], *entry.get("numerics", ()), *filter(None, [entry.get("reused_ranks")])):
            print(f"  {line}")


def verify(
    recipe: Annotated[
        str, typer.Argument(help="name of a recipe, or path of a YAML file; with --signature a model or its folder")
    ] = "",
    root: RootOption = DEFAULT_ROOT,
    profile: ProfileOption = "local",
    mend: Annotated[
        bool, typer.Option("--mend", help="set aside artifacts with a damaged file or a changed record")
    ] = False,
    signature: Annotated[
        Path | None,
        typer.Option(help="check the attestation and the signature in this folder instead", callback=place),
    ] = None,
    public_key: Annotated[
        Path | None,
        typer.Option(help="with --signature: public key (PEM); also by PEDIGREE_PUBLIC_KEY", callback=place),
    ] = None,
    receipt: Annotated[
        Path | None,
        typer.Option(
            help="check this receipt of `pedigree serve --receipts` instead; RECIPE may be left out", callback=place
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Check that a recipe's artifacts, the references to them and its own sources are as they were written.

    Every file and record is read. With --signature, check instead that a model is the one that was attested and signed.
    Exit code 1 if anything differs, 2 if nothing is made.
    """
    if receipt is not None:
        if signature is not None or mend:
            raise DataError("verify: --receipt is checked alone; leave --signature and --mend out")
        raise typer.Exit(_verify_receipt(receipt, recipe, root.resolve(), profile, json_=json_))
    if not recipe:
        raise DataError("verify: name a recipe or, with --signature, a model; only a receipt names its model itself")
    if signature is not None:
        raise typer.Exit(_verify_signature(recipe, signature, public_key, root.resolve(), profile, json_=json_))
    from assets.answers.status.verify import verified
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking
    from training.data.checksum_cache import forget

    forget(root.resolve())  # so that the recipe's own sources are read too
    comparison = compare(read(recipe, root), root.resolve(), skip_unavailable=True)
    tracking = Tracking(load_profile(profile).tracker, root.resolve())
    answer = verified(comparison, tracking, mend=mend)
    if not answer.verified and not answer.problems:
        raise DataError(
            f"nothing to verify: recipe {comparison.recipe.name} has made nothing under {root} as it is now;"
            f" `pedigree status {recipe}` says what is missing"
        )
    if json_:
        print(json.dumps(answer.as_json(), ensure_ascii=False))
    else:
        for line in answer.lines():
            print(line, file=sys.stderr)
        print(f"{answer.verified} artifacts read, {_number_of(answer.problems)}")
    raise typer.Exit(FAILED if answer.problems else OK)


def _number_of(problems: Sequence[object]) -> str:
    return "1 problem" if len(problems) == 1 else f"{len(problems)} problems"


def _verify_signature(
    model: str, folder: Path, public_key: Path | None, root: Path, profile: str, *, json_: bool
) -> int:
    from assets.answers.models.attest import PUBLIC_KEY, checked, key_named
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    tracking = Tracking(load_profile(profile).tracker, root)
    told = checked(model, folder, root=root, tracking=tracking, key=key_named(public_key, PUBLIC_KEY))
    if json_:
        found = {"files": told.files, "records": told.records, "problems": list(told.problems)}
        print(json.dumps({"ok": not told.problems, **found}, ensure_ascii=False))
    else:
        for line in told.problems:
            print(line, file=sys.stderr)
        compared = f"{told.files} files and {told.records} records compared with the attestation"
        print(f"{compared}, {_number_of(told.problems)}")
    return FAILED if told.problems else OK


def _verify_receipt(file: Path, model: str, root: Path, profile: str, *, json_: bool) -> int:
    from assets.answers.models.receipt_check import checked_receipt
    from resources.profile import load_profile
    from resources.tracking.reports import Tracking

    told = checked_receipt(file, model, root, Tracking(load_profile(profile).tracker, root))
    if json_:
        print(json.dumps({"ok": not told.problems, **asdict(told)}, ensure_ascii=False))
    else:
        for line in (*told.problems, *(f"not checked: {line}" for line in told.not_checked)):
            print(harmless(line), file=sys.stderr)
        print(f"compared: {told.compared}; {_number_of(told.problems)}")
    return FAILED if told.problems else OK


def report(
    recipe: RecipeArgument,
    root: RootOption = DEFAULT_ROOT,
    output: Annotated[Path, typer.Option(help="file to write", callback=place)] = Path("report.html"),
    profile: ProfileOption = "local",
    json_: JsonOption = False,
) -> None:
    """Write one self-contained HTML page about all artifacts that the recipe has made so far, refused ones included."""
    from assets.registry.decision_page import report_page

    comparison = compare(read(recipe, root), root.resolve(), skip_unavailable=True)
    if all(cell.artifact is None for cell in comparison.cells.values()):
        raise DataError(f"recipe {comparison.recipe.name} has made nothing under {root}; run it first")
    output.write_text(report_page(comparison, _registered(comparison, root.resolve(), profile)), "utf-8")
    print(json.dumps({"report": str(output)}) if json_ else f"wrote {output}")


def _registered(comparison: Comparison, root: Path, profile: str) -> dict[str, Any]:
    """The standing of the recipe's model in the registry, and the history of its champions.

    Empty if the aligned model is not made, or if the registry does not answer; then a warning is printed.
    """
    from assets.registry.decision import model_of
    from assets.registry.decision_page import told
    from assets.registry.standing import standing
    from resources.profile import load_profile
    from resources.tracking.errors import TrackingError
    from resources.tracking.registry import Registry, explained
    from resources.tracking.reports import Tracking

    if model_of(comparison).artifact is None:
        return {}
    tracking = Tracking(load_profile(profile).tracker, root)
    try:
        with explained(tracking):
            registry = Registry(tracking, comparison.recipe.promote.model_name)
            return told(standing(comparison, registry), registry)
    except TrackingError as error:
        print(f"{error}; the report says nothing of promotions", file=sys.stderr)
        return {}


def inspect(
    asset: Annotated[
        str,
        typer.Argument(help="a stage that sorts records, such as filtered_documents", autocompletion=names_of_assets),
    ],
    recipe: RecipeArgument,
    snapshot: Annotated[str, typer.Option(help="only this snapshot")] = "",
    reason: Annotated[
        str,
        typer.Option(help="kept, dropped, quarantined, redacted, cluster, just_passed, cut, or how a reason begins"),
    ] = "",
    samples: Annotated[int, typer.Option(help="records shown of each group", min=0)] = 3,
    characters: Annotated[int, typer.Option(help="characters shown of each text", min=1)] = 500,
    seed: Annotated[int, typer.Option(help="seed of the random choice of records")] = 0,
    root: RootOption = DEFAULT_ROOT,
    json_: JsonOption = False,
) -> None:
    """Show records that a stage kept, dropped, quarantined or redacted, by reason.

    Also shows clusters of near-duplicates, documents that just passed, and cuts.
    """
    from assets.answers.status.lines import show_samples
    from evaluation.report.samples import has_records
    from evaluation.report.stage_details import look_at

    check_asset(asset)
    comparison = compare(read(recipe, root), root.resolve(), skip_unavailable=True)
    if snapshot:
        comparison.recipe.snapshot(snapshot)
    cells = comparison.cells.values()
    made = [(found.path, found.record) for cell in cells if (found := last_made(cell, root.resolve()))]
    if any(cell.asset == asset and cell.state == "outdated" for cell in cells):
        print(f"{asset} is outdated (`pedigree status {recipe}` says why); shown is what was made", file=sys.stderr)
    groups = look_at(made, asset, partition=snapshot, reason=reason, number=samples, characters=characters, seed=seed)
    if not groups:
        known = ", ".join(dict.fromkeys(record["asset"] for _, record in made if has_records(record))) or "none"
        raise DataError(
            f"{asset} of {comparison.recipe.name} has no records for snapshot {snapshot or 'any'} and reason"
            f" {reason or 'any'}; made under {root} and with records: {known}"
        )
    if json_:
        print(json.dumps({"asset": asset, "groups": [group.as_json() for group in groups]}, ensure_ascii=False))
    else:
        show_samples(groups)
