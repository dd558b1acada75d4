"""The fixtures of tests/small_kitchen.py."""

from tests.small_kitchen import first, leaking, leaking_early, root, shared, untouched  # noqa: F401
