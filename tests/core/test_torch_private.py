"""Private names of torch: all are listed, the eager engine needs none, and others are not used where one is missing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._inductor  # which torch imports itself for torch.func
from torch import Tensor, nn

import cclfp
from cclfp.core.torch_private import NEEDED, missing
from cclfp.engine.kernels import Layout, NotStackable
from cclfp.engine.kernels.stacked_resnet import StackedResNet
from cclfp.engine.replica import Replica
from cclfp.methods import METHODS
from cclfp.nets.network import Network, copy_all, psi_mode
from cclfp.testing import Case, same, stackable_psi
from cclfp.testing.case import train_replicas

PACKAGE = Path(cclfp.__file__).parent
FOREACH = ("_foreach_copy_", "_foreach_mul", "_foreach_sub")
USERS = {"engine/tracing.py": "traced", "engine/graph.py": "graph"}


def private_names(path: Path) -> set[str]:
    """The private names of torch in a file, but for those that it asks for by ``hasattr`` or ``getattr``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    known = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            known |= {a.asname: a.name for a in node.names if a.asname and a.name.split(".")[0] == "torch"}
    names = set(known.values()) | {
        ast.unparse(node).replace(root, known[root], 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and (root := ast.unparse(node).split(".")[0]) in known
    }
    private = {name for name in names if re.fullmatch(r"[\w.]+", name) and re.search(r"\._(?!_)", name)}
    return {name for name in private if not any(other.startswith(f"{name}.") for other in private)}


def test_all_are_listed() -> None:
    found = {path.relative_to(PACKAGE).as_posix(): private_names(path) for path in PACKAGE.rglob("*.py")}
    assert found.pop("nets/network.py") == {f"torch.{name}" for name in FOREACH}  # which has loops in their place
    assert found.pop("losses.py") == {"torch._C"}  # which it asks for what it may have
    used: dict[str, set[str]] = {}
    for path, names in found.items():
        user = "kernels" if path.startswith("engine/kernels/") else USERS.get(path, path)
        used.setdefault(user, set()).update(names)
    assert {user: used[user] for user in used if used[user]} == {user: set(names) for user, names in NEEDED.items()}


def trained(method: str, engine: str = "eager", seeds: int = 1) -> tuple[Replica, list[str]]:
    """The first of some replicas, and what the engine notes."""
    replicas = [Case(METHODS[method], "class", {}).replica(seed, stackable_psi()) for seed in range(seeds)]
    notes = train_replicas(replicas, engine)
    return replicas[0], notes


REMOVE = """
import functools, sys
import torch
import torch._dynamo, torch._inductor  # torch imports them itself for torch.func, and they need what is removed here
for name in sys.argv[1:]:
    *path, last = name.split(".")[1:]
    owner = functools.reduce(lambda found, part: getattr(found, part, None), path, torch)
    if hasattr(owner, last):  # builds for the CPU have none of CUDA's
        delattr(owner, last)
import cclfp.runs.run
from cclfp.methods import METHODS
from cclfp.testing import Case, stackable_psi
from cclfp.testing.case import train_replicas
replica = Case(METHODS["gem"], "class", {}).replica(0, stackable_psi())
print(train_replicas([replica], "eager"), replica.matrix)
"""


@pytest.mark.slow
def test_a_process_that_never_had_them_trains_eagerly() -> None:
    """They are missing before cclfp is imported."""
    names = [name for names in NEEDED.values() for name in names]
    names += [*(f"torch.{name}" for name in FOREACH), "torch._C._functorch.maybe_current_level"]
    command = [sys.executable, "-c", REMOVE, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"[] {trained('gem')[0].matrix}\n"


def test_loops_in_their_place_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(0)
    a, b = ({"0": torch.randn(7, 5, generator=g), "1": torch.randn(3, generator=g)} for _ in range(2))

    psi = nn.Flatten()
    net = Network(psi, nn.Linear(2, 2), psi_mode(psi))

    def results() -> list[Tensor]:
        copies = [torch.zeros_like(t) for t in a.values()]
        copy_all(copies, list(b.values()))
        return [*copies, *net.sgd(a, b, torch.tensor(0.3)).values()]

    fast = results()
    for name in FOREACH:
        monkeypatch.delattr(torch, name)
    assert all(map(torch.equal, results(), fast))


@pytest.mark.parametrize(
    ("engine", "name"),
    [("traced", "torch.utils._python_dispatch.TorchDispatchMode"), ("graph", "torch._C._cuda_releasePool")],
)
def test_an_engine_that_lacks_one_is_not_used_and_it_is_said(
    engine: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(name, raising=False)
    if engine == "graph":  # builds for the CPU have none of them
        monkeypatch.setitem(NEEDED, "graph", (name,))
    replica, (note,) = trained("er", engine, 2)
    assert f"has no {name}" in note
    assert "continuing eagerly" in note
    assert same(replica.learner, trained("er")[0].learner)


def test_kernels_that_lack_one_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    psi = torch.nn.Flatten()
    net = Network(psi, torch.nn.Linear(3, 2), psi_mode(psi))
    layout = Layout((), (), torch.bfloat16)
    StackedResNet(net, layout, in_place=False)
    monkeypatch.delattr(torch, "_foreach_add")
    with pytest.raises(NotStackable, match=r"has no torch\._foreach_add"):
        StackedResNet(net, layout, in_place=False)


def test_what_this_torch_has() -> None:
    assert missing("traced") == missing("kernels") == missing("eager") == ""
