"""`pedigree takedown` and `pedigree trace` on a small root whose pages have addresses in many spellings."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.small_kitchen import pedigree
from tests.training.data.test_address_lists import DOMAINS, OF_DOMAINS, OF_URLS, OTHERS, URLS
from training.data.documents import read_documents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
EVERY = (*OF_DOMAINS, *OF_URLS, *OTHERS)
WHY = ("--reason", "asked by its owner", "--dry-run")
RECIPE = """\
extends: base
name: spellings
snapshots: [{{name: one, source: jsonl, paths: ["{folder}/pages.jsonl"]}}]
filter: {{rules: [], languages: [], personal_data: []}}
tokenizer: {{vocabulary: 512, min_bytes_per_token: 1.0}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A root with the index of these pages."""
    folder = tmp_path_factory.mktemp("spellings")
    words = [f"{random.Random(number).getrandbits(32):x}" for number in range(500)]
    texts = [" ".join(random.Random(url).choices(words, k=60)) for url in EVERY]
    rows = [{"url": url, "text": text} for url, text in zip(EVERY, texts, strict=True)]
    (folder / "pages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (folder / "spellings.yaml").write_text(RECIPE.format(folder=folder), "utf-8")
    ran = pedigree("run", str(folder / "spellings.yaml"), "--until", "provenance_index", root=folder / "root")
    assert ran.code == 0, ran.errors
    return folder / "root"


def pages(place: Path, *asked: str) -> int:
    ran = pedigree("takedown", *asked, *WHY, root=place)
    assert ran.code == 0, ran.errors
    return ran.answer["pages"]


def test_a_list_withdraws_each_page_in_each_spelling_and_no_other(place):
    (place / "list.txt").write_text("".join(f"{entry}\n" for entry in (*DOMAINS, *URLS)), "utf-8")
    assert pages(place, "--list", str(place / "list.txt")) == len(OF_DOMAINS) + len(OF_URLS)
    (place / "list.txt").write_text("https://caf\u00e9.test/men\u00fc\nexample.com\nhttps://\n*\n", "utf-8")
    refused = pedigree("takedown", "--list", str(place / "list.txt"), *WHY, root=place)
    assert refused.code == 2 and "2 bad lines" in refused.errors
    assert "line 3: 'https://': is no domain; write example.org" in refused.errors


@pytest.mark.parametrize(
    ("domain", "count"),
    [("stra\u00dfe.example", 2), ("XN--STRAE-oqa.example.", 2), ("strasse.example", 1), ("fa\u00df.example", 1),
     ("fass.example", 1), ("*.wild.test", 2), ("https://fourth.test", 2), ("me.github.io", 1), ("github.io", 1)],
)  # fmt: skip
def test_a_domain_names_the_pages_of_its_owner_alone(place, domain, count):
    assert pages(place, "--domain", domain) == count
    if not domain.isascii():
        assert pedigree("trace", "spellings", "--domain", domain, root=place).answer["num_pages"] == count


@pytest.mark.parametrize("url", ["http://news.test/a?y=2&x=1", "http:\\\\NEWS.test/%61?x=1&y=2#x"])
def test_a_page_is_withdrawn_and_traced_by_each_spelling(place, url):
    assert pages(place, "--url", url) == 2
    assert len(pedigree("trace", "spellings", "--url", url, root=place).answer["pages"]) == 2


@pytest.mark.parametrize("domain", ["https://", "*", "", "co.uk", "*.co.uk", "a..example", "example.com:8080"])
def test_what_names_no_owner_is_refused_in_one_sentence(place, domain):
    refused = pedigree("takedown", "--domain", domain, *WHY, root=place)
    (sentence,) = refused.errors.strip().splitlines()
    assert refused.code == 2 and (not domain or repr(domain) in sentence or "co.uk: is a public suffix" in sentence)


def test_a_folder_and_a_domain_are_withdrawn_for_good_and_their_neighbours_stay(place):
    (place / "list.txt").write_text("http://shop.test/private/\nstra\u00dfe.example\n", "utf-8")
    ran = pedigree("takedown", "--list", str(place / "list.txt"), "--reason", "asked", "--yes", root=place)
    assert ran.code == 0 and ran.answer["report"]["proof"]["is_proved"], ran.errors
    gone = {*OF_URLS[:7], "http://Stra\u00dfe.example/", "http://xn--strae-oqa.example/"}
    (reference,) = (place / "refs" / "extracted_documents").glob("*.json")
    folder = place / "extracted_documents" / json.loads(reference.read_text("utf-8"))["fingerprint"]
    kept = [row["url"] for path in folder.glob("documents/*.parquet") for row in read_documents(path, ("url",))]
    assert kept == [url for url in EVERY if url not in gone]
