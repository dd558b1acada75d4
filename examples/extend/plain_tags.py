"""An extractor of your own: the text of headings, paragraphs and list items, in order, by lxml."""

from dataclasses import dataclass

from training.data.extract.extractor import Extractor


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The elements whose text is kept, and the smallest number of characters in one of them."""

    elements: tuple[str, ...] = ("h1", "h2", "h3", "p", "li")
    least: int = 2


def read(html, settings):
    """Return the text of one page; the library is imported only here, so that recipes are read without it."""
    from lxml import html as lxml_html

    tree = lxml_html.document_fromstring(html.encode(), parser=lxml_html.HTMLParser(encoding="utf-8"))
    lines = (" ".join(one.text_content().split()) for one in tree.iter(*settings.elements))
    return "\n".join(line for line in lines if len(line) >= settings.least)


extractor = Extractor(read=read, settings=Settings)
