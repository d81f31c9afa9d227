"""What the package imports, and when."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cclfp

PACKAGE = Path(cclfp.__file__).parent


@pytest.mark.slow
def test_training_needs_torch_and_numpy_only() -> None:
    code = (
        "import sys\n"
        "for name in ('platformdirs', 'rich', 'typer', 'requests', 'ray'): sys.modules[name] = None\n"
        "import cclfp, cclfp.runs.run, cclfp.runs.ray\n"
        "from cclfp.testing.contract import Case, learns\n"
        "learns(Case(cclfp.methods.METHODS['finetune'], 'class', {}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_public_names() -> None:
    for name in dir(cclfp):
        assert getattr(cclfp, name) is not None


# What each part of the package may import, lowest first: every part may import those above it in this list.
LAYERS = (
    "_version errors losses metrics events",
    "core",
    "transforms schedules nets data",
    "methods streams",
    "learner",
    "engine",
    "testing runs",
    "paper",
    "report",
    "cli",
    "__init__ __main__",
)


def part_of(module: str) -> str:
    """The package, or the module at the top, that a dotted name lies in."""
    _, _, rest = module.partition("cclfp.")
    return rest.split(".")[0] or "__init__"


def nodes_that_run(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one, without the blocks ``if TYPE_CHECKING``, which name types and import nothing when run."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from nodes_that_run(node)


def imports_between_parts() -> set[tuple[str, str]]:
    """Which part imports which other, anywhere in its code."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        importer = path.relative_to(PACKAGE).with_suffix("").parts[0]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree) if importer == "__init__" else nodes_that_run(tree):  # it imports lazily
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module == "cclfp":
                names = [f"cclfp.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            found |= {(importer, part_of(name)) for name in names if name.startswith("cclfp.")}
    return {(importer, imported) for importer, imported in found if importer != imported}


def test_no_part_imports_one_above_it() -> None:
    layer = {name: number for number, line in enumerate(LAYERS) for name in line.split()}
    imports = imports_between_parts()
    assert len(imports) > 40
    assert [pair for pair in sorted(imports) if layer[pair[0]] < layer[pair[1]]] == []
    # Within a layer: schedules, nets and data know nothing of each other, and so on.
    assert [pair for pair in sorted(imports) if layer[pair[0]] == layer[pair[1]] and pair[::-1] in imports] == []
    assert [imported for importer, imported in imports if importer == "losses"] == []  # the equations need torch alone


def needed_by(path: Path) -> set[Path]:
    """The modules that run when one is imported, but for the ``__init__`` of packages."""
    found, todo = set[Path](), [path]
    while todo:
        if (one := todo.pop()) in found:
            continue
        found.add(one)
        for node in nodes_that_run(ast.parse(one.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("cclfp."):
                base = PACKAGE.joinpath(*node.module.split(".")[1:])
                names = [base, *(base / alias.name for alias in node.names)]
                todo += [file for name in names if (file := name.with_suffix(".py")).exists()]
    return found


def test_a_method_is_read_with_few_lines() -> None:
    """Who reads ER has to read no more than what it imports."""
    needed = needed_by(PACKAGE / "methods" / "er.py")
    assert PACKAGE / "nets" / "network.py" in needed
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in needed) <= 1300
