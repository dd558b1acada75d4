"""Personal data of every type, planted in sentences and in code, and what looks like it and is not.

Check digits are computed here on their own, by the rules that their issuers publish. Beside the kitchen's makers stand
national ids (those of Italy and India only as published examples, in `test_personal_data.py`), secrets in code, and
further forms of the other types.
"""

import base64
import random
import string
from collections.abc import Callable, Iterator

from training.data.kitchen import personal

LETTERS = string.ascii_letters + string.digits
WEIGHTS = {"pesel": (1, 3, 7, 9, 1, 3, 7, 9, 1, 3), "bsn": (9, 8, 7, 6, 5, 4, 3, 2)}


def _digits(rng: random.Random, count: int) -> str:
    return "".join(rng.choice(string.digits) for _ in range(count))


def _signs(rng: random.Random, count: int, signs: str = LETTERS) -> str:
    return "".join(rng.choice(signs) for _ in range(count))


def _weighted(digits: str, weights: tuple[int, ...]) -> int:
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=True))


def _day(rng: random.Random, form: str) -> str:
    return form.format(d=f"{rng.randrange(1, 29):02d}", m=f"{rng.randrange(1, 13):02d}", y=_digits(rng, 2))


def spanish(rng: random.Random, wrong: int = 0) -> str:
    number = _digits(rng, 8)
    return number + "TRWAGMYFPDXBNJZSQVHLCKE"[(int(number) + wrong) % 23]


def french(rng: random.Random, wrong: int = 0) -> str:
    number = rng.choice("12") + _day(rng, "{y}{m}") + f"{rng.randrange(1, 96):02d}" + _digits(rng, 6)
    key = f"{(97 - int(number) % 97 + wrong - 1) % 97 + 1:02d}"
    parts = (number[0], number[1:3], number[3:5], number[5:7], number[7:10], number[10:], key)
    return rng.choice(("", " ")).join(parts)


def finnish(rng: random.Random, wrong: int = 0) -> str:
    day, number = _day(rng, "{d}{m}{y}"), _digits(rng, 3)
    return f"{day}-{number}{'0123456789ABCDEFHJKLMNPRSTUVWXY'[(int(day + number) + wrong) % 31]}"


def belgian(rng: random.Random, wrong: int = 0) -> str:
    day, number = _day(rng, "{y}.{m}.{d}"), _digits(rng, 3)
    return f"{day}-{number}.{(97 - int(day.replace('.', '') + number) % 97 + wrong - 1) % 97 + 1:02d}"


def brazilian(rng: random.Random, wrong: int = 0) -> str:
    digits = _digits(rng, 9)
    for first in (10, 11):
        rest = _weighted(digits, tuple(range(first, 1, -1))) % 11
        digits += str(0 if rest < 2 else 11 - rest)
    digits = digits[:10] + str((int(digits[10]) + wrong) % 10)
    return f"{digits[:3]}.{digits[3:6]}.{digits[6:9]}-{digits[9:]}"


def polish(rng: random.Random, wrong: int = 0) -> str:
    number = _day(rng, "{y}{m}{d}") + _digits(rng, 4)
    return f"{number}{(wrong - _weighted(number, WEIGHTS['pesel'])) % 10}"


def dutch(rng: random.Random, wrong: int = 0) -> str:
    while True:
        number = str(rng.randrange(1, 10)) + _digits(rng, 7)
        if (rest := _weighted(number, WEIGHTS["bsn"]) % 11) < 10:  # others are not given out
            return f"{number}{(rest + wrong) % 10}"


def swedish(rng: random.Random, wrong: int = 0) -> str:
    number = _day(rng, "{y}{m}{d}") + _digits(rng, 3)
    return f"{number[:6]}-{number[6:]}{(int(personal.luhn_digit(number)) + wrong) % 10}"


def american(rng: random.Random, wrong: int = 0) -> str:
    area = f"{rng.randrange(900, 1000) if wrong else rng.randrange(1, 666):03d}"
    return f"{area}-{rng.randrange(1, 100):02d}-{rng.randrange(1, 10_000):04d}"


def german(rng: random.Random, wrong: int = 0) -> str:
    """ISO 7064, modulo 11, 10: the digit with which the whole number gives 1."""
    number = str(rng.randrange(1, 10)) + _digits(rng, 9)

    def rest(digits: str) -> int:
        product = 10
        for digit in digits[:-1]:
            product = ((product + int(digit)) % 10 or 10) * 2 % 11
        return (product + int(digits[-1])) % 10

    right = next(digit for digit in range(10) if rest(f"{number}{digit}") == 1)
    return f"{number}{(right + wrong) % 10}"


NATIONAL: dict[str, Callable[..., str]] = {
    "DNI {}": spanish,
    "born as {} in Lyon": french,
    "hetu {}": finnish,
    "the register has {} for her": belgian,
    "CPF {}": brazilian,
    "PESEL: {}": polish,
    "BSN {}": dutch,
    "personnummer {}": swedish,
    "his SSN is {}": american,
    "Steuer-ID: {}": german,
}


def national_id(rng: random.Random, wrong: int = 0) -> tuple[str, str]:
    """A text and the number in it; with `wrong` from 1 to 8 its check digit does not hold."""
    form = rng.choice(tuple(NATIONAL))
    value = NATIONAL[form](rng, wrong)
    return f"Somebody wrote down: {form.format(value)}, and forgot it.", value


def phone(rng: random.Random) -> tuple[str, str]:
    """Numbers as people in several countries write them."""
    value, before = rng.choice(
        (
            (f"+{rng.choice((33, 34, 39, 46))} {rng.randrange(1, 10)} {_digits(rng, 2)} {_digits(rng, 2)} 01 00", ""),
            (f"+49 (0){rng.randrange(20, 99)} {_digits(rng, 7)}", ""),
            (f"({rng.randrange(212, 300)}) 555-01{_digits(rng, 2)}", ""),
            (f"1-800-555-01{_digits(rng, 2)}", ""),
            (f"0{rng.randrange(20, 99)} {_digits(rng, 7)}", "tel. "),
            (f"020 7946 0{_digits(rng, 3)}", "phone: "),
        )
    )
    return f"Between nine and five you reach us, {before}{value}, also on Monday.", value


def ip(rng: random.Random) -> tuple[str, str]:
    if rng.random() < 0.5:
        value = f"2a0{rng.randrange(10)}:{_signs(rng, 3, '123456789abcdef')}0::{_signs(rng, 3, '123456789abcdef')}1"
    else:
        value = ".".join(str(rng.randrange(low, 224)) for low in (60, 20, 20, 1)).replace("127.", "128.", 1)
        value = value.replace("172.", "173.", 1).replace("100.", "101.", 1).replace("169.254", "169.253", 1)
        value = value.replace("192.", "193.", 1).replace("198.", "199.", 1).replace("203.0", "203.1", 1)
    return f"{value} - - [12/Mar/2021:10:01:12 +0000] GET /index.html", value


def email(rng: random.Random) -> tuple[str, str]:
    name = _signs(rng, rng.randrange(3, 12), string.ascii_lowercase)
    host = f"{_signs(rng, 6, string.ascii_lowercase)}.{rng.choice(('com', 'org', 'co.uk', 'de', 'museum'))}"
    value = rng.choice((f"{name}@{host}", f"{name}+list@mail.{host}", f"{name} [at] {host}", f"{name}-{name}@{host}"))
    return rng.choice(("<a href=mailto:{}>", "From: {}\nTo: all", "Maintainer is {} since March.")).format(value), value


def card(rng: random.Random) -> tuple[str, str]:
    prefix, length = rng.choice((("4", 16), ("52", 16), ("37", 15), ("6011", 16), ("3530", 16), ("36", 14)))
    digits = prefix + _digits(rng, length - 1 - len(prefix))
    digits += personal.luhn_digit(digits)
    parts = [digits[i : i + 4] for i in range(0, 16, 4)] if length == 16 else [digits]
    value = rng.choice((" ", "-", "")).join(parts)
    return f"Paid with {value}, thank you.", value


def iban(rng: random.Random) -> tuple[str, str]:
    country, account = rng.choice(
        (
            ("GB", _signs(rng, 4, string.ascii_uppercase) + _digits(rng, 14)),
            ("NL", _signs(rng, 4, string.ascii_uppercase) + _digits(rng, 10)),
            ("FR", _digits(rng, 20) + _signs(rng, 1, string.ascii_uppercase) + _digits(rng, 2)),
            ("CH", _digits(rng, 17)),
            ("NO", _digits(rng, 11)),
        )
    )
    whole = country + personal.iban_check_digits(country, account) + account
    value = rng.choice((whole, " ".join(whole[i : i + 4] for i in range(0, len(whole), 4))))
    return f"Rent goes to {value} before the third.", value


def api_key(rng: random.Random) -> tuple[str, str]:
    """A secret as it stands in code and configuration."""
    hexadecimal, mixed = _signs(rng, 32, "0123456789abcdef"), _signs(rng, 40, LETTERS + "+/")
    encoded = base64.b64encode(rng.randbytes(120)).decode()
    claims = [base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (b'{"alg":"HS256"}', b'{"sub":"42"}')]
    token = ".".join((*claims, _signs(rng, 43)))
    forms = {
        'API_KEY = "{}"': hexadecimal,
        "export AWS_SECRET_ACCESS_KEY={}": mixed,
        '  "client_secret": "{}",': _signs(rng, 32),
        "password: {}": _signs(rng, 20),
        "curl -H 'Authorization: Bearer {}' https://api.example.org": token,
        "engine = create_engine('postgres://shop:{}@db.example.org/shop')": _signs(rng, 14),
        "GITHUB_TOKEN=ghp_{}": _signs(rng, 36),
        'gitlab = Gitlab(private_token="glpat-{}")': _signs(rng, 20),
        'var key = "AIza{}";': _signs(rng, 35),
        'slack.WebClient("xoxb-{}")': f"{_digits(rng, 12)}-{_signs(rng, 24)}",
        "HF = 'hf_{}'": _signs(rng, 34, string.ascii_letters),
        "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----": encoded,
    }
    form = rng.choice(tuple(forms))
    return f"# settings\n{form.format(forms[form])}\nstart()\n", forms[form]


def _code(rng: random.Random) -> str:
    """Code with long values that are no secrets."""
    hexadecimal = _signs(rng, 64, "0123456789abcdef")
    forms = (
        f"commit {hexadecimal[:40]}\nAuthor: nobody",
        f"FROM python@sha256:{hexadecimal}",
        f'<script integrity="sha384-{_signs(rng, 64)}"></script>',
        f"ETag: {hexadecimal[:32]}",
        f"id: {hexadecimal[:8]}-{hexadecimal[8:12]}-4{hexadecimal[12:15]}-a{hexadecimal[15:18]}-{hexadecimal[18:30]}",
        "password = getpass.getpass(prompt)",
        "token = self.tokens[position_of_the_token]",
        "sorted(rows, key=operator.itemgetter('created'))",
        "color: #a3f; background: url(/static/img/logo@2x.png);",
        f"for i in range({rng.randrange(10**9)}): total += {rng.random()}",
    )
    return rng.choice(forms)


FURTHER = {
    "email": email,
    "phone": phone,
    "ip": ip,
    "card": card,
    "iban": iban,
    "api_key": api_key,
    "national_id": national_id,
}
OF_KITCHEN = {"key": "api_key"}


def planted(rounds: int) -> Iterator[tuple[str, str, str]]:
    """(type, text, the value in it), as many of each form; the type is "" for what only looks like personal data."""
    for seed in range(rounds):
        for kind in (*personal.MAKERS, *personal.DECOYS):
            text, value = personal.sentence_with(kind, random.Random(f"{kind}{seed}"))
            yield "" if kind in personal.DECOYS else OF_KITCHEN.get(kind, kind), text, value
        for kind, make in FURTHER.items():
            yield kind, *make(random.Random(f"further {kind}{seed}"))
        rng = random.Random(f"looks like it {seed}")
        yield "", *national_id(rng, rng.randrange(1, 9))
        yield "", _code(rng), ""
