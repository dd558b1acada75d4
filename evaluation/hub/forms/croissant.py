"""The description of an exported corpus in Croissant's form, version 1.1, in JSON-LD.

https://docs.mlcommons.org/croissant. Every file is listed with its size and sha256. The records are read from all of
them as one set of files, whose columns are the fields. The day of publication is the day of the export.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from training.recipe.settings.provider import ProviderRecipe

FILE = "croissant.json"
FORM = "application/x-parquet"
INCLUDES = "data/*/*.parquet"
TYPES = {pa.string(): "sc:Text", pa.float64(): "sc:Float", pa.int64(): "sc:Integer"}
COLUMNS = {
    "text": "the text of the page",
    "id": "snapshot, archive file and offset of the record",
    "dump": "the snapshot",
    "url": "the address of the page",
    "date": "the day that the page names as its own, or else that of the crawl",
    "file_path": "the archive file",
    "language": "the language that was recognized",
    "language_score": "how sure the recognition is",
    "token_count": "tokens by the recipe's tokenizer, with the end-of-text token",
}
_TERMS = (
    "citeAs column equivalentProperty extract field fileProperty fileObject fileSet format includes isLiveDataset"
    " jsonPath key md5 parentField path recordSet references regex repeated replace samplingRate separator source"
    " subField transform"
)
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    **{name: f"cr:{name}" for name in _TERMS.split()},
}


def document_of(
    name: str,
    description: str,
    files: Mapping[str, tuple[int, str]],
    schema: pa.Schema,
    provider: ProviderRecipe,
    *,
    digests: Sequence[str],
    day: str,
) -> dict[str, Any]:
    """Return the description of a corpus. `files` are size and sha256 by name, `digests` those of its artifacts."""
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": name,
        "description": description,
        "license": provider.corpus_licence or "unknown",
        "url": provider.url or f"urn:pedigree:{digests[0]}",
        "creator": {"@type": "sc:Organization", "name": provider.name or "not stated"},
        "datePublished": day,
        "version": "1.0.0",
        "identifier": [f"pedigree:{digest}" for digest in digests],
        "distribution": [*(_file(path, *own) for path, own in sorted(files.items())), _files()],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "pages",
                "name": "pages",
                "key": {"@id": "pages/id"},
                "field": [_field(one) for one in schema],
            }
        ],
    }


def _file(path: str, size: int, sha256: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": path,
        "name": path,
        "contentUrl": path,
        "contentSize": f"{size} B",
        "encodingFormat": FORM,
        "sha256": sha256,
    }


def _files() -> dict[str, Any]:
    return {"@type": "cr:FileSet", "@id": "files", "name": "files", "encodingFormat": FORM, "includes": INCLUDES}


def _field(one: pa.Field) -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"pages/{one.name}",
        "name": one.name,
        "description": COLUMNS[one.name],
        "dataType": TYPES[one.type],
        "source": {"fileSet": {"@id": "files"}, "extract": {"column": one.name}},
    }
