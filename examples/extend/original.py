"""A survivor policy of your own: of duplicates the one on the shortest host and path stays, and not a copy of it."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from training.data.dedup.survivor import Survivor


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The weight of the parts of the path, beside those of the host."""

    path: float = 0.1


def value(document, settings):
    """Return the value of one document; of duplicates the one with the largest value stays."""
    address = urlsplit(document["url"])
    return -len(address.netloc.split(".")) - settings.path * len(address.path.split("/"))


survivor = Survivor(value=value, columns=("url",), settings=Settings)
