"""Measure what the filter finds of telephone numbers in sentences, by locale: the figures of docs/filters.md.

    python -m benchmarks.telephones sentences
    PEDIGREE_DATA=… python -m benchmarks.telephones lines --peers VENV/lib/python3.11/site-packages
    python -m benchmarks.telephones plans --peers VENV/lib/python3.11/site-packages
    python -m benchmarks.telephones drawn --seed 1 --peers VENV/lib/python3.11/site-packages

`sentences` reads `telephones.tsv`: sets of sentences in the order in which they were written, each after the rules were
changed by those before it. A row has the set, the locale, `+` and a text with its numbers in ⟦⟧, or `-` and a text in
which other numbers stand. It prints recall (the share of the marked numbers that stand nowhere whole in their text) and
precision (the share of these in them and all that is replaced in `-` texts) by locale and set. `drawn` puts valid
numbers of each country's plan, drawn by the seed, into `telephone_sentences.tsv` (`#`; in `-` texts each 9 is any
digit): a set that no rule was changed by, as long as its misses are not read. `lines` prints what is
replaced in lines of real texts that hold digits and no number that phonenumbers finds; `--peers` is a folder with
phonenumbers, which is not among the project's packages. `plans` writes `telephone_plans.txt` and `telephone_forms.txt`
in `training/data/filter/lists` anew.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from training.data.extract.extract import documents_of
from training.data.extract.settings import ExtractRecipe
from training.data.filter import personal_data
from training.data.sources import read_rows, resolve

SENTENCES = Path(__file__).parent / "telephones.tsv"
FRAMES = Path(__file__).parent / "telephone_sentences.tsv"


def found_in(locale: str, text: str) -> tuple[int, int, int]:
    """Return how many marked numbers a text has, how many of them are replaced, and what is replaced if it has none."""
    redacted, counts = personal_data.redact(re.sub("[⟦⟧]", "", text), ("phone",), language=locale.partition("-")[0])
    numbers = re.findall("⟦(.*?)⟧", text)
    found = sum(number not in redacted for number in numbers)
    return len(numbers), found, counts.get("phone", 0) if not numbers else 0


def sentences() -> dict[str, dict[str, tuple[int, int, int]]]:
    """Return the sums of `found_in` by set and locale; the locale `all` has those of the set."""
    sums: dict[str, dict[str, tuple[int, int, int]]] = defaultdict(lambda: defaultdict(lambda: (0, 0, 0)))
    for line in SENTENCES.read_text("utf-8").splitlines():
        name, locale, _, text = line.split("\t")
        one = found_in(locale, text.replace("\\n", "\n"))
        for place in (locale, "all"):
            before = sums[name][place]
            sums[name][place] = (before[0] + one[0], before[1] + one[1], before[2] + one[2])
    return sums


def print_sentences() -> bool:
    """Print recall and precision by set and locale; return whether each set reaches 0.99 and 0.97."""
    sums = sentences()
    for name, locales in sums.items():
        for locale, (numbers, found, wrong) in sorted(locales.items()):
            recall, precision = found / max(numbers, 1), found / max(found + wrong, 1)
            print(f"{name:8}{locale:8}{numbers:5} numbers, recall {recall:.3f}, precision {precision:.3f}")
    reached = [
        (found / numbers, found / (found + wrong)) for numbers, found, wrong in (s["all"] for s in sums.values())
    ]
    return all(recall >= 0.99 and precision >= 0.97 for recall, precision in reached)


def drawn(peer: Any, seed: int, *, times: int = 12) -> Iterator[tuple[str, str]]:
    """Yield locale and text: each sentence several times, with other numbers and their usual ways of writing."""
    draw = random.Random(seed)
    for line in FRAMES.read_text("utf-8").splitlines():
        locale, sign, text = line.split("\t")
        for _ in range(times):
            if sign == "-":
                yield locale, re.sub("9", lambda _: draw.choice("123456789"), text)
            else:
                yield locale, text.replace("#", f"⟦{_number(peer, locale[-2:], draw)}⟧")


def _number(peer: Any, region: str, draw: random.Random) -> str:
    """Return a valid landline or mobile number of a region as people write it: mostly in the national form."""
    kind = draw.choice((peer.PhoneNumberType.FIXED_LINE, peer.PhoneNumberType.MOBILE))
    number = peer.example_number_for_type(region, kind)
    example = number.national_number
    for _ in range(1000):
        number.national_number = example // 100_000 * 100_000 + draw.randrange(100_000)
        if peer.is_valid_number(number):
            break
    form = draw.choice((peer.PhoneNumberFormat.NATIONAL,) * 4 + (peer.PhoneNumberFormat.INTERNATIONAL,))
    written = peer.format_number(number, form)
    return re.sub("[^0-9]", "", written) if draw.random() < 0.15 and written[0] != "+" else written


def print_drawn(peer: Any, seed: int) -> None:
    """Print recall and precision by locale, and of all, on a drawn set."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for locale, text in drawn(peer, seed):
        for place in (locale, "all"):
            sums[place] = [sum(pair) for pair in zip(sums[place], found_in(locale, text), strict=True)]
    for locale, (numbers, found, wrong) in sorted(sums.items()):
        recall, precision = found / numbers, found / max(1, found + wrong)
        print(f"{locale:8}{numbers:5} numbers, recall {recall:.3f}, precision {precision:.3f}")


def innocent(peer: Any) -> Iterator[str]:
    """Yield lines of real texts that hold digits and no number that phonenumbers finds."""
    for name in ("text/wikitext-2.valid.txt.gz", "text/gutenberg/16215.txt.gz", "text/gutenberg/972.txt.gz"):
        for row in read_rows(f"data://{name}"):
            yield from _lines(row["text"], peer)
    for row in read_rows("data://filters/dclm_human_quality_agreement_data.jsonl.gz"):
        yield from _lines(str(row.get("text") or ""), peer)
    shard = Path(resolve("data://crawl/snapshot-1/web-00-00000.warc.gz"))
    for row in documents_of(shard, "warc", ExtractRecipe(extractor="resiliparse")):
        yield from _lines(row["text"], peer)


def _lines(text: str, peer: Any) -> Iterator[str]:
    for line in text.splitlines():
        if sum(map(str.isdigit, line)) >= 7 and not peer.PhoneNumberMatcher(line, "US").has_next():
            yield line


def print_lines(peer: Any) -> None:
    """Print what is replaced in real lines, and how many there are."""
    lines = list(innocent(peer))
    wrong = [line for line in lines if personal_data.redact(line, ("phone",))[1]]
    print(
        f"replaced in {len(wrong)} of {len(lines)} lines with digits and no number that phonenumbers finds",
        *wrong,
        sep="\n",
    )


# Languages in which the ways of writing of a region are looked for; the others only on hosts of the region, because
# bare digits are numbers there.
LANGUAGES = {
    "AE": "ar", "AL": "sq", "AM": "hy", "AR": "es", "AT": "de", "AU": "en", "AZ": "az", "BA": "bs hr sr", "BD": "bn",
    "BE": "nl fr", "BG": "bg", "BO": "-", "BR": "pt", "BY": "be ru", "CH": "de fr it", "CL": "es", "CN": "zh",
    "CO": "es", "CR": "-", "CY": "el", "CZ": "cs", "DE": "de", "DK": "da", "DZ": "ar fr", "EC": "es",
    "EE": "et", "EG": "ar", "ES": "es ca eu gl", "FI": "fi sv", "FR": "fr", "GB": "en cy gd", "GE": "ka", "GR": "el",
    "GT": "-", "HK": "-", "HR": "hr", "HU": "hu", "ID": "id", "IE": "en ga", "IL": "he",
    "IN": "hi bn gu kn ml mr pa ta te ur", "IQ": "ar ku", "IR": "fa", "IS": "is", "IT": "it", "JO": "ar",
    "JP": "ja", "KE": "sw", "KH": "km", "KR": "ko", "KW": "-", "KZ": "kk ru", "LA": "lo", "LB": "ar", "LK": "si ta",
    "LT": "lt", "LU": "lb", "LV": "lv", "MA": "ar fr", "MD": "ro", "ME": "sr", "MK": "mk", "MM": "my", "MN": "mn",
    "MT": "mt", "MX": "es", "MY": "ms", "NG": "yo ha ig", "NL": "nl", "NO": "no nb nn", "NP": "ne", "NZ": "en mi",
    "PE": "es", "PH": "tl", "PK": "ur", "PL": "pl", "PT": "pt", "PY": "es", "RO": "ro", "RS": "sr", "RU": "ru",
    "SA": "ar", "SE": "sv", "SG": "-", "SI": "sl", "SK": "sk", "TH": "th", "TN": "-", "TR": "tr", "TW": "zh",
    "TZ": "sw", "UA": "uk", "UY": "-", "UZ": "uz", "VE": "es", "VN": "vi", "ZA": "af en",
}  # fmt: skip


def write_plans(peer: Any, file: Path) -> None:
    """Write country code, national prefix, whether it must be written, and the pattern of each region's numbers."""
    lines: dict[str, None] = {}
    for region in sorted(peer.SUPPORTED_REGIONS):
        plan = peer.PhoneMetadata.metadata_for_region(region)
        pattern = plan.general_desc.national_number_pattern
        lines[f"{plan.country_code} {plan.national_prefix or '-'} {int(_must_have_prefix(plan))} {pattern}"] = None
    head = (
        "# Country code, national prefix (- if there is none), whether it must be written (1 or 0), and pattern of a\n"
        f"# national number of each plan. From the metadata of libphonenumber by phonenumbers {peer.__version__}\n"
        "# (Apache License 2.0), by `python -m benchmarks.telephones plans`.\n"
    )
    file.write_text(head + "".join(f"{line}\n" for line in lines), "utf-8")


def write_forms(peer: Any, file: Path) -> None:
    """Write top-level domain, languages, national prefix, whether it must be written, groups and pattern of each."""
    head = (
        "# Region (as a top-level domain), its languages, national prefix (- if there is none), whether it must be\n"
        "# written (1 or 0), sizes of the groups of digits after it, and pattern of a number of any kind. From the\n"
        f"# metadata of libphonenumber by phonenumbers {peer.__version__} (Apache License 2.0), by\n"
        "# `python -m benchmarks.telephones plans`.\n"
    )
    lines = []
    for region, languages in LANGUAGES.items():
        plan = peer.PhoneMetadata.metadata_for_region(region)
        top = "uk" if region == "GB" else region.lower()
        groups = ";".join(dict.fromkeys(_sizes(form.pattern) for form in _ways_of_writing(plan)))
        written = f"{plan.national_prefix or '-'} {int(_is_dialled_with_prefix(peer, region, plan))} {groups}"
        lines.append(f"{top} {languages.replace(' ', ',')} {written} {_of_any_kind(plan)}\n")
    file.write_text(head + "".join(lines), "utf-8")


def _ways_of_writing(plan: Any) -> list[Any]:
    """Return the formats of a plan that divide a number, with those that people also use."""
    name = f"alt_format_{plan.country_code}"
    try:
        others = getattr(import_module(f"phonenumbers.data.{name}"), f"PHONE_{name.upper()}")
    except ModuleNotFoundError:
        others = []
    return [form for form in (*plan.number_format, *others) if form.pattern.count("(") > 1]


def _sizes(pattern: str) -> str:
    """Return the sizes of a format's groups, as in `3-3,4`."""
    return "-".join(re.sub(r"\\d|[{}]", "", group) or "1" for group in re.findall(r"\((.*?)\)", pattern))


def _must_have_prefix(plan: Any) -> bool:
    rules = [form.national_prefix_formatting_rule or "" for form in plan.number_format]
    is_optional = any(form.national_prefix_optional_when_formatting for form in plan.number_format)
    return plan.national_prefix == "0" and not is_optional and any(rule[:1] in ("0", "$") for rule in rules)


def _is_dialled_with_prefix(peer: Any, region: str, plan: Any) -> bool:
    """Whether the national prefix stands before landline and mobile numbers of a region as they are written in it."""
    kinds = peer.PhoneNumberType.FIXED_LINE, peer.PhoneNumberType.MOBILE
    examples = [peer.example_number_for_type(region, kind) for kind in kinds]
    written = [peer.format_number(number, peer.PhoneNumberFormat.NATIONAL) for number in examples]
    return _must_have_prefix(plan) and all(text.lstrip("(").startswith(plan.national_prefix) for text in written)


def _of_any_kind(plan: Any) -> str:
    kinds = (plan.fixed_line, plan.mobile, plan.toll_free, plan.shared_cost, plan.premium_rate, plan.voip, plan.uan)
    patterns = (kind.national_number_pattern for kind in kinds if kind)
    return "|".join(dict.fromkeys(pattern for pattern in patterns if pattern))


def main() -> None:
    """Print the figures of sentences or of real lines, or write the table of numbering plans anew."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=("sentences", "drawn", "lines", "plans"))
    parser.add_argument("--seed", type=int, default=1, help="of the drawn numbers")
    parser.add_argument("--peers", help="site-packages with phonenumbers")
    options = parser.parse_args()
    if options.part == "sentences":
        sys.exit(not print_sentences())
    if not options.peers:
        parser.error(f"{options.part} needs --peers")
    sys.path.append(options.peers)
    import phonenumbers

    if options.part == "plans":
        lists = Path(personal_data.__file__).parent / "lists"
        write_plans(phonenumbers, lists / "telephone_plans.txt")
        write_forms(phonenumbers, lists / "telephone_forms.txt")
    elif options.part == "drawn":
        print_drawn(phonenumbers, options.seed)
    else:
        print_lines(phonenumbers)


if __name__ == "__main__":
    main()
