"""A step as a short list of tensor operations: traced once, cleaned up, and run as it is, without a compiler.

Each operation that is left gives the bits that it gives in the eager step: what is not needed goes, nothing is computed
in another order. So a traced step equals the eager one to the last bit, as far as torch's operations on many matrices
equal those on one. They do on the processors that this was tried on.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeGuard

import torch
from torch import Tensor, fx

from cclfp.engine.tracing import Step, aten, replace, trace

AHEAD = 6 * 2**20  # bytes that are computed ahead of the steps that need them: what a cache holds

VIEWS = (aten.view, aten._unsafe_view)
COPIES = (*VIEWS, aten.alias, aten.clone, aten.detach, aten.expand, aten.lift_fresh, aten._to_copy)
# Operations on each number by itself that give the same bits wherever it is in memory. Others may differ at the end of
# a tensor, where fewer numbers are left than the processor takes at once: 16 at most.
ARITHMETIC = ("abs", "add", "clamp", "div", "maximum", "minimum", "mul", "neg", "reciprocal", "relu", "sqrt", "sub")
LOGIC = ("bitwise_and", "bitwise_not", "bitwise_or", "eq", "ge", "gt", "le", "lt", "masked_fill", "ne", "sign", "where")
EVEN = (*ARITHMETIC, *LOGIC, "_to_copy", "ceil", "clone", "copy", "floor", "isnan", "round", "threshold_backward")
AT_ONCE = 16
# Products of few rows with long sums give other bits where the rows begin elsewhere in memory.
FEW, LONG = 32, 1024
ELEMENTWISE = ("add", "clamp", "div", "masked_fill", "mul", "neg", "relu", "sub")  # they have a form that is in place


class TracedStep:
    """A step for arguments of certain shapes.

    What does not depend on the tensors that change, such as the preparation of inputs, is computed for many steps at
    once.
    """

    def __init__(self, step: Step, changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> None:
        graph = trace(step, changing, fixed, row)
        clean(graph.graph)
        ahead, rest = split(graph, len(changing))
        needed = record(ahead, [*fixed, *row])
        record(rest, [*changing, *needed])
        separate_results(rest.graph, len(changing))
        for part in (ahead, rest):
            call_directly(part.graph)
            write_in_place(part.graph, changing=len(changing) if part is rest else 0)
            forget(part)
        self.at_once = max(1, AHEAD // max(1, sum(t.nbytes for t in needed)))  # how many steps to run together
        self._ahead = torch.func.vmap(ahead, in_dims=(*[None] * len(fixed), *[0] * len(row)))
        self._step = rest.forward

    def run(self, changing: list[Tensor], fixed: list[Tensor], rows: list[Tensor]) -> Iterator[list[Tensor]]:
        """What the tensors that change are after each of the steps whose rows are given. They may be written into."""
        ahead = [t.unbind() for t in self._ahead(*fixed, *rows)]
        for i in range(len(rows[0])):
            changing = self._step(*changing, *(values[i] for values in ahead))
            yield changing

    def __call__(self, changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
        return next(self.run(changing, fixed, [t[None] for t in row]))


# -- a graph, and what each of its nodes gives -------------------------------------------------------------------------


class _Recorder(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        n.meta["value"] = value = super().run_node(n)
        return value


def record(graph: fx.GraphModule, arguments: list[Tensor]) -> list[Tensor]:
    """Keep with each node of the graph what it gives for these arguments; what all of it gives."""
    results: list[Tensor] = _Recorder(graph).run(*arguments)
    return results


def forget(graph: fx.GraphModule) -> None:
    """Let go of what `record` kept, when the graph has been changed."""
    for node in graph.graph.nodes:
        node.meta.clear()
    graph.recompile()


def _operations(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def _is(node: object, *operations: Any) -> TypeGuard[fx.Node]:
    """Whether a node is one of these operations, in any overload."""
    return isinstance(node, fx.Node) and getattr(node.target, "overloadpacket", None) in operations


def _name(node: fx.Node) -> str:
    """What an operation is called in torch, without its overload."""
    return str(getattr(node.target, "overloadpacket", node.target)).rpartition(".")[2]


def _is_alike(node: fx.Node, other: object) -> bool:
    """Whether two nodes give tensors of the same shape, type and memory layout."""
    a, b = (one.meta.get("value") if isinstance(one, fx.Node) else None for one in (node, other))
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return False
    return (a.shape, a.stride(), a.dtype, a.storage_offset()) == (b.shape, b.stride(), b.dtype, b.storage_offset())


def _memory(node: fx.Node) -> int:
    """Where the values of a node are; 0 where it has none."""
    value = node.meta.get("value")
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else 0


# -- what is not needed goes -------------------------------------------------------------------------------------------


def clean(graph: fx.Graph) -> None:
    """Leave out what changes nothing, compute nothing twice, and give each replica the bits it has alone."""
    for improve in (drop_copies, join_equal, fold_constants, add_bias_in_product, divide_uneven):
        improve(graph)
        graph.eliminate_dead_code()


def drop_copies(graph: fx.Graph) -> None:
    """Leave out what gives its argument: copies, views of the same shape, products with 1, double transposes."""
    for node in _operations(graph):
        given = node.args[0] if node.args else None
        is_identity = _is(node, *COPIES) or (_is(node, aten.mul, aten.div) and node.args[1] == 1 and not node.kwargs)
        if is_identity and _is_alike(node, given):
            replace(node, given)
            continue
        before = given.args[0] if isinstance(given, fx.Node) and given.args else None
        if _is(node, aten.transpose) and _is(given, aten.transpose) and _is_alike(node, before):
            replace(node, before)
        elif _is(node, aten.view) and _is(given, *VIEWS, aten.squeeze, aten.unsqueeze):
            node.args = (before, *node.args[1:])


def join_equal(graph: fx.Graph) -> None:
    """Compute once what is computed several times."""
    seen: dict[Hashable, fx.Node] = {}
    for node in _operations(graph):
        key = node.target, repr(node.args), repr(node.kwargs)
        if key in seen:
            replace(node, seen[key])
        else:
            seen[key] = node


def fold_constants(graph: fx.Graph) -> None:
    """Compute now what depends on no argument, or only on the shape of one."""
    constants: dict[fx.Node, None] = {}
    for node in _operations(graph):
        if all(given in constants for given in node.all_input_nodes) or _is(node, aten.ones_like, aten.zeros_like):
            constants[node] = None
    for node in constants:
        if any(user not in constants for user in node.users):
            graph.owning_module.register_buffer(name := f"constant_{node.name}", node.meta["value"])  # type: ignore[union-attr]
            with graph.inserting_before(node):
                folded = graph.get_attr(name)
            folded.meta = node.meta
            node.replace_all_uses_with(folded)


def add_bias_in_product(graph: fx.Graph) -> None:
    """b + x W as one operation, as the layer computes it for one replica."""
    for node in _operations(graph):
        for product, bias in [node.args, node.args[::-1]] if _is(node, aten.add) and not node.kwargs else []:
            if _is(product, aten.bmm) and len(product.users) == 1 and _is_alike(node, product):
                with graph.inserting_before(node):
                    both = graph.call_function(aten.baddbmm.default, (bias, *product.args))
                both.meta = node.meta
                replace(node, both)
                break


def _is_uneven(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags and _name(node) not in EVEN and isinstance(node.meta["value"], Tensor)


def divide_uneven(graph: fx.Graph) -> None:
    """Compute what may differ with its place in memory for each replica, so that no replica depends on the others."""
    for node in _operations(graph):
        value, given = node.meta["value"], node.all_input_nodes
        is_at_end = _is_uneven(node) and value.ndim > 0 and value[0].numel() % AT_ONCE > 0
        is_long = _is(node, aten.bmm) and max(value.shape[1:]) <= FEW and given[0].meta["value"].shape[2] >= LONG
        if not is_at_end and not is_long:
            continue

        def is_each(one: fx.Node, like: Tensor = value) -> bool:
            """Whether it has a part for each replica."""
            return one.meta["value"].ndim == like.ndim and len(one.meta["value"]) == len(like)

        with graph.inserting_before(node):
            each = []
            for replica in range(len(value)):
                own = {one: graph.call_function(aten.select.int, (one, 0, replica)) for one in filter(is_each, given)}
                if is_long:
                    copies = [graph.call_function(aten.clone.default, (own[one],)) for one in node.args]  # type: ignore[index]
                    each.append(graph.call_function(aten.mm.default, tuple(copies)))
                else:
                    each.append(graph.node_copy(node, lambda one, own=own: own.get(one, one)))  # type: ignore[misc]
            stacked = graph.call_function(aten.stack.default, (each,))
        stacked.meta = node.meta
        replace(node, stacked)


# -- what is done how, and when ----------------------------------------------------------------------------------------


def split(graph: fx.GraphModule, changing: int) -> tuple[fx.GraphModule, fx.GraphModule]:
    """A graph as two: what does not depend on its first arguments, and the rest, which takes that instead."""
    nodes, moving = list(graph.graph.nodes), set[fx.Node]()
    first = graph.graph.find_nodes(op="placeholder")[:changing]
    for node in nodes:
        depends = node in first or any(given in moving for given in node.all_input_nodes)
        if depends or node.op == "output" or _is_uneven(node):  # of many steps together these would differ
            moving.add(node)
    needed = [node for node in nodes if node not in moving and any(user in moving for user in node.users)]
    ahead, rest = fx.Graph(), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        if node not in moving:
            copies[node] = ahead.node_copy(node, copies.__getitem__)
    ahead.output([copies[node] for node in needed])
    copies = {}
    for node in [*first, *needed]:
        copies[node] = rest.placeholder(node.name)
        copies[node].meta = node.meta
    for node in nodes:
        if node in moving and node not in copies:
            copies[node] = rest.node_copy(node, copies.__getitem__)
    return fx.GraphModule(graph, ahead), fx.GraphModule(graph, rest)


def separate_results(graph: fx.Graph, changing: int) -> None:
    """Give each result a memory of its own, since the next step may write into it."""
    output, arguments = graph.output_node(), graph.find_nodes(op="placeholder")
    taken, results = {0, *map(_memory, arguments)}, []
    for argument, result in zip(arguments[:changing], output.args[0], strict=True):  # type: ignore[arg-type]
        if result is not argument and _memory(result) in taken:
            with graph.inserting_before(output):
                own = graph.call_function(aten.clone.default, (result,))
            own.meta = {"value": result.meta["value"].clone()}
            result = own
        taken.add(_memory(result))
        results.append(result)
    output.args = (results,)


def call_directly(graph: fx.Graph) -> None:
    """Call tensors' methods and torch's functions where they give the same: that takes half as long as an operation."""
    for node in _operations(graph):
        expected, name = node.meta["value"], _name(node)
        if name.startswith("_") or not isinstance(expected, Tensor) or node.target is operator.getitem:
            continue
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda given: given.meta["value"])
        first = next(iter(node.target._schema.arguments), None)  # type: ignore[union-attr]
        if first is not None and first.name == "self" and _gives(expected, getattr(Tensor, name, None), args, kwargs):
            node.op, node.target = "call_method", name
        elif _gives(expected, getattr(torch, name, None), args, kwargs):
            node.target = getattr(torch, name)


def _gives(expected: Tensor, function: Callable[..., Any] | None, args: Any, kwargs: Any) -> bool:
    """Whether the function gives the expected tensor, to the last bit and in the same memory layout."""
    try:
        found = function(*args, **kwargs) if function is not None else None
    except (TypeError, RuntimeError):  # it takes its arguments in another way
        return False
    if not isinstance(found, Tensor) or (found.dtype, found.stride()) != (expected.dtype, expected.stride()):
        return False
    return found.shape == expected.shape and torch.equal(found.nan_to_num(), expected.nan_to_num())


def write_in_place(graph: fx.Graph, changing: int) -> None:
    """Write a result where an argument of its operation was, if nothing else reads that afterwards.

    The graph's own arguments are not written into, except those that change (the first ones), each by its new value.
    """
    order = {node: place for place, node in enumerate(graph.nodes)}
    memory = {node: _memory(node) for node in order}
    is_ahead = changing == 0  # such a graph computes for many steps at once
    which = ("add", "div", "mul", "sub") if is_ahead else ELEMENTWISE  # vmap would loop over the others
    arguments = graph.find_nodes(op="placeholder")[:changing]
    results = dict(zip(graph.output_node().args[0], arguments, strict=False))  # type: ignore[arg-type]
    for node in order:
        is_shared = is_ahead and len(node.all_input_nodes) > 1  # one may be the same in all steps, another differ
        if node.op != "call_method" or node.target not in which or node.kwargs or is_shared:
            continue
        for place, given in enumerate(node.args[: 2 if node.target in ("add", "mul") else 1]):
            if not isinstance(given, fx.Node) or not memory[given] or not _is_alike(node, given):
                continue
            views = [other for other in order if memory[other] == memory[given]]
            last = max(order[reader] for view in views for reader in view.users)
            kept = [view for view in views if view.op in ("placeholder", "get_attr")]
            read_otherwise = any(view in node.all_input_nodes for view in views if view is not given)
            if last == order[node] and kept in ([], [results.get(node)]) and not read_otherwise:
                node.args, node.target = (given, *node.args[:place], *node.args[place + 1 :]), f"{node.target}_"
                memory |= {other: memory[given] for other in order if memory[other] == memory[node]}
                break
