"""The answers of `pedigree trace` as lines of at most 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from assets.answers.trace.kept_step import kept_step_lines
from training.contract.tables import folded, table_lines

SHOWN_STEPS = 12
SHOWN_OF_CLUSTER = 5


def lines_of(told: Mapping[str, Any]) -> list[str]:
    """Return the lines of an answer."""
    lines = {"step": _step, "lineage": _lineage, "domain": _domain, "text": _text}.get(told["question"], _pages)(told)
    return [line for one in (told["model"], *lines) for line in folded(one)]


def _step(told: Mapping[str, Any]) -> Iterator[str]:
    documents = told["documents"]
    tokens = sum(one["tokens_in_batch"] for one in documents)
    yield (
        f"{told['training']}, step {told['step']:,} of 0 to {told['steps'] - 1:,}: {told['rows']} rows of"
        f" {told['sequence_length']} tokens, {count(len(documents), 'document')}, {tokens:,} tokens"
    )
    if not told["trained"]:
        why = (
            "comes after the last step that trained the model"
            if "later" in told["skipped"]
            else f"was skipped ({', '.join(told['skipped'])}): it is in the ledger"
        )
        yield f"This step {why} and did not change the weights. Its documents would have been:"
    for one in documents:
        yield ""
        yield from _where(one)
        rows = [piece["row"] for piece in one["pieces"]]
        first = one["pieces"][0]
        yield (
            f"  {one['tokens_in_batch']:,} tokens in {count(len(rows), 'row')} ({_ranges(rows)}), from token"
            f" {first['at']} of row {first['row']} on; there from its token {first['start']:,} on"
        )
        yield f"  {one['shard']['path']} [{one['shard']['partition']}], document {one['shard']['document']:,}"
        for piece in one["pieces"]:
            if "text" in piece:
                yield f"    row {piece['row']}: {' '.join(piece['text'].split())}"


def _where(one: Mapping[str, Any]) -> Iterator[str]:
    yield one["url"] or "(no URL)"
    yield f"  {one['snapshot']}, {one['warc_file']}, offset {one['warc_offset']:,}"


def _text(told: Mapping[str, Any]) -> Iterator[str]:
    spans = told["spans"]
    yield (
        f"{count(len(spans), 'span')} of at least {told['least_tokens']} tokens of this text"
        f" {'occurs' if len(spans) == 1 else 'occur'} word for word in the {told['tokens_searched']:,} tokens of the"
        f" pages: {told['covered']:.0%} of the text."
    )
    if told["rows_not_known"]:
        yield f"Rows of post-training were not searched: {told['rows_not_known']}"
    else:
        shares = "shares" if told["num_rows"] == 1 else "share"
        yield f"{count(told['num_rows'], 'row')} of post-training {shares} eight words or more with it."
    for row in told["rows"]:
        yield f"  {row['shared']} of its {row['runs']:,} runs of eight words: {_row(row)}"
    repeated = Counter(span["text"] for span in spans)
    for text, span in {span["text"]: span for span in spans}.items():
        again = f" ({repeated[text]} times in the text)" if repeated[text] > 1 else ""
        yield ""
        yield f"{span['tokens']} tokens, {count(span['count'], 'place')}: {' '.join(text.split())}{again}"
        yield from _pages_of(span)
    for span in told["folded"]:
        yield ""
        said = f"{span['words']} words, in other letters, line ends or spaces, on {count(span['count'], 'page')}"
        yield f"{said}: {' '.join(span['text'].split())}"
        yield from _pages_of(span)
    if told["folded_not_known"]:
        yield f"It was not looked for in other letters: {told['folded_not_known']}"


def _pages_of(span: Mapping[str, Any]) -> Iterator[str]:
    for page in span["pages"]:
        yield from (f"  {line}" for line in _where(page))
        yield from (f"  {_seen(seen)}" for seen in page["seen"])
    if span["count"] > len(span["pages"]):
        yield f"  and {span['count'] - len(span['pages']):,} more"


def _row(row: Mapping[str, Any]) -> str:
    reason = f": {row['reason']}" if row["reason"] else ""
    by = f", by {row['generator']}" if row["generator"] else ""
    return f"{row['id']}, {row['asset']} {row['file']} line {row['line']:,}{by} ({row['outcome']}{reason})"


def _pages(told: Mapping[str, Any]) -> Iterator[str]:
    for row in told.get("rows", ()):
        yield _row(row)
        yield f"  trained on it: {', '.join(row['models']) or 'no model'}"
    if "rows" in told:
        return
    pages = told["pages"]
    if told["question"] == "url":
        yield f"{count(len(pages), 'page')} of {told['exact_form']}; {told['same']}"
    for page in pages:
        yield ""
        yield from _page(page)
    yield from kept_step_lines(told.get("kept_steps", ()))
    yield from _versions(told["versions"])


def _page(page: Mapping[str, Any]) -> Iterator[str]:
    yield from _where(page)
    yield f"  id {page['id']}"
    yield from table_lines([(one["asset"], _outcome(one)) for one in page["stages"]], indent=2)
    facts = page["facts"]
    if "duplicate_of" in facts:
        yield f"  duplicate of {facts['duplicate_of']}{_similar(facts)}"
    for name, value in facts.items():
        if name not in ("duplicate_of", "similarity", "reason", "source"):
            yield f"  {name}: {value:g}" if isinstance(value, float) else f"  {name}: {value}"
    if page["redactions"]:
        redacted = (f"{kind} {count(number, 'time')}" for kind, number in page["redactions"].items())
        yield f"  redacted: {', '.join(redacted)}"
    if page["cluster"]["pages"]:
        yield from _cluster(page["cluster"])
    if page["shard"]:
        shard = page["shard"]
        yield f"  {shard['path']}, document {shard['document']:,}, {shard['tokens']:,} tokens"
    for seen in page["seen"]:
        yield _seen(seen)
    if page["shard"] and not page["seen"]:
        yield "  no model has been trained on these shards yet"


def _cluster(cluster: Mapping[str, Any]) -> Iterator[str]:
    """Yield the pages of a cluster of duplicates, those in shards first, and how often trainings saw these."""
    pages = sorted(cluster["pages"], key=lambda one: not one["is_kept"])
    yield f"  {count(len(pages), 'other page')} in its cluster of duplicates"
    for one in pages[:SHOWN_OF_CLUSTER]:
        yield f"    {one['url'] or one['id']}{', in a shard' if one['is_kept'] else ''}"
    if len(pages) > SHOWN_OF_CLUSTER:
        yield f"    and {len(pages) - SHOWN_OF_CLUSTER:,} more"
    for one in cluster["seen"]:
        if one["times"]:
            yield f"    {one['training']} saw them {count(one['times'], 'time')}, {one['tokens']:,} tokens"


def _similar(facts: Mapping[str, Any]) -> str:
    return f", similarity {facts['similarity']:.3f}" if "similarity" in facts else ""


def _seen(seen: Mapping[str, Any]) -> str:
    if seen["held_out"]:
        return f"  {seen['training']}: held out; no step trains on it"
    steps = sorted({one["step"] for one in seen["steps"] if not one["skipped"]})
    later = sorted({one["step"] for one in seen["steps"] if "later" in one["skipped"]})
    skipped = sorted({one["step"] for one in seen["steps"] if one["skipped"]} - {*later})
    also = f"; steps {_ranges(skipped)} were skipped" if skipped else ""
    also += f"; steps {_ranges(later)} come after its last one" if later else ""
    if not steps:
        return f"  {seen['training']}: in a shard, and no step trained on it{also}"
    return (
        f"  {seen['training']}: seen in {count(seen['times'], 'epoch')}, {seen['tokens']:,} tokens,"
        f" {'steps' if len(steps) > 1 else 'step'} {_ranges(steps)}{also}"
    )


def _domain(told: Mapping[str, Any]) -> Iterator[str]:
    yield f"{told['domain']}: {count(told['num_pages'], 'page')} on {count(told['num_hosts'], 'host')}"
    yield from table_lines([(f"{one['pages']:,}", one["host"]) for one in told["hosts"]], indent=2, right={0})
    if told["num_hosts"] > len(told["hosts"]):
        yield f"  and {told['num_hosts'] - len(told['hosts']):,} more hosts"
    yield ""
    yield "What became of them"
    yield from outcome_lines(told["outcomes"])
    yield ""
    for one in told["seen"]:
        yield (
            f"{one['training']}: trained on {count(one['trained'], 'page')}, {count(one['times'], 'time')},"
            f" {one['tokens']:,} tokens, in {count(one['num_steps'], 'step')}"
            + (f" from {one['first_step']:,} to {one['last_step']:,}" if one["num_steps"] else "")
            + f"; {one['held_out']:,} held out"
        )
    for page in told["pages"]:
        yield ""
        yield from _page(page)
    yield from kept_step_lines(told.get("kept_steps", ()))
    yield from _versions(told["versions"])


def outcome_lines(outcomes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the numbers of pages by what became of them, as lines."""
    rows = [(f"{one['pages']:,}", f"{one['stage']}, {_outcome(one)}") for one in outcomes]
    return table_lines(rows, indent=2, right={0})


def _outcome(one: Mapping[str, Any]) -> str:
    return f"{one['outcome']}: {one['reason']}" if one["reason"] else one["outcome"]


def _versions(versions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield ""
    yield "Registered versions that saw them" if versions else "No version of a model is registered"
    for one in versions:
        aliases = f" ({', '.join(one['aliases'])})" if one["aliases"] else ""
        named = f"{one['name']}/{one['version']}{aliases}"
        if one["problem"]:
            yield f"  {named}: unknown; {one['problem']}"
        else:
            yield f"  {named}: {seen_in_training(one)}" + (
                f"; their duplicates {count(one['duplicates'], 'time')}" if one["duplicates"] else ""
            )


def _lineage(told: Mapping[str, Any]) -> Iterator[str]:
    price = told["price"]
    spent = [f"{price['cpu_seconds']:,.0f} processor seconds"] if "cpu_seconds" in price else []
    least = "at least " * bool(price.get("least"))
    spent += [f"{least}{price['node_hours']:,.3f} node-hours"] if "node_hours" in price else []
    spent += [f"price {price['price']:,.2f}"] if "price" in price else []
    yield f"Made from {count(len(told['nodes']) - 1, 'artifact')}; {', '.join(spent) or 'costs unknown'}"
    yield ""
    yield from _tree(told["nodes"], told["artifact"], 0, set())
    libraries = {f"{name} {version}" for node in told["nodes"].values() for name, version in node["libraries"].items()}
    yield ""
    yield f"Libraries that decide the output: {', '.join(sorted(libraries)) or 'none'}"
    revisions = Counter(node["code_revision"] for node in told["nodes"].values() if node["code_revision"])
    yield f"Code revisions: {', '.join(f'{name[:12]} ({number})' for name, number in revisions.most_common())}"
    if told["rows_not_known"]:
        yield f"Rows of post-training: {told['rows_not_known']}"
    for one in told["rows"]:
        by = f" by {one['generator']}" if one["generator"] else ""
        yield f"{count(one['rows'], 'row')} of {one['asset']} from {one['source']}{by}, {one['outcome']}"
    if told["made_from_it"]:
        made = Counter(one["asset"] for one in told["made_from_it"])
        yield f"Made from it: {', '.join(f'{name} ({number})' for name, number in made.items())}"
    yield from _versions_made(told["versions"])


def _versions_made(versions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    named = [f"{one['name']}/{one['version']}" for one in versions]
    yield f"Registered versions made from it: {', '.join(named) or 'none'}"


def _tree(nodes: Mapping[str, Any], name: str, depth: int, told: set[str], guard: bool = False) -> Iterator[str]:
    node = nodes[name]
    part = node["partition"].partition("@")[2]
    title = f"{'  ' * depth}{'guard ' if guard else ''}{node['asset']}{f' [{part}]' if part else ''} {name[:12]}"
    if name in told:
        yield f"{title}, above"
        return
    told.add(name)
    sections = f", sections {', '.join(node['sections'])}" if node["sections"] else ""
    cost = f", {node['cost']['cpu_seconds']:,.1f} s" if "cpu_seconds" in node["cost"] else ""
    yield f"{title}{', MISSING' if node['problem'] else ''}{sections}{cost}"
    if said := node["problem"] or node["remark"]:
        yield f"{'  ' * depth}  {said}"
    for kind in ("inputs", "guards"):
        for below in node[kind]:
            yield from _tree(nodes, below, depth + 1, told, guard=kind == "guards")


def seen_in_training(one: Mapping[str, Any]) -> str:
    """Return how many pages a model saw, how often, and how many tokens of them."""
    return f"{count(one['documents'], 'page')}, {count(one['times'], 'time')}, {one['tokens']:,} tokens"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _ranges(numbers: Iterable[int]) -> str:
    """Return numbers in ascending order, with neighbours as ranges such as 2 to 4.

    After SHOWN_STEPS of them the text says how many more there are.
    """
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    told = [f"{one[0]:,} to {one[-1]:,}" if len(one) > 1 else f"{one[0]:,}" for one in found]
    more = f" and {len(told) - SHOWN_STEPS:,} more" if len(told) > SHOWN_STEPS else ""
    return ", ".join(told[:SHOWN_STEPS]) + more
