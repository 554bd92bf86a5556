"""Modules stay readable in one sitting, and import few others of ours."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import velodrome

pytestmark = pytest.mark.unit

LONGEST_MODULE, LONGEST_FUNCTION, MOST_IMPORTS = 350, 60, 15


def test_modules_and_functions_are_short_and_import_few_modules() -> None:
    root = Path(velodrome.__file__).parent
    modules = sorted(root.rglob("*.py"))
    assert len(modules) > 100
    excess = [f"{path.relative_to(root)}: {what}" for path in modules for what in excesses(path.read_text())]
    assert excess == []


def excesses(source: str) -> list[str]:
    """What exceeds the limits in the source of a module."""
    named: list[str] = []
    imported = set()
    if (lines := source.count("\n")) > LONGEST_MODULE:
        named.append(f"{lines} lines")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST_FUNCTION:
                named.append(f"{node.name} has {lines} lines")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("velodrome"):
            imported.add(node.module)
    if len(imported) > MOST_IMPORTS:
        named.append(f"imports {len(imported)} modules of ours")
    return named


def test_each_excess_is_named() -> None:
    body = "    pass\n" * LONGEST_FUNCTION
    imports = "".join(f"from velodrome.m{number} import x\n" for number in range(MOST_IMPORTS + 1))
    assert excesses(imports + f"def f():\n{body}") == ["f has 61 lines", "imports 16 modules of ours"]
    assert excesses("\n" * 351) == ["351 lines"]
