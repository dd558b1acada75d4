"""What only refuses, and so decides nothing about an artifact: modules, and functions that can only raise RecipeError.

A job that was refused left no artifact, and one that was not refused computes the same without its checks. So an edit
of a check changes the code of no stage. Standard library only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

# Modules that only refuse, or compute what is needed to refuse, with the reason.
REFUSALS = {
    "training.data.exams.task_names": "finds files of lm-eval, whose version is recorded, and refuses what they lack",
    "training.contract.user_input.names": "refuses names that no folder or registry could have",
    "training.posttrain.passed_through": "refuses fields that TRL and peft do not have",
    "training.pretrain.capacity.divisible": "refuses degrees that do not divide a model, before anything is computed",
    "training.pretrain.capacity.fp8_checks": "refuses fp8 that is impossible or does not pay, before it is computed",
    "training.pretrain.capacity.needs": "computes bytes for refusals, before anything is computed",
    "training.pretrain.capacity.room": "refuses what does not fit, before anything is computed",
}

_ASKS = ("check_", "_check_", "all_of", "assert_never")  # beginnings of what a check may call as a statement
_CHANGES = frozenset(  # what changes a list, a dict, a set or any object, a file, or the state of random numbers
    "add append clear difference_update discard extend insert intersection_update pop popitem remove reverse setdefault"
    " sort symmetric_difference_update update __setattr__ setattr delattr exec eval close mkdir open read readline"
    " readlines rename rmdir seek send system throw touch unlink write write_bytes write_text writelines choice"
    " manual_seed permutation rand randint randn random randrange sample seed shuffle".split()
)
_PASSES = ("Iterator", "Generator", "IO")  # ends of the types of what can be read once
_STATEMENTS = (ast.If, ast.For, ast.While, ast.Try, ast.Match, ast.Assign, ast.AnnAssign, ast.Expr, ast.Raise)
_STATEMENTS += (ast.Return, ast.Pass, ast.Continue, ast.Break, ast.Import, ast.ImportFrom)
_WAITS = (ast.Await, ast.Yield, ast.YieldFrom)
_BLOCKS = ("body", "orelse", "finalbody")


def only_refuses(node: ast.AST) -> bool:
    """Whether a function can do nothing but raise RecipeError, as far as its source shows.

    It is a `__post_init__` or a `check…`, returns nothing, raises nothing else, binds local names alone, calls nothing
    that changes a list, dict, set, tensor, file or random state by its name, takes nothing that can be read only once,
    and has no statement that is a call but of another check. A function that it calls is not looked into.
    """
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        return False
    if node.name != "__post_init__" and re.match(r"_*check(_|$)", node.name) is None:
        return False
    returns_nothing = isinstance(node.returns, ast.Constant) and node.returns.value is None
    taken = [_last(part) for one in ast.walk(node.args) if isinstance(one, ast.arg) for part in _parts(one.annotation)]
    if any(name.endswith(_PASSES) for name in taken):
        return False
    return returns_nothing and all(_is_harmless(one) for one in ast.walk(node) if one is not node)


def _is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.stmt) and not isinstance(node, _STATEMENTS):
        return False
    match node:
        case ast.Return():
            return node.value is None
        case ast.Raise():
            return node.exc is None or (isinstance(node.exc, ast.Call) and _last(node.exc.func) == "RecipeError")
        case ast.Expr():
            return isinstance(node.value, ast.Constant) or _called(node).startswith(_ASKS)
        case ast.Call(func=ast.Name(id="next")):
            return isinstance(node.args[0], ast.GeneratorExp)
        case ast.Name():
            return node.id not in _CHANGES
        case ast.Attribute(attr=name, ctx=context):  # a name that ends in "_" changes a tensor in place
            return isinstance(context, ast.Load) and name not in _CHANGES and (name[-1] != "_" or name[:2] == "__")
        case ast.Subscript():
            return isinstance(node.ctx, ast.Load)
    return not isinstance(node, _WAITS)


def _parts(annotation: ast.AST | None) -> list[ast.AST]:
    return [] if annotation is None else list(ast.walk(annotation))


def _last(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _called(node: ast.Expr) -> str:
    return _last(node.value.func) if isinstance(node.value, ast.Call) else ""


def refusing_statements(tree: ast.Module) -> list[ast.stmt]:
    """Return the statements of a module's tree that only refuse.

    These are functions that only refuse, and calls of them or of functions of REFUSALS, also under a condition. Nothing
    else is called in such a statement.
    """
    refusing, others, imported = set[str](), set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            (refusing if only_refuses(node) else others).add(node.name)
        elif isinstance(node, ast.ImportFrom):
            (imported if node.module in REFUSALS else others).update(one.asname or one.name for one in node.names)
    checks = (refusing - others) | imported

    def asks(node: ast.stmt) -> bool:
        if isinstance(node, ast.If):
            return not node.orelse and _is_calm(node.test, imported) and all(map(asks, node.body))
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(call, ast.Call) or _last(call.func) not in checks:
            return False
        is_of_module = isinstance(call.func, ast.Name) or _last(getattr(call.func, "value", call)) == "self"
        return is_of_module and all(_is_calm(one, imported) for one in (*call.args, *call.keywords))

    return [one for block in _blocks(tree) for one in block if only_refuses(one) or asks(one)]


def _is_calm(node: ast.AST, imported: set[str]) -> bool:
    """Whether an expression calls nothing but functions of REFUSALS, and binds no name."""
    calls = (one for one in ast.walk(node) if isinstance(one, (ast.Call, ast.NamedExpr, *_WAITS)))
    return all(isinstance(one, ast.Call) and getattr(one.func, "id", "") in imported for one in calls)


def _blocks(tree: ast.Module) -> list[list[ast.stmt]]:
    found = [getattr(node, name, None) for node in ast.walk(tree) for name in _BLOCKS]
    return [block for block in found if isinstance(block, list)]


def leave_out_refusals(tree: ast.Module) -> None:
    """Remove from a module's tree the statements that only refuse, and imports of REFUSALS or for these alone."""
    refusing = refusing_statements(tree)
    gone = {name for one in refusing for name in _names(one)}
    for block in _blocks(tree):
        block[:] = [one for one in block if one not in refusing]
    gone -= set(_names(tree))
    for block in _blocks(tree):
        for one in [one for one in block if isinstance(one, ast.Import | ast.ImportFrom)]:
            one.names = [alias for alias in one.names if (alias.asname or alias.name).partition(".")[0] not in gone]
            if not one.names or getattr(one, "module", "") in REFUSALS:
                block.remove(one)


def _names(node: ast.AST) -> Iterator[str]:
    return (one.id for one in ast.walk(node) if isinstance(one, ast.Name))
