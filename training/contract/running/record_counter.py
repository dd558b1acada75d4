"""Count records while a stage reads them, for the records in of its account. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Counted(Generic[T]):
    """An iterable that counts the items it has yielded so far in `number`."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = items
        self.number = 0

    def __iter__(self) -> Iterator[T]:
        for item in self._items:
            self.number += 1
            yield item
