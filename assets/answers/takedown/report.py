"""Finish takedowns after the rebuild: erase, prove, and write a report that can be handed over.

The report says what was found, removed, rebuilt and proved, and what cannot be reached. It holds addresses and numbers,
and no withdrawn text. It is `takedowns/<number>.report.json` under the root, and `.md` beside it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import ArrowException
from zstandard import ZstdError

from assets.answers.gc.needed import Folders
from assets.answers.takedown.erasing import TEXT_INDEX, Eraser, Say, Scanned, gone_of, grams_file, only_there, scan
from assets.answers.takedown.lines import seed_lines
from assets.answers.takedown.masking import mask
from assets.answers.takedown.stored import beyond, bring_whole, scan_store, settle, store_memory
from assets.answers.takedown.takedown import WITHDRAWN_TAG, corpora_of, held_indexes, keeps_duplicates, with_tags
from assets.answers.takedown.team_databases import TeamDatabase, team_databases
from assets.services.stores import CONFIG_FILE, has_own_storage
from assets.state.removal_lock import only_one
from assets.state.tombstones import FOLDER, FOUND, LOCK_FILE, Tombstone, as_said, note_overwritten, read_tombstones
from resources.profile import Profile, load_profile
from resources.tracking.errors import TrackingError
from resources.tracking.reports import FLUSH_SECONDS, Tracking
from resources.tracking.spool import SPOOL_FILE
from resources.tracking.store import is_server
from training.contract.files.stored_takedowns import remember
from training.contract.files.writing import json_text, regular_bytes, write_json, write_text, written
from training.contract.job import DataError
from training.contract.secrets import masked
from training.contract.tables import markdown_table
from training.data.checksum_cache import known_under
from training.data.words.ngrams import Hashes
from training.provenance.grams import WORDS
from training.provenance.swap import Swap

REPORT = "report.json"
PROVED, NOT_PROVED, NOTHING = "proved", "not proved", "nothing to prove"
TAGGED = {
    True: "tagged",
    False: "**not tagged** (give its command again)",
    None: "MLflow did not say whether it is tagged",
}
BEYOND = (
    "Backups, snapshots of the file system and freed blocks of the disk",
    "Other roots, and models and corpora that were exported from this one",
    "The weights of models that were trained on the pages, which are not changed",
    "The place from which a snapshot was collected: it may give the pages again, and every build drops them again",
)


def note_found(root: Path, told: Mapping[str, Any], stones: Sequence[Tombstone]) -> None:
    """Keep the answer for the report, before the tombstones are written: afterwards the pages are found no more."""
    remember(root / FOLDER / f"{stones[-1].number:06d}.{FOUND}", json_text(dict(told)))


def reports_under(root: Path) -> Iterator[dict[str, Any]]:
    """Yield the reports of a root, oldest first."""
    for path in sorted((root / FOLDER).glob(f"*.{REPORT}")):
        with suppress(OSError, ValueError):
            yield json.loads(regular_bytes(path))


def is_done(report: Mapping[str, Any]) -> bool:
    """Whether a report says that nothing is left to erase: it is proved, or there was nothing to prove."""
    proof = report["proof"]
    return proof["is_proved"] or not (proof["runs"] or proof["hits"] or proof["not_read"])


def finish(root: Path, *, tracking: Tracking, say: Say, profile: Profile | None = None) -> dict[str, Any]:
    """Erase and prove every takedown of a root that has no proof yet; return the report.

    `profile` names where jobs may be at work on a root in a store. Raise DataError if a snapshot cannot be searched, if
    a team's database cannot be opened, or if another takedown or, of a root in a store, a job is at work.
    """
    with only_one(root, LOCK_FILE, "takedown"), known_under(root):
        stones = read_tombstones(root)
        proved = {number for one in reports_under(root) if is_done(one) for number in one["takedowns"]}
        pending = [one for one in stones if one.number not in proved]
        if not pending:
            _forget_words(root)  # of a command that was killed after its report
            store_memory(root)
            return list(reports_under(root))[-1]
        number = stones[-1].number
        bring_whole(root, say)  # a run may have made room here
        gone = gone_of(Folders(root).all(), stones, held_indexes(root), cluster=not keeps_duplicates(root))
        eraser = Eraser(root, gone, say)
        wanted, stays = _noted(root, eraser, number, say)
        waiting = _waiting(tracking, say)  # before the files are read: what arrives later would not be among them
        say(f"{len(wanted):,} runs of eight words occur only in the withdrawn text; reading every file")
        swaps = partial(Swap, takedown=number, note=partial(note_overwritten, root, number))
        elsewhere = _outside(root, tracking)
        databases = team_databases(root, elsewhere)
        first, told = _replaced(root, eraser, wanted, swaps, databases)
        if waiting and not is_server(elsewhere):  # what a server takes later was read here, where it waits
            first.not_read.append({"path": f"tracking/{SPOOL_FILE}", "why": f"MLflow {waiting}"})
        eraser.sort_suffixes(swaps)
        names = {one["path"] for one in first.hits} - {one.name for one in databases}
        again = scan(root, wanted, [root / name for name in names])
        for one in databases:
            one.scan(wanted, again)
        settle(root, profile or load_profile("local"), say)
        store = scan_store(root, wanted, outside := Scanned())
        first.not_read += outside.not_read
        again.hits += outside.hits
        left = [one | {"why": told.get(one["path"], "")} for one in again.hits]
        report = {
            "takedowns": [one.number for one in pending],
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "asked": [as_said(one) for one in pending],
            "found": with_tags(_found(root, pending), {one.number for one in pending}, tracking),
            "rebuilt": corpora_of(root, (crawl for crawl, ids in gone.ids.items() if ids)),
            "erased": {
                "files": eraser.erased({one.number for one in stones} - proved),
                "masked": sorted(name for name, why in told.items() if not why),
            },
            "proof": {
                "verdict": _verdict(wanted, left, first),
                "is_proved": _verdict(wanted, left, first) == PROVED,
                "runs": len(wanted),
                **first.as_json(),
                "hits": left,
                "hits_before": first.hits,
                **stays,
            },
            "store": None if store is None else asdict(store),
            "databases": [one.name for one in databases],
            "unreachable": [*eraser.unreachable, *_stores(root, elsewhere, databases, waiting), *beyond(root), *BEYOND],
        }
        report = _in_utf8(report)
        path = root / FOLDER / f"{number:06d}.{REPORT}"
        write_text(path.with_suffix(".md"), "\n".join(markdown_of(report)) + "\n")
        write_json(path, report)  # last: with it, the takedowns are done
        if is_done(report):
            _forget_words(root)
        store_memory(root)
        return report


def _outside(root: Path, tracking: Tracking) -> str:
    """Return the address of MLflow's store, or "" if it is a file under the root."""
    store = tracking.store
    return "" if store is not None and store.resolve().is_relative_to(root.resolve()) else tracking.uri


def _waiting(tracking: Tracking, say: Say) -> str:
    """Wait until MLflow has all reports; return what it has not taken, in words after its name, or ""."""
    if tracking.pending():
        say("waiting until MLflow has all reports")
    try:
        tracking.flush(FLUSH_SECONDS)
    except TrackingError:
        return f"has not taken {tracking.pending():,} bytes of reports in {FLUSH_SECONDS:.0f} s"
    return ""


def _in_utf8(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report for JSON in UTF-8: bytes of file names that are no UTF-8 become replacement characters."""
    return json.loads(
        json.dumps(report, ensure_ascii=False).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    )


def _verdict(wanted: Hashes, left: Sequence[Any], read: Scanned) -> str:
    if left or read.not_read:
        return NOT_PROVED
    return PROVED if len(wanted) else NOTHING


def _replaced(
    root: Path, eraser: Eraser, wanted: Hashes, swaps: Callable[[], Swap], databases: Sequence[TeamDatabase]
) -> tuple[Scanned, dict[str, str]]:
    """Put new versions of all files with withdrawn text in their places, or leave everything as it was.

    Return what was read of the root as it then is, and the masked files, each with why words of it are left, or "".
    Raise DataError, with what has been done, if a file cannot be read or written.
    """
    with swaps() as swap:
        try:
            eraser.erase(swap)
            read = scan(root, wanted, swap=swap)
            found = {root / one["path"] for one in read.hits if not one["path"].startswith(f"{TEXT_INDEX}/")}
            told = mask(root, found, wanted, swap)
            for one in databases if len(wanted) else ():
                one.scan(wanted, read)
                swap.begin.append(partial(one.begin, wanted))
                swap.then.append(one.without_former_rows)
            swap.commit()
        except (OSError, EOFError, ValueError, KeyError, ArrowException, sqlite3.Error, ZstdError, DataError) as error:
            done = "some files have new versions" if swap.has_begun else "nothing was erased or masked"
            raise DataError(
                f"takedown {swap.takedown} could not be finished, {done} ({type(error).__name__}: {error}); the"
                " tombstone is in force. Mend the cause, and give the command again"
            ) from error
        return read, told


def _forget_words(root: Path) -> None:
    for path in (root / FOLDER).glob("*.grams.*"):
        path.unlink()


def _noted(root: Path, eraser: Eraser, number: int, say: Say) -> tuple[Hashes, dict[str, Any]]:
    """Return the runs of words that occur only in the withdrawn text, and what `only_there` tells of the others.

    A command that was killed has left both in files.
    """
    file = grams_file(root, number)
    notes = file.with_suffix(".json")
    known = [np.load(path, allow_pickle=False) for path in sorted((root / FOLDER).glob("*.grams.npy"))]
    if file.exists() and notes.exists():
        return np.unique(np.concatenate(known)), json.loads(notes.read_text("utf-8"))
    say("looking for the words that occur only in the withdrawn text")
    new, elsewhere = only_there(eraser, root)
    wanted = np.unique(np.concatenate([*known, new]))
    write_json(notes, elsewhere)
    with written(file) as out:
        np.save(out, wanted, allow_pickle=False)
    return wanted, elsewhere


def _found(root: Path, pending: Sequence[Tombstone]) -> list[dict[str, Any]]:
    kept = ("asked", "asked_rows", "pages", "duplicates", "snapshots", "trainings", "versions", "learned", "rows")
    found = []
    for one in pending:
        with suppress(OSError, ValueError):
            told = json.loads(regular_bytes(root / FOLDER / f"{one.number:06d}.{FOUND}"))
            found.append(
                {name: told[name] for name in (*kept, "archives", "seeds", "pages_repeating_rows") if name in told}
            )
    return found


def _stores(root: Path, elsewhere: str, read: Sequence[TeamDatabase], waiting: str) -> list[str]:
    """Return a sentence for each store that is not under the root: of MLflow, of Dagster, and of databases `read`.

    `waiting` says what MLflow has not taken.
    """
    owners, config = {one.owner for one in read}, Path("dagster") / CONFIG_FILE
    kept = "files that it keeps elsewhere"
    kept = kept if "MLflow" in owners else f"database and {kept}"
    late = f"; it {waiting}, which were read where they wait, in tracking/{SPOOL_FILE}" if waiting else ""
    said = [f"MLflow at {masked(elsewhere)}: not under {root.name}, so its {kept} were not read{late}"]
    said = said if elsewhere else []
    if has_own_storage(root) and "Dagster" not in owners:
        said.append(f"Dagster's database, which {config} names: it is no PostgreSQL, so it was not read")
    return said + ["The write-ahead log, the copies and the binary columns of a PostgreSQL"] * bool(read)


def markdown_of(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the report for people."""
    proof, erased = report["proof"], report["erased"]
    numbers = ", ".join(map(str, report["takedowns"]))
    yield f"# Takedown {numbers}"
    yield ""
    yield f"Written {report['time']}. It holds addresses and numbers, and no withdrawn text."
    yield ""
    yield "## Asked"
    yield ""
    for one in report["asked"]:
        named = ", ".join(f"`{entry}`" for entry in one["entries"][:10])
        more = f" and {len(one['entries']) - 10:,} more" if len(one["entries"]) > 10 else ""
        yield f"- {one['time']}, takedown {one['number']}: {named}{more}. Reason: {one['reason']}"
    yield ""
    yield "## Found"
    yield ""
    for told in report["found"]:
        yield from _found_lines(told)
    if not report["found"]:
        yield "The answer was not kept; `pedigree takedown --dry-run` shows what is left."
    yield ""
    yield "## Removed"
    yield ""
    rows = []
    for asset in dict.fromkeys(one["asset"] for one in erased["files"]):
        own = [one for one in erased["files"] if one["asset"] == asset]
        named = ", ".join(dict.fromkeys(one["folder"][:12] for one in own))
        rows.append((asset, f"{sum(one['pages'] for one in own):,}", f"{len(own):,}", named))
    yield from markdown_table(("asset", "pages overwritten", "files", "artifacts"), rows)
    if erased["masked"]:
        yield ""
        yield f"Words were masked in {len(erased['masked']):,} further files:"
        yield ""
        yield from (f"- `{name}`" for name in erased["masked"])
    yield ""
    yield "## Rebuilt"
    yield ""
    yield "The corpora that had the pages, as they are now:"
    yield ""
    rows = []
    for cell in chain.from_iterable(report["rebuilt"].values()):
        ranks = f"{cell['reused_ranks']['ranks']:,} of {cell['reused_ranks']['of']:,}" if cell["reused_ranks"] else ""
        rows.append((f"{cell['asset']} [{cell['partition']}]", cell["state"], cell["fingerprint"][:12], ranks))
    yield from markdown_table(("asset", "state", "artifact", "ranks reused"), rows)
    yield ""
    yield "## Proved"
    yield ""
    read = f"{proof['files']:,} files ({proof['bytes']:,} bytes) that were read under the root"
    read += "".join(f" and in the texts of {name}" for name in report.get("databases", ()))
    if store := report.get("store"):
        read += f", and in the {store['objects']:,} objects ({store['bytes']:,} bytes) of {store['address']}"
    if proof["runs"]:
        verdict = "None of them is left" if not proof["hits"] else f"{len(proof['hits']):,} places still have some"
        yield f"{proof['runs']:,} runs of {WORDS} words occurred only in the withdrawn text. {verdict} in the"
        yield f"{read}."
    elif not any(told["pages"] or told.get("asked_rows") for told in report["found"]):
        yield f"Nothing to prove: no page and no row was found, so nothing was looked for in the {read}."
    else:
        yield f"Nothing to prove: the text has no run of {WORDS} words, one of them with a letter, that occurs"
        yield f"nowhere else, so none was looked for in the {read}. Copies of it in files that are no documents stay."
    if proof["runs_elsewhere"]:
        yield (
            f"Of its runs of words {proof['runs_elsewhere']:,} also stand in pages or data that are not withdrawn, in"
            " addresses, or in what this program writes itself."
        )
        yield "They stay there, and were not looked for."
    yield ""
    kinds = [(kind, f"{own['files']:,}", f"{own['bytes']:,}") for kind, own in sorted(proof["by_kind"].items())]
    yield from markdown_table(("kind of file", "files", "bytes"), kinds)
    for title, entries in (("Still there", proof["hits"]), ("Not read", proof["not_read"])):
        if entries:
            yield ""
            yield f"{title}:"
            yield ""
            for one in entries:
                yield f"- `{one['path']}`: {'; '.join(one[name] for name in ('place', 'why') if one.get(name))}"
    if proof["in_other_sources"]:
        yield ""
        yield "Some of its words also stand in data that was not crawled, which was left as it is:"
        yield ""
        yield from (f"- `{one['path']}`: {one['runs']:,} runs" for one in proof["in_other_sources"])
    yield ""
    yield "## Not reached"
    yield ""
    yield from (f"- {line}" for line in report["unreachable"])


def _found_lines(told: Mapping[str, Any]) -> Iterator[str]:
    for one in told["asked"]:
        yield f"- {one['kind']} {one['value']}: {one['pages']:,} pages"
    if (twins := told["duplicates"])["pages"]:
        then = "withdrawn too" if twins["policy"] == "cluster" else "not withdrawn, so what they repeat stays"
        yield f"- {twins['pages']:,} other pages of their clusters, {twins['in_shards']:,} in shards: {then}"
    for one in told["snapshots"]:
        shards = sum(each["documents"] for each in one["shards"])
        yield f"- {one['partition']}: {one['pages']:,} pages in {one['ranks']:,} ranks, {shards:,} of them in shards"
    if told.get("asked_rows"):
        yield f"- {len(told['asked_rows']):,} rows of post-training, in all their artifacts"
    if pages := told.get("pages_repeating_rows", {}).get("pages"):
        shards = sum(one["is_kept"] for one in pages)
        yield f"- {len(pages):,} pages with eight words in a row of these rows, {shards:,} in shards: not withdrawn"
    yield from (f"- {line}" for line in seed_lines(told.get("seeds", ())))
    for one in told["trainings"]:
        trained = f"trained on {one['trained']:,} of them, {one['tokens']:,} tokens"
        yield f"- {one['training']} {one['fingerprint'][:12]}: {trained}"
    for one in told["versions"]:
        seen = "unknown" if one["documents"] is None else f"{one['documents']:,}"
        tag = f"; {TAGGED[one['tagged']]} `{WITHDRAWN_TAG}`" if one["documents"] or one["rows"] else ""
        yield f"- registered version {one['name']}/{one['version']}: {seen} of them{tag}"
    for one in told["learned"]:
        yield f"- {one['asset']} {one['fingerprint'][:12]} learned from the corpus with them: {one['policy']}"
