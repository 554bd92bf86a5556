"""Which framework a user's code is written for, by what it imports. The code is parsed and not run, because the
controller imports no framework."""

from __future__ import annotations

import ast
from contextlib import suppress
from pathlib import Path

from velodrome import files

#: Code that is longer is not looked at.
_LONGEST = 1_000_000
_ENGINES = {
    "torch": "torch", "lightning": "torch", "pytorch_lightning": "torch", "accelerate": "torch",
    "keras": "tensorflow", "tensorflow": "tensorflow", "tf_keras": "tensorflow",
}


def engine_of_model(name: str) -> str | None:
    """The engine that `module:function` is written for; None if its imports do not say so."""
    module, _, function = name.partition(":")
    inside = module.replace(".", "/")
    for path in (Path(f"{inside}.py"), Path(inside, "__init__.py")):
        if (tree := _tree(path)) is not None:
            named = [node for node in tree.body if getattr(node, "name", "") == function]
            return _engine(named) or _engine([tree])
    return None


def engine_of_script(path: str) -> str | None:
    """The engine whose framework a script imports; None if that is none, or if it imports several."""
    tree = _tree(Path(path))
    return None if tree is None else _engine([tree])


def _tree(path: Path) -> ast.Module | None:
    with suppress(OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return ast.parse(files.read_text(path, _LONGEST))
    return None


def _engine(nodes: list[ast.stmt] | list[ast.Module]) -> str | None:
    """The one engine that is imported anywhere in these parts of a program."""
    modules = [module for part in nodes for node in ast.walk(part) for module in _imported(node)]
    found = {_ENGINES[top] for module in modules if (top := module.partition(".")[0]) in _ENGINES}
    return found.pop() if len(found) == 1 else None


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
