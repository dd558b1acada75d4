"""Measure what the filter finds of telephone numbers in sentences, by locale: the figures of docs/filters.md.

    PEDIGREE_DATA=… python -m benchmarks.telephones measure --peers VENV/lib/python3.11/site-packages
    python -m benchmarks.telephones plans --peers VENV/lib/python3.11/site-packages

`--peers` is a folder with phonenumbers, which is not among the project's packages. `measure` writes numbers of each
locale, drawn around the examples of fixed and mobile lines, into sentences of its language: in the national form behind
a word, and in the international form (recall). It counts what is replaced in lines of real pages and texts that hold
digits and no number that phonenumbers finds (precision: planted numbers of all that was replaced). `plans` writes
`training/data/filter/lists/telephone_plans.txt` anew.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.data.extract.extract import documents_of
from training.data.extract.settings import ExtractRecipe
from training.data.filter import personal_data
from training.data.sources import read_rows, resolve

SENTENCES = {
    "US": ("If the parcel is late, please telephone {} and ask for a clerk.", "Her cell phone is {}, leave a message."),
    "GB": ("To book a table, phone us on {} by Thursday.", "My mobile number is {} if you get lost."),
    "DE": ("Den Notdienst erreichen Sie telefonisch unter {}.", "Meine Handynummer lautet {}, melde dich."),
    "AT": ("Tischreservierung: Telefonnummer {}.", "Mobilnummer: {}, jederzeit."),
    "CH": ("Bei Fragen: Tel. {} (Empfang).", "Natel {}, Herr Keller."),
    "FR": ("Appelez le secrétariat au téléphone {} avant midi.", "Mobile : {}, laissez un message."),
    "ES": ("Para pedir cita llame al teléfono {} antes de las dos.", "Mi número de móvil es {}, avísame."),
    "MX": ("Pedidos por teléfono: {} todo el día.", "Su celular es {}, puede marcarle."),
    "IT": ("Per un appuntamento chiamare il numero di telefono {}.", "Il mio cellulare è {}, scrivimi."),
    "PT": ("Para encomendas ligue para o telefone n.º {}.", "O meu telemóvel é {}, liga-me."),
    "BR": ("Dúvidas? Tel.: {} em horário comercial.", "WhatsApp: {}, responda logo."),
    "NL": ("Voor vragen belt u telefoonnummer {}.", "Mijn mobiele nummer is {}."),
    "BE": ("Bestellen kan op het telefoonnummer {}.", "GSM-nummer: {}, vraag naar Els."),
    "SE": ("Kundtjänst nås på tel {} hela dagen.", "Mitt mobilnummer är {}, ring gärna."),
    "NO": ("Kundeservice har telefonnummer {}.", "Mobilnr. {}, send melding."),
    "DK": ("Kundeservice har telefonnummer {}.", "Mobilnr.: {}, send en besked."),
    "FI": ("Asiakaspalvelun puhelinnumero on {}.", "Kännykkä: {}, soita illalla."),
    "PL": ("Zamówienia przyjmujemy pod numerem telefonu {}.", "Telefon komórkowy: {}, wieczorem."),
    "CZ": ("Rezervace na telefonním čísle {}.", "Mobilní telefon: {}, zavolejte."),
    "HU": ("Ügyfélszolgálat telefonszáma: {}.", "Mobiltelefon: {}, hívjon este."),
    "RO": ("Comenzi la numărul de telefon {}.", "Nr. de mobil: {}, sunați seara."),
    "GR": ("Παραγγελίες στο τηλέφωνο: {}.", "Το κινητό μου είναι {}."),
    "TR": ("Sipariş için telefon numarası: {}.", "Cep tel: {}, beni arayın."),
    "RU": ("Заказы принимаем по номеру телефона {}.", "Сотовый: {}, звоните вечером."),
    "UA": ("Замовлення за номером телефону {}.", "Мобільний телефон: {}, дзвоніть."),
    "IN": ("Customer care number: phone {} (toll).", "WhatsApp me on {}, thanks."),
    "JP": ("受付の電話番号は{}です。", "携帯電話：{}（夜間）"),
    "CN": ("客服电话 {}，全天。", "我的手机号是{}，谢谢。"),
    "KR": ("고객센터 전화 {} 입니다.", "휴대전화: {} 로 연락주세요."),
}
"""A sentence for a fixed line and one for a mobile one, by region. Once rules are changed by it, write another."""

NUMBERS = 20  # of each locale and kind of line
SEED = 46


def numbers_of(peer: Any, region: str, kind: int, rng: random.Random) -> list[Any]:
    """Return valid numbers of a kind of line: the example's, with other digits at its end."""
    example = peer.example_number_for_type(region, kind)
    digits, found = str(example.national_number), [example]
    for _ in range(40 * NUMBERS):
        number = type(example)(
            country_code=example.country_code,
            national_number=int(digits[:-6] + "".join(rng.choices("0123456789", k=6))),
            italian_leading_zero=example.italian_leading_zero,
        )
        if peer.is_valid_number(number) and number not in found:
            found.append(number)
        if len(found) == NUMBERS:
            break
    return found


def planted(peer: Any, region: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield texts with one number each, and that number as it is written."""
    kinds, forms = peer.PhoneNumberType, peer.PhoneNumberFormat
    for kind, sentence in zip((kinds.FIXED_LINE, kinds.MOBILE), SENTENCES[region], strict=True):
        for number in numbers_of(peer, region, kind, rng):
            national = peer.format_number(number, forms.NATIONAL)
            for form in (national, re.sub(r"[ \-]", ".", national), peer.format_number(number, forms.INTERNATIONAL)):
                yield sentence.format(form), form
            yield f"{peer.format_number(number, forms.E164)} 24h", peer.format_number(number, forms.E164)


def is_found(text: str, number: str) -> bool:
    """Whether no four digits of the number are left in its text."""
    left = re.sub(r"\D", "", personal_data.redact(text, ("phone",))[0].replace("24h", ""))
    return len(left) < 4 and number not in left


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


def measure(peer: Any) -> bool:
    """Print recall by locale, and precision over all; return whether both reach the goal."""
    found = missed = 0
    print(f"{'locale':8}{'numbers':>8}{'found':>7}{'recall':>8}")
    for region in SENTENCES:
        texts = list(planted(peer, region, random.Random(f"{SEED} {region}")))
        lost = [(text, number) for text, number in texts if not is_found(text, number)]
        found, missed = found + len(texts) - len(lost), missed + len(lost)
        print(f"{region:8}{len(texts):8}{len(texts) - len(lost):7}{1 - len(lost) / len(texts):8.3f}", *lost[:2])
    lines = list(innocent(peer))
    wrong = [line for line in lines if personal_data.redact(line, ("phone",))[1]]
    recall, precision = found / (found + missed), found / (found + len(wrong))
    print(f"recall {recall:.4f} of {found + missed} numbers of {len(SENTENCES)} locales")
    print(f"replaced in {len(wrong)} of {len(lines)} lines with digits and no number; precision {precision:.4f}")
    for line in wrong[:20]:
        print("  wrong:", line[:160])
    return recall >= 0.99 and precision >= 0.97


def write_plans(peer: Any, file: Path) -> None:
    """Write country code, national prefix, whether it must be written, and the pattern of each region's numbers."""
    lines: dict[str, None] = {}
    for region in sorted(peer.SUPPORTED_REGIONS):
        plan = peer.PhoneMetadata.metadata_for_region(region)
        rules = [form.national_prefix_formatting_rule or "" for form in plan.number_format]
        is_optional = any(form.national_prefix_optional_when_formatting for form in plan.number_format)
        must = plan.national_prefix == "0" and not is_optional and any(rule[:1] in ("0", "$") for rule in rules)
        pattern = plan.general_desc.national_number_pattern
        lines[f"{plan.country_code} {plan.national_prefix or '-'} {int(must)} {pattern}"] = None
    head = (
        "# Country code, national prefix (- if there is none), whether it must be written (1 or 0), and pattern of a\n"
        f"# national number of each plan. From the metadata of libphonenumber by phonenumbers {peer.__version__}\n"
        "# (Apache License 2.0), by `python -m benchmarks.telephones plans`.\n"
    )
    file.write_text(head + "".join(f"{line}\n" for line in lines), "utf-8")


def main() -> None:
    """Measure recall and precision, or write the table of plans anew, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=("measure", "plans"))
    parser.add_argument("--peers", required=True, help="site-packages with phonenumbers")
    options = parser.parse_args()
    sys.path.append(options.peers)
    import phonenumbers

    if options.part == "plans":
        write_plans(phonenumbers, Path(personal_data.__file__).parent / "lists" / "telephone_plans.txt")
    elif not measure(phonenumbers):
        sys.exit(1)


if __name__ == "__main__":
    main()
