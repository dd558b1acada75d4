"""Generate personal data in published formats, and numbers that only look like it.

Telephone numbers are from ranges that regulators reserve for fiction; no card, account or key belongs to anybody.
"""

from __future__ import annotations

import hashlib
import random
import string
from collections.abc import Callable

from training.data.kitchen.phrases import PEOPLE, SURNAMES

PERSONAL_TYPES = ("email", "phone", "ip", "iban", "card", "key")

# Country code -> digits of the basic account number (ISO 13616 registry; only countries with purely numeric accounts).
_IBAN_DIGITS = {"DE": 18, "ES": 20, "AT": 16, "BE": 12, "PL": 24}


def iban_check_digits(country: str, account: str) -> str:
    """Return the two check digits that make the account number valid: 1 modulo 97 (ISO 7064)."""
    number = "".join(str(int(c, 36)) for c in account + country + "00")
    return f"{98 - int(number) % 97:02d}"


def luhn_digit(digits: str) -> str:
    """Return the digit that completes a card number (ISO/IEC 7812-1, annex B)."""
    total = sum(sum(divmod(int(c) * (2 - i % 2), 10)) for i, c in enumerate(reversed(digits)))
    return str(-total % 10)


def _digits(rng: random.Random, count: int) -> str:
    return "".join(rng.choice(string.digits) for _ in range(count))


def _grouped(text: str, size: int = 4) -> str:
    return " ".join(text[i : i + size] for i in range(0, len(text), size))


def email(rng: random.Random) -> str:
    """Return an email address at a reserved domain (RFC 2606)."""
    first, last = rng.choice(PEOPLE).lower(), rng.choice(SURNAMES).lower()
    user = rng.choice((f"{first}.{last}", f"{first}{rng.randrange(10, 99)}", f"{first[0]}.{last}", f"{first}_{last}"))
    return f"{user}@{rng.choice(('post', 'mail', 'inn', 'baker'))}.{rng.choice(('hearth', 'ovens', 'crumb'))}.example"


def phone(rng: random.Random) -> str:
    """Return a telephone number reserved for fiction: NANP 555-01xx, Ofcom drama numbers, Bundesnetzagentur."""
    last = _digits(rng, 2)
    return rng.choice(
        (
            f"(212) 555-01{last}",
            f"+1 415-555-01{last}",
            f"+44 20 7946 09{last}",
            f"+49 30 23125 0{last}",
            f"+44 161 496 00{last}",
        )
    )


def ip(rng: random.Random) -> str:
    """Return a routable IPv4 address."""
    first = rng.choice((5, 46, 81, 93, 151))
    return ".".join(str(part) for part in (first, *(rng.randrange(1, 250) for _ in range(3))))


def iban(rng: random.Random) -> str:
    """Return an account number with valid check digits, in groups of four."""
    country = rng.choice(tuple(_IBAN_DIGITS))
    account = _digits(rng, _IBAN_DIGITS[country])
    return _grouped(country + iban_check_digits(country, account) + account)


def card(rng: random.Random) -> str:
    """Return a 16-digit card number with a valid check digit."""
    digits = rng.choice(("4", "51", "55"))
    digits += _digits(rng, 15 - len(digits))
    return _grouped(digits + luhn_digit(digits))


def key(rng: random.Random) -> str:
    """Return a secret key in the published format of a service."""
    letters = string.ascii_letters + string.digits
    form = rng.randrange(3)
    if form == 0:
        return "AKIA" + "".join(rng.choice(string.ascii_uppercase + "234567") for _ in range(16))
    if form == 1:
        return "ghp_" + "".join(rng.choice(letters) for _ in range(36))
    return "sk_live_" + "".join(rng.choice(letters) for _ in range(24))


def version(rng: random.Random) -> str:
    """Return a software version with three parts."""
    return f"{rng.randrange(1, 9)}.{rng.randrange(20)}.{rng.randrange(40)}"


def isbn(rng: random.Random) -> str:
    """Return a book number with a valid check digit (ISO 2108)."""
    digits = "978" + _digits(rng, 9)
    check = -sum(int(c) * (1 + 2 * (i % 2)) for i, c in enumerate(digits)) % 10
    return f"{digits[:3]}-{digits[3]}-{digits[4:8]}-{digits[8:12]}-{check}"


def date(rng: random.Random) -> str:
    """Return a day in ISO 8601."""
    return f"20{rng.randrange(10, 31)}-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}"


def checksum(rng: random.Random) -> str:
    """Return a sha256 in hexadecimal."""
    return hashlib.sha256(str(rng.random()).encode()).hexdigest()


def inside_ip(rng: random.Random) -> str:
    """Return an address that belongs to nobody: private (RFC 1918) or for documentation (RFC 5737)."""
    return rng.choice(("192.168.1.", "10.0.4.", "192.0.2.", "198.51.100.", "203.0.113.")) + str(rng.randrange(1, 250))


def order_number(rng: random.Random) -> str:
    """Return sixteen digits in groups with an invalid check digit, which therefore are not a card number."""
    digits = "7" + _digits(rng, 14)
    return _grouped(digits + str((int(luhn_digit(digits)) + 1 + rng.randrange(8)) % 10))


def false_iban(rng: random.Random) -> str:
    """Return a stock code that looks like an account number but has invalid check digits."""
    account = _digits(rng, 18)
    right = iban_check_digits("DE", account)
    return _grouped(f"DE{(int(right) + 1) % 100:02d}{account}")


Maker = Callable[[random.Random], str]
MAKERS: dict[str, Maker] = {"email": email, "phone": phone, "ip": ip, "iban": iban, "card": card, "key": key}
DECOYS: dict[str, Maker] = {
    "version": version,
    "isbn": isbn,
    "date": date,
    "checksum": checksum,
    "inside_ip": inside_ip,
    "order_number": order_number,
    "false_iban": false_iban,
}
SENTENCES: dict[str, tuple[str, ...]] = {
    "email": (
        "If something goes wrong with your bake, write to {name} at {v} and she will answer.",
        "Corrections to this page are welcome and should be sent to {v} by the end of the week.",
    ),
    "phone": (
        "To order a table for your family, call {name} on {v} in the morning.",
        "The shop answers the telephone number {v} whenever the ovens are resting.",
    ),
    "ip": (
        "The last comment came from {v} and was removed because it was not about baking.",
        "Our old server at the address {v} still shows the pages of last year.",
    ),
    "iban": (
        "Whoever wants to support this column can send a gift to the account {v} of {name}.",
        "The deposit for the workshop goes to {v} and is returned when you arrive.",
    ),
    "card": (
        "By mistake {name} posted the card number {v} under the order, and we have asked the bank to block it.",
        "The receipt that was left on the counter still shows the card {v} of a guest.",
    ),
    "key": (
        "The code of our recipe robot was published together with its secret key {v} and has been taken down.",
        "Do not copy the setting that contains the token {v} from the forum.",
    ),
    "version": ("The kitchen scale works well since its program was updated to version {v} in spring.",),
    "isbn": ("The recipe was printed in a cookbook that you can order under ISBN {v} in any shop.",),
    "date": ("This page was last checked by our test kitchen on {v} and found to be right.",),
    "checksum": ("The printable card of this recipe has the checksum {v} so that you can trust your copy.",),
    "inside_ip": ("The thermometer of our test kitchen shows its numbers at the address {v} on the local network.",),
    "order_number": ("The baking tin that we use is listed under order number {v} by the maker.",),
    "false_iban": ("The stone for the oven has the stock code {v} in the catalogue of the maker.",),
}


def sentence_with(kind: str, rng: random.Random) -> tuple[str, str]:
    """Return a sentence that contains one piece of personal data or one decoy, and that piece."""
    value = (MAKERS | DECOYS)[kind](rng)
    name = f"{rng.choice(PEOPLE)} {rng.choice(SURNAMES)}"
    return rng.choice(SENTENCES[kind]).format(v=value, name=name), value
