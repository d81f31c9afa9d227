"""Traced steps: each pass of the clean-up leaves what a random graph computes, and whole runs equal eager ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from cohorts import CASES, assert_alike, pictures, replica, trained
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn

from cclfp.engine.operations import (
    TracedStep,
    _name,
    add_bias_in_product,
    call_directly,
    clean,
    drop_copies,
    fold_constants,
    join_equal,
    record,
    separate_results,
    split,
    write_in_place,
)
from cclfp.engine.tracing import trace, write_alike
from cclfp.nets import MLP

Binary = Callable[[Tensor, Tensor], Tensor]

# What random steps consist of, of matrices of one shape, with what the passes look for.
OPERATIONS: dict[str, Binary] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": lambda a, b: a / (b.abs() + 1),
    "neg": lambda a, b: -a,
    "relu": lambda a, b: a.relu(),
    "clamp": lambda a, b: a.clamp(-1, 1),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 0.5),
    "where": lambda a, b: torch.where(a > b, a, b),
    "times 1": lambda a, b: a * 1,
    "over 1": lambda a, b: a / 1,
    "copy": lambda a, b: a.clone(),
    "detach": lambda a, b: a.detach(),
    "transpose": lambda a, b: a.transpose(1, 2),
    "transpose twice": lambda a, b: a.transpose(1, 2).transpose(1, 2),
    "reshape": lambda a, b: a.reshape(len(a), -1).view(a.shape),
    "unsqueeze": lambda a, b: b.unsqueeze(1).squeeze(1),
    "first row": lambda a, b: a[:, :1].expand_as(b),
    "sum": lambda a, b: a + b.sum(dim=2, keepdim=True),
    "ones": lambda a, b: a + torch.ones_like(b),
    "constant": lambda a, b: a + torch.arange(3.0, dtype=a.dtype),
    "in place": lambda a, b: a.add_(b) if a.is_contiguous() else a + b,
    "part in place": lambda a, b: torch.cat([a.clone()[:, :1].mul_(2), b[:, 1:]], dim=1),
}
PRODUCTS: dict[str, Binary] = {
    "bmm": torch.bmm,
    "bias": lambda a, b: torch.bmm(a, b) + b,
    "bias first": lambda a, b: b + torch.bmm(a, b),
}

Program = list[tuple[str, int, int]]  # an operation, and the places of its two arguments among the values so far


def programs(*operations: str) -> st.SearchStrategy[Program]:
    place = st.integers(0, 30)
    return st.lists(st.tuples(st.sampled_from(operations), place, place), min_size=3, max_size=14)


def as_step(program: Program) -> Any:
    """A step with two tensors that change, one that is fixed, and one of each row."""

    def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
        values = [*(t.clone() for t in changing), fixed[0] + 0, row[0] + 0, *changing]  # those in place are the last
        for name, i, j in program:
            values.append((OPERATIONS | PRODUCTS)[name](values[i % len(values)], values[j % len(values)]))
        return values[-2:]

    return step


def arguments(rows: int = 1) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    g = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, 2, 3, 3, generator=g, dtype=torch.float64)
    return [draw(), draw()], [draw()], [torch.stack([draw() for _ in range(rows)])]


def assert_same(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 0.0) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def traced(program: Program) -> tuple[fx.GraphModule, list[Tensor]]:
    """The graph of a program, with what its nodes give, and its arguments."""
    changing, fixed, rows = arguments()
    row = [t[0] for t in rows]
    graph = trace(as_step(program), changing, fixed, row)
    return graph, [*changing, *fixed, *row]


@pytest.mark.parametrize(
    ("shorten", "off"),
    [(drop_copies, 0), (join_equal, 0), (fold_constants, 0), (call_directly, 0), (add_bias_in_product, 1e-6)],
)
@settings(max_examples=40, deadline=None)
@given(program=programs(*OPERATIONS, *PRODUCTS))
def test_a_pass_changes_nothing_that_is_computed(
    shorten: Callable[[fx.Graph], None], off: float, program: Program
) -> None:
    """Not a bit of it, except that a bias which is added in a product is rounded otherwise."""
    graph, given = traced(program)
    before = graph(*given)
    shorten(graph.graph)
    graph.graph.lint()
    graph.recompile()
    assert_same(graph(*given), before, off)


@settings(max_examples=40, deadline=None)
@given(program=programs(*OPERATIONS))
def test_results_have_memory_of_their_own_and_arguments_are_kept(program: Program) -> None:
    graph, given = traced(program)
    before = graph(*given)
    separate_results(graph.graph, 2)
    call_directly(graph.graph)
    write_in_place(graph.graph, 2)
    graph.recompile()
    own = [t.clone() for t in given]
    layouts = [t.stride() for t in own[:2]]
    after = graph(*own)
    assert_same(after, before)
    assert [t.stride() for t in after] == layouts  # the next step takes them in the place of its arguments
    for argument, kept in zip(own[2:], given[2:], strict=True):  # those that no result replaces
        assert torch.equal(argument, kept)
    first, second = (t.untyped_storage().data_ptr() for t in after)
    assert first != second
    assert not {first, second} & {t.untyped_storage().data_ptr() for t in own[2:]}


@settings(max_examples=40, deadline=None)
@given(program=programs(*OPERATIONS), count=st.integers(1, 4))
def test_traced_steps_are_the_steps(program: Program, count: int) -> None:
    """Several in a row, from rows that are prepared together."""
    changing, fixed, rows = arguments(count)
    step = as_step(program)
    ours = TracedStep(step, changing, fixed, [t[0] for t in rows])
    theirs, kept = [t.clone() for t in changing], [t.clone() for t in [*fixed, *rows]]
    for i, found in enumerate(ours.run([t.clone() for t in changing], fixed, rows)):
        theirs = step([t.clone(memory_format=torch.contiguous_format) for t in theirs], fixed, [t[i] for t in rows])
        assert_same(found, theirs)
    assert_same([*fixed, *rows], kept)


# -- what the passes gain ----------------------------------------------------------------------------------------------


def names(graph: fx.Graph) -> list[str]:
    return [node.target if node.op == "call_method" else _name(node) for node in graph.nodes if "call" in node.op]


@pytest.mark.parametrize(
    ("shorten", "program", "left"),
    [
        (drop_copies, [("times 1", 0, 0), ("transpose twice", 4, 0), ("copy", 5, 0), ("neg", 6, 0)], ["neg"]),
        (join_equal, [("neg", 2, 0), ("neg", 2, 0), ("add", -1, -2)], ["neg", "add"]),
        (fold_constants, [("constant", 2, 0)], ["add"]),
        (add_bias_in_product, [("bias", 2, 3)], ["baddbmm"]),
    ],
)
def test_a_pass_leaves_out_operations(shorten: Callable[[fx.Graph], None], program: Program, left: list[str]) -> None:
    def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
        values = [*changing, *fixed, *row]
        for name, i, j in program:
            values.append((OPERATIONS | PRODUCTS)[name](values[i], values[j]))
        return [values[-1], changing[1]]

    changing, fixed, rows = arguments()
    graph = trace(step, changing, fixed, [t[0] for t in rows])
    shorten(graph.graph)
    graph.graph.eliminate_dead_code()
    assert names(graph.graph) == left


def test_what_does_not_change_is_computed_ahead_and_the_rest_in_place() -> None:
    def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
        x = (row[0] - fixed[0]) / 2
        return [changing[0] - 0.1 * (changing[0] + x).relu()]

    (w, _), fixed, rows = arguments()
    graph = trace(step, [w], fixed, [rows[0][0]])
    ahead, rest = split(graph, 1)
    record(rest, [w, *ahead(*fixed, rows[0][0])])
    call_directly(rest.graph)
    write_in_place(rest.graph, 1)
    assert names(ahead.graph) == ["sub", "div"]
    assert names(rest.graph) == ["add", "relu_", "mul_", "sub_"]


# -- steps that are not traced -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (nn.Dropout(0.5), "draws random numbers"),
        (nn.BatchNorm1d(3).double(), "not in its arguments"),
        (lambda t: t if t.sum() > 0 else -t, "reads values"),
        (lambda t: t * float(t[0, 0, 0]), "reads values"),
        (lambda t: t * max(t.flatten().tolist()), "reads values"),
        (lambda t: t + torch.from_numpy(t.numpy()), "reads values"),
    ],
)
def test_what_is_more_than_operations_is_refused(compute: Callable[[Tensor], Tensor], reason: str) -> None:
    changing, fixed, rows = arguments()
    with pytest.raises(ValueError, match=reason):
        write_alike([(lambda c, f, r: [compute(c[0]), c[1]], (changing, fixed, [t[0] for t in rows]))])


def test_a_step_that_computes_something_else_for_other_values_is_refused() -> None:
    changing, fixed, rows = arguments(2)
    seen: list[float] = []

    def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
        seen.append(len(seen))  # what it reads past torch
        return [changing[0] * seen[-1], changing[1]]

    with pytest.raises(ValueError, match="something else"):
        write_alike((step, (changing, fixed, [t[i] for t in rows])) for i in range(2))


def test_a_step_that_writes_into_what_it_may_only_read_is_refused() -> None:
    changing, fixed, rows = arguments()
    with pytest.raises(ValueError, match="may only read"):
        trace(lambda c, f, r: [c[0] + f[0].mul_(2), c[1]], changing, fixed, [t[0] for t in rows])


# -- whole runs --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("method", "scenario"), CASES)
def test_a_run_has_the_bits_of_the_eager_one_whatever_trains_beside_it(method: str, scenario: str) -> None:
    """In float32, with a network of the usual size; GEM and HAL multiply small matrices, which differ when stacked."""
    stream = pictures("cpu", scenario, side=12, each=24)
    make = [
        partial(replica, method, scenario, seed, psi=partial(MLP, 3 * 12 * 12, seed=seed), stream=stream)
        for seed in range(3)
    ]
    together = trained([one() for one in make], "traced")
    for ours, one in zip(together, make, strict=True):
        if method not in ("gem", "hal"):
            assert_alike(ours, trained([one()])[0], 0.0)
    assert_alike(trained([make[1]()], "traced")[0], together[1], 0.0)


def test_what_is_uneven_at_its_end_is_computed_for_each_replica() -> None:
    def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
        return [changing[0].sigmoid(), changing[1] + fixed[0].exp()]

    changing, fixed, rows = arguments()
    graph = trace(step, changing, fixed, [t[0] for t in rows])
    clean(graph.graph)
    assert names(graph.graph).count("sigmoid") == len(changing[0])
    ahead, _ = split(graph, 2)
    assert "exp" not in names(ahead.graph)  # of many steps together it would have another end
