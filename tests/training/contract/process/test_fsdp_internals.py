"""What FSDP keeps private is used in one place, which knows the release that it was read from."""

import ast
import re
from pathlib import Path

import pytest
import torch

from training.contract.process import fsdp_internals
from training.contract.process.fsdp_internals import READ_FROM, WHAT_BREAKS

CHECKOUT = Path(__file__).resolve().parents[4]
DOOR = Path(fsdp_internals.__file__)
OURS = [file for room in ("assets", "resources", "training", "evaluation") for file in (CHECKOUT / room).rglob("*.py")]
PRIVATE = re.compile(r"fsdp\._\w|\b_get_fsdp_state\b|\b_fsdp_param_groups?\b|\b_lazy_init\b|\b_unsharded_param\b")


def test_the_installed_release_is_the_one_that_was_read() -> None:
    assert torch.__version__.startswith(f"{READ_FROM}."), "read what WHAT_BREAKS names, then set READ_FROM"


def test_only_one_module_uses_private_parts_of_fsdp() -> None:
    assert len(OURS) > 500
    assert [file for file in OURS if file != DOOR and PRIVATE.search(file.read_text())] == []


@pytest.mark.parametrize("line", ["from torch.distributed.fsdp._fully_shard import x", "one._get_fsdp_state()"])
def test_each_form_of_a_private_use_is_seen(line: str) -> None:
    assert PRIVATE.search(line)


def test_what_breaks_is_told_of_each_name() -> None:
    defined = {node.name for node in ast.parse(DOOR.read_text()).body if isinstance(node, ast.FunctionDef)}
    told = {name for names in WHAT_BREAKS for name in names.split()}
    assert told == {name for name in defined if not name.startswith("_")} | {"FSDPParamGroup"}
