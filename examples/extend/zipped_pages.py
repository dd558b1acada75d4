"""A reader of your own: saved pages in a zip file, of which each member is a page, and its name a part of its URL."""

from dataclasses import dataclass

from training.data.crawl.reader import Reader


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The address that comes before the names of members."""

    base: str = "https://example.org/"


def rows(path, settings):
    """Yield the pages of one file; a member whose checksum is wrong goes into the quarantine."""
    from zipfile import BadZipFile, ZipFile

    with ZipFile(path) as pages:
        for name in sorted(pages.namelist()):
            try:
                yield {"html": pages.read(name), "url": settings.base + name}
            except BadZipFile:
                yield {"damaged": "bad_checksum", "url": settings.base + name}


reader = Reader(rows=rows, suffixes=(".zip",), settings=Settings)
