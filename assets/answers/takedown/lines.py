"""The answer of `pedigree takedown` as lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assets.answers.trace.kept_step import kept_step_lines
from assets.answers.trace.lines import count, outcome_lines, seen_in_training
from training.contract.tables import folded

SHOWN = 10


def lines_of(told: Mapping[str, Any]) -> list[str]:
    """Return the answer as lines of text."""
    return [line for one in _lines(told) for line in folded(one)]


def _lines(told: Mapping[str, Any]) -> Iterator[str]:
    for one in told["asked"][:SHOWN]:
        yield f"{one['kind']} {one['value']}: {count(one['pages'], 'page')}; reason: {one['reason']}"
    if len(told["asked"]) > SHOWN:
        yield f"and {len(told['asked']) - SHOWN:,} more"
    yield from _asked_rows(told["asked_rows"])
    yield from _duplicates(told["duplicates"])
    yield f"Searched: {', '.join(told['searched']) or 'nothing, because no snapshot is in an index'}"
    for partition in told["not_searched"]:
        yield f"  {partition} is in no index; what is withdrawn is dropped when it is built next"
    for one in told["snapshots"]:
        yield ""
        yield from _snapshot(one)
    if told["made_from_them"]:
        yield ""
        named = ", ".join(f"{one['asset']} ({one['artifacts']})" for one in told["made_from_them"])
        yield f"Made from these crawls: {named}"
    if told["superseded"]:
        yield ""
        yield f"{count(len(told['superseded']), 'artifact')} to which no partition points may hold the text:"
        for one in told["superseded"][:SHOWN]:
            yield f"  {one['asset']}/{one['fingerprint']} [{one['partition']}]"
        if len(told["superseded"]) > SHOWN:
            yield f"  and {len(told['superseded']) - SHOWN:,} more"
    for one in told["archives"]:
        if one["copied"]:
            yield f"Raw records are in {count(one['copied'], 'archive')} under {one['folder']}"
        if one["referenced"]:
            yield f"Raw records are in {count(one['referenced'], 'archive')} elsewhere: {', '.join(one['examples'])}"
    yield from seed_lines(told["seeds"])
    yield from _models(told)
    yield ""
    yield from _learned(told["learned"])
    if told["asked_rows"]:
        yield from _pages_repeating(told["pages_repeating_rows"])
    yield from _rows(told)
    if told["rebuild"]["recipes"]:
        yield ""
        yield from _price(told["rebuild"])
    yield from told["problems"]


def seed_lines(told: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield which seeds of crawls are such addresses; records of extractions keep them, as all addresses."""
    for one in told:
        where = f"the record of extracted_documents {one['fingerprint'][:12]} [{one['partition']}]"
        if one["seeds"]:
            named = ", ".join(one["seeds"][:SHOWN]) + (" …" if len(one["seeds"]) > SHOWN else "")
            yield f"{count(len(one['seeds']), 'seed')} of the crawl, not removed from {where}: {named}"
        if one["not_noted"]:
            yield f"{one['not_noted']:,} further seeds are only counted in {where}, so they were not searched"


def _asked_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the rows of post-training that are withdrawn."""
    if rows:
        yield f"{count(len(rows), 'row')} of post-training, which are withdrawn:"
    for one in rows[:SHOWN]:
        place = f"{one['asset']} {one['fingerprint'][:12]}, {one['file']} line {one['line']}"
        yield f"  {one['id']}, {place}{', a row with the same texts' if one.get('is_twin') else ''}"
    if len(rows) > SHOWN:
        yield f"  and {len(rows) - SHOWN:,} more"


def _duplicates(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield which pages have the same text, and whether they are withdrawn."""
    if not told["pages"]:
        return
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in told["reasons"].items())
    shards = f"{told['in_shards']:,} of them in shards" + (f"; {reasons}" if reasons else "")
    yield f"{count(told['pages'], 'other page')} in their clusters of duplicates, {shards}:"
    for one in told["examples"]:
        yield f"  {one['url'] or one['id']}{' (in a shard)' if one['is_kept'] else ''}"
    if told["pages"] > len(told["examples"]):
        yield f"  and {told['pages'] - len(told['examples']):,} more"
    named = ", ".join(told["kept_by"])
    if told["policy"] == "twin":
        yield f"They stay, because {named} says withdrawals.duplicates: twin; so does the text that they repeat"
    else:
        apart = f", but not from {named}, which says twin" if named else ""
        yield f"They are withdrawn too (withdrawals.duplicates: cluster){apart}"


def _pages_repeating(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield which pages have words of the withdrawn rows."""
    pages = told["pages"]
    if pages:
        yield f"{count(len(pages), 'page')} with eight words in a row of these rows, not withdrawn; --text finds both:"
    for one in pages[:SHOWN]:
        place = f"{one['url'] or one['id']}{' (in a shard)' if one['is_kept'] else ''}"
        yield f"  {place}: {one['shared']:,} of its {one['runs']:,} runs of eight words"
    if len(pages) > SHOWN:
        yield f"  and {len(pages) - SHOWN:,} more"
    if not told["runs"]:
        yield "No page was searched for these rows: no text of eight words is left of them."
    elif not pages:
        yield "No page has eight words in a row of these rows."


def _rows(told: Mapping[str, Any]) -> Iterator[str]:
    rows = told["rows"]
    if rows:
        yield f"{count(len(rows), 'row')} of post-training or synthetic text repeat them, and are not withdrawn:"
    for one in rows[:SHOWN]:
        shared = f"{one['shared']:,} of its {one['runs']:,} runs of eight words" if one["shared"] else "its address"
        yield f"  {one['asset']} {one['fingerprint'][:12]}, {one['file']} line {one['line']}: {shared}"
    if len(rows) > SHOWN:
        yield f"  and {len(rows) - SHOWN:,} more"
    if not rows and not told["rows_not_known"]:
        yield "No row of instructions, preferences, prompts or synthetic text repeats them."
    yield from told["rows_not_known"]


def _snapshot(one: Mapping[str, Any]) -> Iterator[str]:
    gone = f", {one['withdrawn']:,} of them withdrawn before" if one["withdrawn"] else ""
    yield f"{one['partition']}: {count(one['pages'], 'page')} in {count(one['ranks'], 'rank')}{gone}"
    yield from outcome_lines(one["outcomes"])
    for each in one["artifacts"]:
        if each["pages"]:
            yield (
                f"  {each['asset']} {each['fingerprint'][:12]}: {count(each['pages'], 'page')} in {each['files']:,} of"
                f" {count(each['of'], 'file')}"
            )
    named = [f"{each['path']} ({each['documents']:,})" for each in one["shards"][:SHOWN]]
    more = f" and {len(one['shards']) - SHOWN:,} more" if len(one["shards"]) > SHOWN else ""
    if named:
        yield f"  shards, with their documents: {', '.join(named)}{more}"


def _models(told: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    for one in told["trainings"]:
        steps = f" from {one['first_step']:,} to {one['last_step']:,}" if one["num_steps"] else ""
        yield (
            f"{one['training']} {one['fingerprint'][:12]}: trained on {count(one['trained'], 'page')},"
            f" {count(one['times'], 'time')}, {one['tokens']:,} tokens, in {count(one['num_steps'], 'step')}{steps}"
        )
    yield from kept_step_lines(told.get("kept_steps", ()))
    if told.get("made_of_models"):
        yield f"Averages and quantized models of models that had read any: {', '.join(told['made_of_models'])}"
    for problem in told["not_traced"]:
        yield f"not traced: {problem}"
    yield "Registered versions" if told["versions"] else "No version of a model is registered"
    for one in told["versions"]:
        aliases = f" ({', '.join(one['aliases'])})" if one["aliases"] else ""
        said = f"unknown; {one['problem']}" if one["problem"] else seen_in_training(one)
        said += f"; {count(one['rows'], 'row')} of post-training" if one["rows"] else ""
        yield f"  {one['name']}/{one['version']}{aliases}: {said}"


def _learned(learned: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in learned:
        keeps = "is kept, although it may have learned from these pages" if one["policy"] == "keep" else "is made again"
        earlier = "; it is kept from before an earlier takedown" if one["is_kept"] else ""
        named = f"{one['asset']} {one['fingerprint'][:12]} [{one['partition']}]"
        yield f"{named}: {keeps} (withdrawals.models: {one['policy']}){earlier}"


def _price(price: Mapping[str, Any]) -> Iterator[str]:
    recipes = ", ".join(price["recipes"])
    yield from _costs(f"A rebuild of what this command makes again of {recipes}", price)
    if price["models"]["assets"]:
        yield from _costs("What it leaves to `pedigree run`, models too", price["models"])


def _costs(title: str, price: Mapping[str, Any]) -> Iterator[str]:
    money = f", price {price['price']:,.2f}" if price["has_price"] else ", no price in the profile"
    yield (
        f"{title}:{' at least' * price['least']} {price['seconds']:,.1f} s, {price['node_hours']:,.4f} node-hours"
        f"{money}; from what the same assets took before"
    )
    for one in price["assets"]:
        ranks = f", {one['ranks']:,} of {count(one['of'], 'rank')}" if one["ranks"] is not None else ", whole"
        yield f"  {one['asset']} [{one['partition']}]{ranks}: {one['seconds']:,.1f} s"
    if price["not_priced"]:
        yield f"  without recorded node-hours: {', '.join(price['not_priced'])}"
