"""Notes which changed lines a process enters; tests/changed_lines.py copies this file beside a table of marked code.

Python imports it before every program whose PYTHONPATH names its folder, and so in each process that a run starts.
"""

import builtins
import marshal
import os
import sys
from importlib.machinery import SourceFileLoader

FOLDER = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(FOLDER, "marked"), "rb") as table:
    CODE, FILES = marshal.load(table)  # by path: code objects with marks; and names of packaged files

_unmarked, _noted = SourceFileLoader.get_code, set()


def note(name):
    """Append a name to the file `entered`, once in each process."""
    if name not in _noted:
        _noted.add(name)
        with open(os.path.join(FOLDER, "entered"), "a", encoding="utf-8") as stream:
            stream.write(f"{name}\n")


def get_code(loader, fullname):
    """Return the marked code of a module whose lines changed, and the usual code of every other module."""
    return CODE.get(os.path.realpath(loader.path)) or _unmarked(loader, fullname)


builtins.__entered__ = note
SourceFileLoader.get_code = get_code
if FILES:
    sys.addaudithook(lambda event, given: note(FILES[given[0]]) if event == "open" and given[0] in FILES else None)
