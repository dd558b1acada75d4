"""The benchmark of engines and clusters fails when a side lacks an artifact or made another one."""

from __future__ import annotations

import json

import pytest

from benchmarks import engines


def side(**digests):
    return {
        "assets": {name: {"one": {"digest": digest}} for name, digest in digests.items()},
        "seconds": 1.0,
        "cost": 1.0,
        "ok": True,
        "error": "",
    }


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (side(a="1", b="2"), "slurm against local: 2 of 2 digests equal"),
        (side(a="1", b="3"), "  differs: b one"),
        (side(a="1"), "  differs: b one"),
        (side(a="1", b="2", c="3"), "  differs: c one"),
    ],
)
def test_every_digest_is_compared(there, told, capsys):
    assert engines.compared({"local": side(a="1", b="2"), "slurm": there}) == ("differs" in told)
    assert told in capsys.readouterr().out.splitlines()


def test_recorded_digests_are_a_side_with_the_assets_that_were_made(tmp_path):
    file = tmp_path / "golden.json"
    file.write_text(json.dumps({"tiny": {"a": {"one": "1"}, "later": {"one": "2"}}}))
    for digest, code in (("1", 0), ("3", 1)):
        sides = {"slurm": side(a=digest)}
        assert engines.compared(engines.recorded(file, "tiny", sides) | sides) == code


def test_a_side_that_failed_is_no_success():
    assert engines.compared({"local": side(a="1"), "slurm": side(a="1") | {"ok": False}}) == 1


def test_only_the_task_of_the_array_is_the_process_that_is_killed():
    line = b"python\0-m\0training\0job.json\0--ranks\x001/2\0--claims\x0012\0"
    assert engines._is_task(line, [b"1/2", b"12"])
    assert not engines._is_task(line, [b"1/2", b"1"]) and not engines._is_task(line, [b"0/2", b"12"])
