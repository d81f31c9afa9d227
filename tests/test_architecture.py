"""docs/architecture.md tells the truth: its layers, its imports and the functions that it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from test_imports import LAYERS, PACKAGE, imports_between_parts

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
UNLISTED = {"errors", "_version"}  # every part may use them
HOPS = re.findall(r"^\| \d+ \| `([\w.]+)` \| `([\w/]+\.py)` \|", PAGE, flags=re.MULTILINE)
PLACES = re.findall(r"`([A-Za-z_][\w.]*)` in `([\w/]+\.py)`", PAGE)


def test_the_layers_are_those_of_the_code() -> None:
    diagram = re.search(r"```\n(.*?)```", PAGE, flags=re.DOTALL)
    assert diagram is not None
    lines = [line for line in diagram[1].splitlines() if "─" not in line]
    layers = [re.split(r" {3,}", line.strip())[0].split() for line in lines]
    assert layers == [layer.split() for layer in reversed(LAYERS)]


def test_the_imports_are_those_of_the_code() -> None:
    table = re.findall(r"^\| `(\w+)` \|([ \w`]*)\|$", PAGE, flags=re.MULTILINE)
    listed = {part: set(re.findall(r"\w+", imports)) for part, imports in table}
    parts = {part for layer in LAYERS for part in layer.split()} - UNLISTED
    imports = imports_between_parts()
    assert listed == {part: {b for a, b in imports if a == part} - UNLISTED for part in parts}


def defined_in(path: Path) -> set[str]:
    """The functions and classes of a file, and the methods of its classes."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names


@pytest.mark.parametrize(("name", "file"), HOPS + PLACES, ids=lambda value: str(value))
def test_the_functions_exist(name: str, file: str) -> None:
    assert name in defined_in(PACKAGE / file)


def test_the_files_exist() -> None:
    names = set(re.findall(r"`([\w/]+\.(?:py|json|csv))`", PAGE))
    assert len(names) > 20
    assert len(HOPS) > 10
    assert [name for name in sorted(names) if not any((base / name).exists() for base in (PACKAGE, ROOT))] == []
