"""Addresses and values that must not be shown, and texts that must stay as they are."""

from __future__ import annotations

import io

import pytest

from training.contract.secrets import Masked, masked, remember, remember_address, secret_in

CANARY = "c4n4ry-8f3a"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://mlflow:{CANARY}@db:5432/mlflow",
        f"HTTPS://me:{CANARY}@host/path and more",
        f"mysql+pymysql://u:{CANARY}@ss@host/db",
        f"simplecache::https://u:{CANARY}@host/a.warc.gz",
        f"https://{CANARY}@host/",
        f"https://host/a?token={CANARY}&x=1",
        f"https://host/a?x=1&sig={CANARY}",
        f"https://bucket.s3.amazonaws.com/k?X-Amz-Signature={CANARY}&X-Amz-Expires=5",
        f"https://host/a?api_key={CANARY}",
        f"https://host/a?X%2DAmz%2DSecurity%2DToken={CANARY}",
        f"https://host/a#access_token={CANARY}",
        f"Max retries exceeded with url: /api/2.0/mlflow?token={CANARY} (Caused by …)",
    ],
)
def test_a_secret_in_an_address_is_masked_and_the_rest_is_not(text):
    assert CANARY not in masked(text) and "***" in masked(text)
    assert masked(masked(text)) == masked(text)
    assert "://" not in text or secret_in(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/crawl/2024/a.warc.gz?versionId=3",
        "abfs://container@account.dfs.core.windows.net/a.jsonl",
        "sftp://me@host/a.jsonl",
        "https://data.commoncrawl.org/crawl-data/CC-MAIN-2024-22/warc.paths.gz",
        "https://example.com/?page=2&tokens=5&monkey=1",
        "write to someone@example.com, or read http://example.com/@user",
        "token=abc is a setting, not an address",
        "sqlite:////srv/runs/mlflow.db",
        pytest.param("x" * 1_000_000, id="a word of a million letters"),
    ],
)
def test_what_holds_no_secret_stays(text):
    assert masked(text) == text and not secret_in(text)


def test_a_remembered_value_is_masked_in_every_way_it_is_written():
    remember_address('postgresql://u:p%40ss"w\\ord9@db/x')
    for written in ('p%40ss"w\\ord9', 'p@ss"w\\ord9', 'p@ss\\"w\\\\ord9', "p%40ss%22w%5Cord9"):
        assert masked(f"FATAL: {written} is wrong") == "FATAL: *** is wrong"
    remember("hunter2-hunter2")
    assert masked("it was hunter2-hunter2!") == "it was ***!"


def test_a_user_that_a_service_handed_out_is_masked_where_a_library_repeats_it_alone():
    remember_address("databricks://q40d59eced1ded07f:p4ssw0rd-4-it@host")
    remember_address("postgresql://tracking_of_all_teams:p4ssw0rd-4-it@db/mlflow")
    assert masked("put-value q40d59eced1ded07f p4ssw0rd-4-it@host-token") == "put-value *** ***@host-token"
    assert masked("the schema tracking_of_all_teams") == "the schema tracking_of_all_teams"


def test_variables_whose_names_say_so_are_masked(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", CANARY)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false-ish")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-canary")
    assert masked(f"{CANARY} aws-canary false-ish") == "*** *** false-ish"


def test_a_stream_masks_lines_that_come_in_pieces():
    output = io.StringIO()
    stream = Masked(output)
    stream.write("see http://me:geh")
    stream.write("eim@host/\nand ")
    assert output.getvalue() == "see http://***@host/\n"
    stream.flush()
    assert output.getvalue().endswith("and ")
