"""The address of Dagster's database in a profile, as Dagster reads it."""

import pytest

from resources.profile import ProfileError, load_profile
from resources.run_storage import storage_of
from tests.commands import profile_file

READ = {
    "${TEAM}": {"postgres_url": {"env": "TEAM"}},
    "postgresql://me:${WORD}@db.example:5433/dagster?sslmode=require": {
        "postgres_db": {
            "scheme": "postgresql+psycopg2",
            "username": "me",
            "password": {"env": "WORD"},
            "hostname": "db.example",
            "db_name": "dagster",
            "port": 5433,
            "params": {"sslmode": "require"},
        }
    },
    "postgresql+psycopg2://a%40b@${HOST}/team": {
        "postgres_db": {
            "scheme": "postgresql+psycopg2",
            "username": "a@b",
            "password": "",
            "hostname": {"env": "HOST"},
            "db_name": "team",
        }
    },
}


@pytest.mark.parametrize("address", READ)
def test_an_address_is_what_dagster_reads(address):
    assert storage_of(address, "postgresql+psycopg2://me@db/dagster") == {"postgres": READ[address]}


REFUSED = {
    "postgresql://me:s3cret@db/dagster": "a password is the name of an environment variable",
    "postgresql://me@db/dagster?password=s3cret": "password after `?` may hold neither a password nor a variable",
    "postgresql://me@db/dagster?sslcert=${WORD}": "sslcert after `?` may hold neither a password nor a variable",
    "postgresql://me:x${WORD}@db/dagster": "a password is the name of an environment variable",
    "postgresql://me@db-${SITE}/dagster": "a variable stands for the whole hostname",
    "mysql://me@db/dagster": "postgresql:// and then USER",
    "postgresql://db": "postgresql:// and then USER",
    "${OTHER}": "OTHER begins otherwise than postgresql+psycopg2://",
    "postgresql://me:${ABSENT}@db/dagster": "the environment variable ABSENT is not set",
}


@pytest.mark.parametrize("address", REFUSED)
def test_another_address_is_refused_when_the_profile_is_read(address, tmp_path, monkeypatch):
    monkeypatch.setenv("WORD", "w0rd")
    monkeypatch.setenv("SITE", "north")
    monkeypatch.setenv("OTHER", "postgresql://me:s3cret@db/dagster")
    with pytest.raises(ProfileError) as refused:
        load_profile(profile_file(tmp_path, f"dagster_storage: '{address}'\n"))
    assert REFUSED[address] in str(refused.value) and "s3cret" not in str(refused.value)


def test_no_job_inherits_its_password(tmp_path, monkeypatch):
    monkeypatch.setenv("WORD", "w0rd")
    profile = load_profile(profile_file(tmp_path, "dagster_storage: 'postgresql://me:${WORD}@db/dagster'\n"))
    assert "WORD" in profile.withheld
