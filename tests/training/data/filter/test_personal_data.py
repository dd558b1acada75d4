import math
import random
import sys
from collections import Counter
from typing import Any

import pytest
import tldextract

from benchmarks.telephones import sentences
from tests.training.data.planted import planted
from training.data.filter import personal_data, telephones
from training.data.filter.judge import make_rules
from training.data.filter.personal_data import PLACEHOLDERS, iban_holds, luhn_holds, redact, verhoeff_holds
from training.data.filter.rule import Page
from training.data.filter.settings import FilterRecipe

KINDS = tuple(PLACEHOLDERS)

PLANTED = {
    "email": (
        "john.smith@gmail.com",
        "a_b+c@mail.co.uk",
        "x.y@uni-koeln.de",
        "jane [at] host [dot] org",
        "jane(at)host.org",
        "O.Brien-2@sub.host.example",
    ),
    "phone": (
        "+44 20 7946 0958",
        "+49 (0)30 1234567",
        "(212) 555-0187",
        "212-555-0187",
        "212.555.0187",
        "+1-202-555-0143",
        "+33 1 23 45 67 89",
        "+4915112345678",
        "1-800-555-0199",
        "0044 20 7946 0958",
        "+44 (0) 1632 960 983",
    ),
    "ip": ("84.23.17.201", "91.198.174.192", "2a00:1450:4001:81b::200e", "151.101.1.140", "151.101.1.6"),
    "card": (
        "4111 1111 1111 1111",
        "4111-1111-1111-1111",
        "4111111111111111",
        "5500 0000 0000 0004",
        "3782 822463 10005",
        "6011111111111117",
    ),
    "iban": (
        "DE89 3704 0044 0532 0130 00",
        "DE89370400440532013000",
        "GB29 NWBK 6016 1331 9268 19",
        "FR14 2004 1010 0505 0001 3M02 606",
        "NL91ABNA0417164300",
    ),
    "national_id": (  # published examples of Spain, Italy, France, Finland, Belgium, Brazil
        *("12345678Z", "X1234567L", "RSSMRA85T10A562S", "2 55 08 14 168 025 38", "255081416802538", "131052-308T"),
        *("85.07.30-033.28", "111.444.777-35", "529.982.247-25"),
    ),
    "api_key": (
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
        "xoxb-123456789012-abcdefGHIJ",
        "AIzaSyDaGmWKa4JsXZ-HjGw7ISLn_3namBGewQe",
        "sk-proj-abcDEF123456789012345",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\nabcd\n-----END RSA PRIVATE KEY-----",
    ),
}

NAMED = {
    "phone": (
        "Tel.: 030 1234567",
        "call 020 7946 0958",
        "Phone: 0171/1234567",
        "Fax 089 / 636-48018",
        "call us at 555-0134",
    ),
    "api_key": (
        "api_key = 'a8f5f167f44f4964e6c998dee827110c'",
        "token=9f86d081884c7d659a2feaa0c55ad015",
        "password: hX93kdLw02mmZq81",
        "postgres://bob:hunter22@db.host.example/x",
    ),
    "ip": ("from 8.8.8.8", "http://8.8.4.4/"),
    "national_id": (
        *("SSN 078-05-1120", "PESEL: 44051401359", "Steuer-ID 86095742719", "BSN 111222333"),
        *("personnummer 811228-9874", "Aadhaar number: 2341 2341 2346"),
    ),
}

HARD_NEGATIVES = (
    "version 1.2.3.4",
    "OpenSSL v1.0.2.10",
    "kernel 2.6.32.5",
    "git 2.20.1.155.g426c96fcdb",
    "ISBN 978-3-16-148410-0",
    "ISBN 0-306-40615-2",
    "2024-01-15 10:30:00",
    "01.02.2024",
    "call 2024-01-15",
    "2013-05-06 10:11:12 +0200",
    "192.168.1.10",
    "10.0.0.1",
    "127.0.0.1",
    "224.0.0.251",
    "203.0.113.7",
    "2001:db8::1",
    "2001:db00::/32",
    "sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
    "Section 4.3.2.1",
    "1.3.6.1.4.1.311",
    "12:34:56:78:9a:bc",
    "std::vector",
    "4111 1111 1111 1112",
    "1234 5678 9012 3456",
    "DE89 3704 0044 0532 0130 01",
    "logo@2x.png",
    "getty@tty1.service",
    "git@github.com:foo/bar.git",
    "https://user@host.example.org/path",
    "https://user:pass@example.org/",
    "@@ -1,3 +10,7 @@",
    "3.14159265358979",
    "Chrome/91.0.4472.124",
    "Firefox/3.6.10.1",
    "token = your_token_goes_here",
    "password_reset_token_generator",
    "10 20 30 40 50 60",
    "2^64 = 18446744073709551616",
    "EAN 4006381333931",
    "uuid 123e4567-e89b-12d3-a456-426614174000",
    "lat +51.5074, long -0.1278",
    "UTC+01:00",
    "12345678A",  # check digits that do not hold
    "RSSMRA85T10A562T",
    "131052-308U",
    "85.07.30-033.29",
    "111.444.777-36",
    "PESEL 44051401358",
    "Steuer-ID 86095742718",
    "BSN 111222334",
    "personnummer 811228-9875",
    "Aadhaar number: 2341 2341 2347",
    "SSN 000-05-1120",
    "078-05-1120",  # nothing says what it is
    "44051401359",
)


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in PLANTED.items() for value in values])
def test_personal_data_is_replaced_by_its_type_and_nothing_else_is(kind, value):
    assert redact(f"Ask for {value}, or not.", KINDS) == (f"Ask for {PLACEHOLDERS[kind]}, or not.", {kind: 1})


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in NAMED.items() for text in texts])
def test_what_is_ambiguous_alone_is_found_by_the_word_before_it(kind, text):
    redacted, counts = redact(f"Please {text} soon", KINDS)
    assert counts == {kind: 1} and PLACEHOLDERS[kind] in redacted


@pytest.mark.parametrize("text", HARD_NEGATIVES)
def test_versions_hashes_isbns_and_dates_stay(text):
    assert redact(f"See {text} for more", KINDS) == (f"See {text} for more", {})


FOUND_IN_OTHER_SCRIPTS = (
    ("phone", "お電話：03-1234-5678まで", "お電話：<PHONE>まで"),
    ("phone", "電話番号 03-1234-5678。", "電話番号 <PHONE>。"),
    ("phone", "手机：13800138000，谢谢", "手机：<PHONE>，谢谢"),
    ("phone", "联系电话010-62345678", "联系电话<PHONE>"),
    ("phone", "전화: 02-312-3456로", "전화: <PHONE>로"),
    ("phone", "Звоните 8 (495) 123-45-67.", "Звоните <PHONE>."),
    ("phone", "офис 8 (4852) 12-34-56", "офис <PHONE>"),
    ("phone", "бесплатно 8-800-555-35-35", "бесплатно <PHONE>"),
    ("phone", "тел.: 123-45-67", "тел.: <PHONE>"),
    ("phone", "τηλ. 210 1234567", "τηλ. <PHONE>"),
    ("phone", "国际+86 10 6234 5678或", "国际<PHONE>或"),
    ("ip", "login ip=1.2.3.4 ok", "login ip=<IP_ADDRESS> ok"),
    ("ip", "client_ip = '84.23.17.201'", "client_ip = '<IP_ADDRESS>'"),
    ("email", "an info@bäckerei-müller.de, bitte", "an <EMAIL>, bitte"),
    ("email", "an jürgen.groß@firma.example", "an <EMAIL>"),
    ("email", "почта: иван@пример.рф.", "почта: <EMAIL>."),
    ("email", "邮箱：a.b@例子.中国，", "邮箱：<EMAIL>，"),
    ("email", "写信到info@例子.cn谢谢", "写信到<EMAIL>谢谢"),
    ("email", "to me@xn--mnchen-3ya.xn--p1ai now", "to <EMAIL> now"),
    ("phone", "お電話：０３－１２３４－５６７８まで", "お電話：<PHONE>まで"),
    ("phone", "電話（０３）１２３４−５６７８", "電話<PHONE>"),
    ("phone", "TEL ０３ー１２３４ー５６７８", "TEL <PHONE>"),
    ("phone", "電話：03ー1234ー5678", "電話：<PHONE>"),
    ("phone", "国際＋８１　３　１２３４　５６７８", "国際<PHONE>"),
    ("phone", "هاتف: ٠١١ ٤٥٦ ٧٨٩٠", "هاتف: <PHONE>"),
    ("phone", "تلفن: ۰۲۱-۱۲۳۴۵۶۷۸", "تلفن: <PHONE>"),
    ("phone", "मोबाइल: ९८७६५ ४३२१०", "मोबाइल: <PHONE>"),
    ("card", "番号：４１１１　１１１１　１１１１　１１１１", "番号：<CARD_NUMBER>"),
    ("ip", "ip＝８．８．８．８", "ip＝<IP_ADDRESS>"),
    ("email", "宛先ｉｎｆｏ＠ｅｘａｍｐｌｅ．ｃｏｍまで", "宛先<EMAIL>まで"),
    ("email", "連絡先：info＠example.co.jp", "連絡先：<EMAIL>"),
    ("email", "邮箱：用户@例子.中国，", "邮箱：<EMAIL>，"),
    ("email", "邮箱 用户@例子.公司谢谢", "邮箱 <EMAIL>谢谢"),
    ("email", "राम@उदाहरण.भारत को", "<EMAIL> को"),
    ("email", "ईमेल: info@उदाहरण.भारत।", "ईमेल: <EMAIL>।"),
    ("email", "இந்த பயனர்@எடுத்துக்காட்டு.இந்தியா மூலம்", "இந்த <EMAIL> மூலம்"),
    ("email", "ติดต่อ ผู้ใช้@ตัวอย่าง.ไทย", "ติดต่อ <EMAIL>"),
    ("email", "메일 사용자@예시.한국으로", "메일 <EMAIL>으로"),
    ("email", "بريد user@مثال.موريتانيا", "بريد <EMAIL>"),
    ("email", "an info@firma.vermögensberatung", "an <EMAIL>"),
    ("email", "an info@firma.example [dot] dann weiter", "an <EMAIL> [dot] dann weiter"),
    ("iban", "konto de89 3704 0044 0532 0130 00", "konto <IBAN>"),
    ("iban", "konto nl91abna0417164300!", "konto <IBAN>!"),
)
NOT_IN_OTHER_SCRIPTS = (
    *(
        "電話番号は2024年10月12日",
        "手机价格：1299元",
        "电话会议 2024-01-15",
        "バージョン：1.2.3.4",
        "价格：13800138000.50",
    ),
    *(
        "ISBN：978-3-16-148410-0",
        "версия 8 (495) и 12",
        "8 (495) руб.",
        "цена 8 495 123 45 67",
        "глава 8-800",
        "тел. 2024-01-15",
    ),
    *("version=1.2.3.4", "pip==1.2.3.4", "zip=1.2.3.4", "ip=192.168.1.10", "ip=10.0.0.1", "ip=1.2.3"),
    *("版本@2x.图", "@пример.рф", "имя@пример", "ключ@версия.текст", "func@装饰器.名字"),
    *(
        "de89 3704 0044 0532 0130 01",
        "9b74c9897bac770ffc029102a200c5de",
        "de89370400440532013000x",
        "dE89370400440532013000",
    ),
    *(
        "價格：１２，３４５円",
        "電話番号は２０２４年１０月１２日",
        "ＩＳＢＮ９７８－３－１６－１４８４１０－０",
        "１２７．０．０．１",
    ),
    *("１２７．０．０．１", "@例子.中国", "第１章　１．２．３．４節", "राम@उदाहरण।", "भाव: १२,३४,५६७", "用户＠例子"),
    *("2026年11月23日 10:11:12", "¥1,234,567円", "第3章 1.2.3.4節", "ISBN 5-02-013850-9"),
)


def test_every_top_level_domain_in_other_letters_is_known():
    """The list of public suffixes in tldextract has them all, and nothing is fetched."""
    known = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None).tlds
    wide = {name for name in known if not name.isascii() and "." not in name}
    assert len(wide) > 100 and not wide - set(personal_data._WIDE_TOP)
    for name in sorted(wide):
        assert redact(f"to me@host.{name}, or", KINDS)[0] == "to <EMAIL>, or", name


def test_personal_data_is_found_in_other_scripts_and_nothing_else_is():
    for kind, text, redacted in FOUND_IN_OTHER_SCRIPTS:
        assert redact(text, KINDS) == (redacted, {kind: 1}), text
    for text in NOT_IN_OTHER_SCRIPTS:
        assert redact(text, KINDS) == (text, {}), text


def test_verhoeffs_digit_finds_every_wrong_digit_and_every_swap():
    assert verhoeff_holds("2363") and verhoeff_holds("123451")
    for place in range(4):
        changed = [f"{'2363'[:place]}{digit}{'2363'[place + 1 :]}" for digit in "0123456789"]
        assert sum(map(verhoeff_holds, changed)) == 1
    assert not any(map(verhoeff_holds, ("3263", "2633", "2336")))


def test_recall_and_precision_of_every_type_on_what_was_planted():
    number, found, others = Counter(), Counter(), Counter()
    for kind, text, value in planted(400):
        redacted, counts = redact(text, KINDS)
        if kind:
            number[kind] += 1
            right = counts.get(kind, 0) >= 1 and value not in redacted
            found[kind] += right
            others.update(Counter(counts) - Counter({kind: right}))
        else:
            others.update(counts)
    assert set(number) == set(KINDS) and min(number.values()) >= 400
    recall = {kind: found[kind] / number[kind] for kind in KINDS}
    precision = {kind: found[kind] / (found[kind] + others[kind]) for kind in KINDS}
    assert min(recall.values()) >= 0.99, recall
    assert min(precision.values()) >= 0.95, precision


def test_only_the_kinds_asked_for_are_replaced():
    text = "Write to a.b@c.example or call +44 20 7946 0958."
    assert redact(text, ("phone",)) == ("Write to a.b@c.example or call <PHONE>.", {"phone": 1})
    assert redact(text, ()) == (text, {})


def test_redacting_twice_changes_nothing_more():
    text = ";\n".join(value for values in (*PLANTED.values(), *NAMED.values()) for value in values)
    once, counts = redact(text, KINDS)
    assert sum(counts.values()) == sum(map(len, (*PLANTED.values(), *NAMED.values())))
    assert redact(once, KINDS) == (once, {})


def test_check_digits():
    assert luhn_holds("79927398713") and not luhn_holds("79927398710")
    assert iban_holds("GB82WEST12345698765432") and not iban_holds("GB82WEST12345698765433")
    assert not iban_holds("GB82WEST1234569876543")


def test_patterns_of_numbers_are_tried_only_near_digits_and_find_the_same():
    rng = random.Random(3)
    signs = "0123456789" * 2 + " +().-/\u00a0,a\n"
    texts = ["".join(rng.choice(signs) for _ in range(rng.randint(5, 80))) for _ in range(4000)]
    texts += [rng.choice(["call ", "tel: ", "ip ", "SSN "]) + text for text in texts]
    near = [
        (personal_data._CARD, personal_data._is_card),
        (personal_data._IPV4, personal_data._is_public_ipv4),
        (personal_data._NAMED_NATIONAL, personal_data._is_named_national),
    ]
    number = 0
    for text in texts[2000:6000]:
        found = list(telephones.find(text, personal_data._near_digits(text)))
        assert found == list(telephones.find(text, [(0, len(text))])), text
        number += len(found)
    for pattern, is_meant in near:
        everywhere, near_digits = (
            make(pattern, is_meant) for make in (personal_data._finding, personal_data._finding_numbers)
        )
        for text in texts:
            assert list(near_digits(text)) == list(everywhere(text)), (pattern.pattern, text)
            number += len(list(everywhere(text)))
    assert number > 200


def _calls(text: str) -> int:
    """Return how many Python functions are called, and generators resumed, while a text is redacted."""
    count = 0

    def counting(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        redact(text, KINDS)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("unit", ["+49 30 1234567, ", "tel 030 1234567 or ", "(415) 555-2671, ", "1 "])
def test_a_line_of_four_times_as_many_numbers_takes_four_times_the_work(unit):
    redact(unit * 8, KINDS)  # builds what is kept
    assert _calls(unit * 2000) < 5 * _calls(unit * 500)


def test_the_word_before_a_number_is_looked_for_once_for_all_its_ends():
    telephones._nearest.cache_clear()
    redact("1 2 3 4 5 6 7 8 9 10 11 12", KINDS)
    assert telephones._nearest.cache_info().misses == 1 < telephones._nearest.cache_info().hits


def test_a_private_key_without_an_end_hides_none_behind_it_and_is_read_once():
    begin, end = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
    key = f"{begin}\n{'MIIEvQIB' * 4}\n{end}"
    assert redact(f"{begin} cut {{}} {key}.", KINDS)[0] == f"{begin} cut {{}} <API_KEY>."
    assert redact(f"{begin} cut {key}.", KINDS)[0] == "<API_KEY>."
    text = begin * 100_000  # for minutes, if all that follows is read again behind each beginning
    assert redact(text, KINDS) == (text, {})


@pytest.mark.parametrize("unit", ["a(dot)", "a(at)", "x @ a.com-", "a at b dot com ", "a@b dot ", "@a", "%40"])
def test_text_near_many_signs_of_addresses_is_searched_once(unit):
    redact(unit * 50_000, KINDS)  # for minutes, if what lies around each sign is searched again


def test_what_lies_around_signs_that_are_near_each_other_is_one_part():
    text = " at a.com b" * 90 + "c " * 400 + " at d.org"
    parts = [(0, 990 - 2 + 200), (990 + 800 - 200, 990 + 800 + 9 + 200)]
    assert list(personal_data._around(personal_data._HAS_MAILED.finditer(text))) == parts


def test_the_entropy_of_a_secret_is_compared_exactly():
    """Eight characters equally often have exactly 3 bits each; otherwise the logarithms decide."""
    assert personal_data._has_bits("abcdefgh" * 5) and not personal_data._has_bits("abcdefgh" * 5 + "a")
    rng = random.Random(4)
    for _ in range(300):
        text = "".join(rng.choices("abcdefghijk", k=rng.randrange(16, 60)))
        entropy = -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())
        assert personal_data._has_bits(text) == (entropy >= 3 - 1e-12), text


TELEPHONES = (
    "Móvil 612 345 678", "Telefoon 06-12345678", "Tlf. 22 12 34 56", "Puh. 040 123 4567", "Mob. 9876543210",
    "Ruf: 089-12345678", "Port. : 06 12 34 56 78", "Mobil: 0 171 – 123 45 67", "tlf. 21.23.45.67", "+4930123456 24h",
    "هاتف: 02 34567890", "Mobil: 601 123 456", "Telp: (021) 8350123", "ĐT: 0912 345 678", "Cep: (0501) 234 56 78",
    "Кінець: тел. 050 123 4567", "https://wa.me/4915112345678?text=hi", "send?phone=%2B4915112345678",
    "Tel\n612 345 678", "tel:&#43;49&nbsp;30&nbsp;123456", "電話（03）1234-5678", "Tel.612345678", "TEL03-1234-5678",
    "(0211) 98 76 543", "Tel. 030 1234567 12:00-18:00", "Zadzwoń do nas! 612 345 678",
    "Tel. 030 1234567, Durchwahl 12", "010-1234-5678로 전화", "0532 765 43 21 numaralı telefon",
    "Phone:\u200e 612 345 678", "тел. 23-45-67", "القاهرة: 02-27654321، ", "04 78 62 13 45", "+39 5 12 24 01 00",
    "ring us on 020 7946 0958", "휴대폰 010-2000-0000",
)  # fmt: skip
NO_TELEPHONES = (
    "Revenue grew by +100 000 000 last year", "+12 345 678 % growth", "mobile 2019 2020 2021", "handy 100 200 300 400",
    "Cell 2 300 400 500 of the sheet", "the function call 12 34 56 78 90", "pages 212-555-0147",
    "sha1 4111111111111111", "ISBN 978-3-16-148410-0", "tel 2019-2020", "an order no. 212-555-0147", "+1000000000",
    "a ring 1 234 567 wide", "phone 1999/2000/2001", "in cell 12 345 678", "phones 2 000 000 sold", "(p. 201-216)",
    "01 02 03 04 05", "myURL.port = 10000000000", "NAS 046 454 286", "Zaaknummer 06/554433",
    "Tel Aviv 2019: 1 234 567", "GSM 900/1800", "0600 1200 1800", "IEEE Standard 1003.1-1990", "2005-06",
    "account 001-1234567-89", "10:20:0022.06.2018", "Telefone e CEP: 01310-100", "Cost of phone: 1 234 567",
)  # fmt: skip
ADDRESSES = (
    "john&#64;example.com", "j&#x40;x.org", "john%40example.com", "john at example dot com", "j AT mail DOT x DOT org",
    "john\\u0040example.com", "john&amp;#64;example.com", "jane dot doe at example dot com", "x@a dot museum",
    "info (ät) firma (punkt) de", "jan [@] firma.fi", "jan(a)firma.fi", "pepe arroba dominio punto es",
    "bob@host[.]com", "bob@host dot com", "ivan собака mail точка ru", "petr(zavináč)seznam.cz",
    "john [at] cs.stanford [dot] edu", "john@cs.stanford [dot] edu", "jo (at) a.b (punkt) uni.example [.] de",
    "иван@example.com [.] ru", "jane@münchen.de [dot] com", "_j@example.com [dot] net", "j@a.b.c.d.e.f.g.org [dot] net",
    "john.doe at gmail.com", "info @ firma.de", "redaktion [ad] firma.ch",
    "&#106;&#111;&#104;&#110;&#64;&#97;&#46;&#99;&#111;&#109;", "a.b&commat;x&period;co&period;uk",
)  # fmt: skip
NO_ADDRESSES = (
    "find us at example dot com", "https://x.org/%40scope/pkg", "look at it dot by dot", "look@me dot then",
    "&#64;media print", "the workers at the point of production", "bob at example.org said",
    "version 2.0 at example.com", "arr[at].x", "f(a).b",
)  # fmt: skip


@pytest.mark.parametrize("text", TELEPHONES)
def test_a_telephone_number_that_a_word_or_form_announces_is_replaced(text):
    assert redact(text, KINDS)[1] == {"phone": 1}


FORMED = (
    ("da", "Klaverstemmer på Amager, Søren {}.", "32 55 44 18"), ("pl", "Proszę dać znać Oli ({}).", "698-441-720"),
    ("it", "Ripetizioni, zona Prati, Chiara {}", "3394417820"), ("es", "hablar con Toño {}", "655 412 908"),
    ("fr", "laisser un message au {} ce soir", "0123408526"), ("ro", "Lăcătuș sector 3 {}", "021 344 18 20"),
    ("el", "Ο παπάς ({}) ανοίγει", "2821 044182"), ("da", "skriv til Mads ({}).", "2844 1790"),
    ("en", "Stairlifts from £695, {}, all week.", "0800 028 4417"),
)  # fmt: skip
UNFORMED = (
    ("es", "Brasil 211 049 527, China 1 411 778 724"), ("pl", "ma 698 441 720 obywateli"), ("da", "id = 32554418"),
    ("da", "Dato (20190312)"), ("en", "ip_address(3221225985)"), ("id", "Suku cadang 0812-441-82 cocok untuk"),
    ("zh", "范围: 192.168.11.100"), ("hu", "Kis Gergely (1768-1787) a régi"), ("cs", "Katalog 566-3120-47, cena"),
    ("uk", "УКПО 0671234567, адреса"), ("es", "Pedido 655412908, fecha"),
)  # fmt: skip


@pytest.mark.parametrize(("language", "text", "number"), FORMED)
def test_a_number_in_a_form_of_the_countries_of_its_language_needs_no_word(language, text, number):
    whole = text.format(number)
    assert redact(whole, ("phone",), language=language) == (text.format("<PHONE>"), {"phone": 1})
    assert redact(whole, ("phone",), language="th")[1] == {}


@pytest.mark.parametrize(("language", "text"), UNFORMED)
def test_amounts_days_and_values_in_a_form_of_the_language_stay(language, text):
    assert redact(text, ("phone",), language=language) == (text, {})


def test_the_host_of_a_page_tells_its_country_too():
    text = "Piano tuner, Mads 32 55 44 18."
    assert redact(text, ("phone",), language="th", url="https://x.dk/a")[1] == {"phone": 1}
    assert redact(text, ("phone",), language="th", url="https://x.com/a.dk")[1] == {}


@pytest.mark.parametrize(("language", "url"), [("da", "https://x.com/"), ("en", "https://x.dk/"), ("en", "")])
def test_the_rule_reads_numbers_by_the_language_and_the_address_of_the_page(language, url):
    page = Page(text="Mads, 32 55 44 18.", url=url, columns={"language": language})
    (rule,) = make_rules(FilterRecipe(rules=("personal_data",)), None)
    rule.measure(page)
    assert page.text == ("Mads, <PHONE>." if url else "Mads, 32 55 44 18.")


@pytest.mark.parametrize("extension", [", Durchwahl 12", " ext. 12", " доб. 105", "转12", " (app 3)", "#12"])
def test_an_extension_goes_with_its_number(extension):
    assert redact(f"Tel. 030 1234567{extension}.", KINDS)[0] == "Tel. <PHONE>."


@pytest.mark.parametrize("text", [*NO_TELEPHONES, *NO_ADDRESSES])
def test_a_number_or_text_of_another_meaning_stays(text):
    assert redact(text, KINDS) == (text, {})


@pytest.mark.parametrize("text", ADDRESSES)
def test_an_address_is_found_in_entities_percent_encoding_and_words(text):
    assert redact(f"Write to {text}, please.", KINDS) == ("Write to <EMAIL>, please.", {"email": 1})


@pytest.mark.parametrize("text", ["j [at] x [dot] edu{}", "j@x [dot] edu{}", "j (at) cs.x (dot) co (dot) uk{}"])
def test_an_address_in_words_ends_with_a_top_level_domain(text):
    assert redact(text.format(" [dot] then"), ("email",)) == ("<EMAIL> [dot] then", {"email": 1})
    assert redact(text.format(" (dot) Thanks"), ("email",)) == ("<EMAIL> (dot) Thanks", {"email": 1})


@pytest.mark.parametrize("address", ["jane.doe at mail.example.community", "jane.doe at mail.example.com"])
def test_an_address_is_whole_or_stays_however_far_it_lies_behind_another(address):
    alone = redact(f"{address} and more", {"email"})[0]
    for length in range(160, 190):
        text = f"a.b at c.com {'x ' * 200}"[:length]
        assert redact(f"{text} {address} and more", {"email"})[0] == f"{redact(text, {'email'})[0]} {alone}"


def test_telephone_numbers_of_sixty_locales_are_found_and_other_numbers_stay():
    for name, locales in sentences().items():
        numbers, found, wrong = locales["all"]
        assert found / numbers >= 0.99 and found / (found + wrong) >= 0.97, name
