"""The code that decides a stage's output: every first-party module that its own imports, near or far.

Read from the source, never imported. A module's digest is of its normalized code: no comments, no docstrings, no
layout, the same for every version of Python. Standard library only.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from training.files import write_text

PACKAGES = ("training", "evaluation")

# What a stage's code imports and what decides none of its output. Whatever else is imported counts.
INFRASTRUCTURE = {
    "training.runner": "calls a stage's functions and commits the files they name; what it decides is in DECIDED",
    "training.stage": "what a stage declares is in the fingerprint, or is checked by a gate",
    "training.generated_sources": "the table of sources, each of which has a version of its own",
    "training.processes": "ends processes, and counts those that live",
    "training.lean": "leaves out imports that nobody uses",
    "training.secrets": "masks passwords in sentences for people",
}

# What the runner decides about every artifact: the account of its records, its manifest and its digests.
DECIDED = ("training.accounts", "training.artifact")

_IN_PACKAGES = re.compile(rf"({'|'.join(PACKAGES)})(\.[A-Za-z_]\w*)+(\.\*|:\w+)?")
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_BY_NAME = ("find_spec", "import_module", "__import__", "files")  # functions that take the name of a module
_PARTS = ".*"  # behind the name of a package: all of its modules, which `training.parts` imports
_NOT_CODE = ("ctx", "kind", "type_comment")  # fields of a syntax tree that say nothing or the same again
_OPENS_FILES = ("__file__", "PackageLoader", "importlib.resources")
MOST_KEPT = 1000  # sources; beyond, those that this process has not read are forgotten


@dataclass(frozen=True, slots=True)
class Module:
    """What one source says: its digest, the dotted names that it imports, and whether it opens packaged files.

    The digest of a source without code is empty.
    """

    digest: str
    imports: tuple[str, ...]
    opens_files: bool


@dataclass(frozen=True, kw_only=True)
class Code:
    """One look at the packages as they lie on the disk now; `places` are those of the top-level packages."""

    places: Mapping[str, Path] = field(default_factory=lambda: {name: place_of(name) for name in PACKAGES})
    kept: Kept = field(default_factory=lambda: KEPT, repr=False)
    _modules: dict[str, Module] = field(default_factory=dict, init=False, repr=False)
    _direct: dict[str, set[str]] = field(default_factory=dict, init=False, repr=False)
    _digests: dict[str, dict[str, str]] = field(default_factory=dict, init=False, repr=False)
    _closures: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False, repr=False)

    @staticmethod
    def around(module: str) -> Code:
        """The packages, and the one that `module` is in, which may be a user's own."""
        return Code(places={name: place_of(name) for name in dict.fromkeys((*PACKAGES, module.partition(".")[0]))})

    @cached_property
    def _paths(self) -> dict[str, Path]:
        """The source of every module by its name."""
        found = {}
        for package, place in self.places.items():
            for path in _files(place):
                if path.suffix == ".py":
                    parts = () if path == place else path.relative_to(place).with_suffix("").parts
                    found[".".join((package, *(parts[:-1] if parts[-1:] == ("__init__",) else parts)))] = path
        return found

    def module(self, name: str) -> Module:
        """What the source of a first-party module says."""
        if name not in self._modules:
            package = name if self._paths[name].name == "__init__.py" else _above(name)
            self._modules[name] = self.kept.module(self.source(name), package)
        return self._modules[name]

    def source(self, name: str) -> bytes:
        """The source of a first-party module."""
        return self.path(name).read_bytes()

    def path(self, name: str) -> Path:
        """Where the source of a first-party module lies."""
        return self._paths[name]

    def closure(self, name: str) -> tuple[str, ...]:
        """The modules that decide what module `name` makes, sorted: it, DECIDED, and all that they import."""
        if name not in self._closures:
            waiting, found = [name, *DECIDED], set[str]()
            while waiting:
                one = waiting.pop()
                if one not in found and one not in INFRASTRUCTURE:
                    found.add(one)
                    waiting += self.imported(one)
            self._closures[name] = tuple(sorted(found))
        return self._closures[name]

    def imported(self, name: str) -> set[str]:
        """The modules that a module imports, and the packages that they lie in, which run first."""
        if name not in self._direct:
            found = set[str]()
            for dotted in (name, *self.module(name).imports):
                if dotted.endswith(_PARTS):
                    found |= {one for one in self._paths if _above(one) == _above(dotted)}
                while dotted:
                    found |= {dotted} & self._paths.keys()
                    dotted = _above(dotted)
            self._direct[name] = found
        return self._direct[name]

    def libraries(self, name: str) -> set[str]:
        """The top-level modules outside these packages and the standard library that the closure imports."""
        found = {dotted.split(".")[0] for one in self.closure(name) for dotted in self.module(one).imports}
        return found - sys.stdlib_module_names - self.places.keys()

    def files(self, name: str) -> dict[str, Path]:
        """The packaged files that the closure can open: those in folders beside a module that opens such files."""
        folders = {self._paths[one].parent for one in self.closure(name) if self.module(one).opens_files}
        return {label: path for label, path in self._data.items() if path.parent.parent in folders}

    @cached_property
    def _data(self) -> dict[str, Path]:
        """Every packaged file that is no code and no page."""
        return {
            f"{package}/{path.relative_to(place).as_posix()}": path
            for package, place in self.places.items()
            for path in _files(place)
            if path.suffix not in (".py", ".md")
        }

    def digests(self, *names: str) -> dict[str, str]:
        """The digest of every module in the closures that has code, and of every file that they can open."""
        return {one: digest for name in names for one, digest in self._digests_of(name).items()}

    def _digests_of(self, name: str) -> dict[str, str]:
        if name not in self._digests:
            modules = {one: self.module(one).digest for one in self.closure(name)}
            self.kept.save()
            files = {one: _sha256(path.read_bytes()) for one, path in self.files(name).items()}
            self._digests[name] = {one: digest for one, digest in {**modules, **files}.items() if digest}
        return self._digests[name]


def place_of(package: str) -> Path:
    """The folder of a package, or the file of a module that is in none."""
    spec = find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    place = folders[0] if folders else spec.origin if spec else None
    if place is None:
        raise ModuleNotFoundError(f"{package} is not installed", name=package)
    return Path(place)


def _files(place: Path) -> list[Path]:
    """The files of a package; of a module that is in none, its own."""
    if place.is_file():
        return [place]
    walked = (walk for walk in sorted(os.walk(place)) if Path(walk[0]).name != "__pycache__")
    return [Path(folder, name) for folder, _, names in walked for name in sorted(names) if not name.startswith(".")]


def _above(name: str) -> str:
    return name.rpartition(".")[0]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


# Reading one source


def read_module(source: bytes, package: str) -> Module:
    """What the source of a module of `package` says. One that is no Python imports nothing."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return Module(digest=_sha256(source), imports=(), opens_files=False)
    imports = {name for name in _imports(tree, package) if name.partition(".")[0] not in sys.stdlib_module_names}
    text = source.decode("utf-8", "replace")
    code = normalized(tree, keeps_docstrings="__doc__" in text)
    return Module(
        digest=_sha256(code.encode()) if tree.body else "",
        imports=tuple(sorted(imports)),
        opens_files=any(word in text for word in _OPENS_FILES),
    )


def normalized(tree: ast.Module, *, keeps_docstrings: bool) -> str:
    """A module's code as text, from its syntax tree, which loses its docstrings unless something reads them."""
    for node in ast.walk(tree):
        if not keeps_docstrings and isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    words: list[str] = []
    _write(tree, words)
    return "".join(words)


def _write(value: Any, words: list[str]) -> None:
    """Append what `value` is. A field that is empty is left out: a later Python may have more of those."""
    if isinstance(value, ast.AST):
        words.append(f"{type(value).__name__}(")
        for name in value._fields:
            part = getattr(value, name, None)
            if part is not None and part != [] and name not in _NOT_CODE:
                words.append(f"{name}=")
                _write(part, words)
        words.append(")")
    elif isinstance(value, list):
        words.append("[")
        for part in value:
            _write(part, words)
            words.append(",")
        words.append("]")
    else:
        words.append(repr(value))


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """The dotted names that a module imports: by statements wherever they stand, by functions that take a name, and
    by strings that are a name (`python -m training.data.extract.isolation`, `package.module:name`). All modules of a
    package are `package.*`."""
    for node in _run(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and _name(node.func) in _BY_NAME:
            yield from (name.partition(":")[0] for name in map(_text, node.args[:1]) if name)
        elif isinstance(node, ast.Call) and _name(node.func) == "parts_in":
            yield f"{package}{_PARTS}"
        elif _IN_PACKAGES.fullmatch(text := _text(node)):
            yield text.partition(":")[0]


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree that a process runs: not the imports that only a type checker follows."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _name(child.test) == "TYPE_CHECKING":
            for other in child.orelse:
                yield from _run(other)
        else:
            yield from _run(child)


def _name(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


# What was read is kept by the source's checksum: parsing every module takes a second, reading it a hundredth of that.


class Kept:
    """What sources said that this process, or one before it, has read; on the disk in the first of `paths` that can be
    written."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._used: dict[str, Module] = {}
        self._new = False

    @cached_property
    def _known(self) -> dict[str, Module]:
        for path in self._paths:
            try:
                kept = json.loads(path.read_text("utf-8"))
                return {key: Module(digest, tuple(imports), opens) for key, (digest, imports, opens) in kept.items()}
            except (OSError, ValueError, TypeError):
                continue
        return {}

    def module(self, source: bytes, package: str) -> Module:
        """What a source says, read now or kept."""
        key = _sha256(package.encode() + b"\0" + source)
        found = self._used.get(key) or self._known.get(key)
        self._new |= found is None
        self._used[key] = found or read_module(source, package)
        return self._used[key]

    def save(self) -> None:
        """Keep what was read."""
        if not self._new:
            return
        whole = self._used if len(self._known) > MOST_KEPT else {**self._known, **self._used}
        text = json.dumps({key: [one.digest, one.imports, one.opens_files] for key, one in sorted(whole.items())})
        for path in self._paths:
            with suppress(OSError):
                write_text(path, text, durable=False)
                break
        self._new = False


def _kept_paths() -> tuple[Path, Path]:
    """Beside the compiled modules, or in the user's cache; under a name that this module's own code decides."""
    name = f"closure.{sys.implementation.cache_tag}.{_sha256(Path(__file__).read_bytes())}.json"
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "pedigree")
    return Path(__file__).parent / "__pycache__" / name, user / name


KEPT = Kept(*_kept_paths())
