"""What a person may ask `pedigree takedown` to withdraw, and what is refused."""

from __future__ import annotations

import pytest

from assets.answers.takedown import takedown
from assets.answers.takedown.lines import seed_lines
from assets.answers.takedown.takedown import asked_of, check_nobody_writes, withdraw
from assets.commands.cli import app
from assets.state import removal_lock as undisturbed
from assets.state.tombstones import read_tombstones
from resources.profile import load_profile
from resources.tracking.reports import Tracking
from training.contract.artifact import commit_record, digest_of_files
from training.contract.files.writing import write_json
from training.contract.job import DataError
from training.contract.running.lease import Lease
from training.data.address_lists import target_of, target_of_line
from training.data.extract.collection import OTHERS, SEEDS
from training.data.extract.terms import parse_list

PAGE = "https://example.org/a/b"


def asked(*, url="", domain="", document="", file=None, reason="its author asked"):
    return asked_of(url=url, domain=domain, document=document, file=file, reason=reason)


@pytest.mark.parametrize(
    "spelling",
    [
        PAGE,
        "http://www.example.org/a/b/",
        "HTTPS://Example.ORG:443/a/b#part",
        "https://someone@example.org/a/./c/../b",
        "example.org/%61/b",
    ],
)
def test_five_spellings_of_an_address_are_one_entry_that_matches_the_page(spelling):
    (target,) = asked(url=spelling).targets
    assert target.entry == "=org,example)/a/b"
    assert parse_list([f"{target.entry}\tx"]).find(PAGE) == "x"
    assert parse_list([target.entry]).find("https://example.org/a/b/c") is None


def test_the_entry_of_a_domain_matches_the_hosts_below_it_and_no_other():
    found = parse_list([asked(domain="https://www.example.org/").targets[0].entry])
    assert all(found.find(url) == "" for url in ("http://example.org", "https://a.b.example.org/x?y=1"))
    assert all(found.find(url) is None for url in ("http://example.org.uk/", "http://myexample.org/", "mailto:x"))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"domain": "co.uk"}, "is a public suffix"),
        ({"domain": "co.uk"}, "is a public suffix"),
        ({"domain": "two words"}, "is no domain"),
        ({"domain": "https://example.org/page"}, "is no domain"),
        ({"url": "no address"}, "is no address"),
        ({"document": "7"}, "is no document's id"),
        ({}, "give one of"),
        ({"url": PAGE, "domain": "example.org"}, "give one of"),
        ({"url": PAGE, "reason": " \n"}, "give a reason"),
    ],
)
def test_what_can_name_no_page_is_refused_with_a_sentence(given, sentence):
    with pytest.raises(DataError, match=sentence):
        asked(**given)


def test_a_list_with_bad_lines_names_all_of_them(tmp_path):
    file = tmp_path / "list.txt"
    file.write_text(f"# why\nexample.org\tcourt order\nco.uk\n{PAGE}\ntwo words/x\none/a.warc.gz/000000000007\n7//\n")
    with pytest.raises(DataError) as refused:
        asked(file=file)
    assert [part.partition(":")[0] for part in str(refused.value).splitlines()[1:]] == ["line 3", "line 5", "line 7"]
    file.write_text(f"example.org\tcourt order\n{PAGE}\n\none/a.warc.gz/000000000007 # a page\n")
    found = asked(file=file)
    assert [target.kind for target in found.targets] == ["domain", "url", "document"]
    assert found.reasons == ("court order", "its author asked", "its author asked")
    with pytest.raises(DataError, match="line 2: no reason"):
        asked(file=file, reason="")


def test_a_line_with_a_path_is_an_address_and_one_without_a_domain():
    kinds = {text: target_of_line(text).kind for text in ("example.org", "https://example.org", "example.org/x")}
    assert list(kinds.values()) == ["domain", "domain", "url"]
    assert target_of("domain", "*.Example.org.").value == "example.org"


def test_nothing_is_withdrawn_while_a_run_is_writing_or_a_job_is_queued(tmp_path):
    local = load_profile("local")
    check_nobody_writes(tmp_path, local)
    folder = tmp_path / "extracted_documents" / "abc"
    with Lease(folder), pytest.raises(DataError, match="abc: made by a run at present"):
        check_nobody_writes(tmp_path, local)
    check_nobody_writes(tmp_path, local)
    write_json(folder / "handle.json", {"backend": "slurm", "id": "7", "key": "abc", "folder": str(folder)})
    with pytest.raises(DataError, match="abc: made by a run at present"):
        check_nobody_writes(tmp_path, local)


def test_a_tombstone_waits_until_no_run_compares(tmp_path, monkeypatch):
    monkeypatch.setattr(undisturbed, "PATIENCE_SECONDS", 0.05)
    asked_now = asked(url=PAGE)
    how = {"tracking": Tracking("", tmp_path, in_background=False), "profile": load_profile("local")}
    with undisturbed.nothing_removed(tmp_path), pytest.raises(DataError, match="been starting"):
        withdraw(tmp_path, asked_now, **how, confirm=lambda told: True)
    assert not read_tombstones(tmp_path)
    withdraw(tmp_path, asked_now, **how, confirm=lambda told: True)
    assert len(read_tombstones(tmp_path)) == 1


def test_seeds_of_crawls_that_are_of_a_domain_are_named_and_seeds_that_were_only_counted(tmp_path):
    folder = tmp_path / "extracted_documents" / ("a" * 32)
    seeds = {"https://www.a.example/start": 2, "http://aa.example/": 1, "http://b.a.example/": 1, OTHERS: 7}
    record = {"asset": folder.parent.name, "partition": "r@s", "fingerprint": folder.name, "inputs": [], "files": []}
    folder.mkdir(parents=True)
    commit_record(folder, {**record, "digest": digest_of_files([]), "notes": {"collection": {"said": {SEEDS: seeds}}}})
    (told,) = takedown._seeds(tmp_path, asked(domain="a.example").targets)
    assert set(told["seeds"]) == {"http://b.a.example/", "https://www.a.example/start"} and told["not_noted"] == 7
    first, second = seed_lines([told])
    assert "2 seeds of the crawl, not removed from the record" in first and "7 further seeds are only counted" in second
    (told,) = takedown._seeds(tmp_path, asked(domain="c.example").targets)
    assert not told["seeds"] and told["not_noted"] == 7


def test_an_address_of_a_stranger_gives_the_terminal_no_commands(tmp_path, capsys):
    folder = tmp_path / "extracted_documents" / ("a" * 32)
    record = {"asset": folder.parent.name, "partition": "r@s", "fingerprint": folder.name, "inputs": [], "files": []}
    folder.mkdir(parents=True)
    notes = {"collection": {"said": {SEEDS: {"https://a.example/\x1b]0;renamed\x07": 1}}}}
    commit_record(folder, {**record, "digest": digest_of_files([]), "notes": notes})
    asked_for = ["takedown", "--domain", "a.example", "--reason", "asked", "--dry-run", "--root", str(tmp_path)]
    app(asked_for, standalone_mode=False)
    said = capsys.readouterr().out
    assert "renamed" in said and not set("\x1b\x07") & set(said)
