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
from torch.overrides import TorchFunctionMode

Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]  # changing, fixed, row -> changing

AHEAD = 6 * 2**20  # bytes that are computed ahead of the steps that need them: what a cache holds

aten = torch.ops.aten
VIEWS = (aten.view, aten._unsafe_view)
COPIES = (*VIEWS, aten.alias, aten.clone, aten.detach, aten.expand, aten.lift_fresh, aten._to_copy)
# At the end of a tensor, where fewer numbers are left than the processor takes at once, these may give other bits.
UNEVEN = (
    "cos",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "gelu",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_sigmoid_forward",
    "mish",
    "pow",
    "sigmoid",
    "silu",
    "sin",
    "softplus",
    "tanh",
)
EVEN = 16  # how many numbers a processor takes at once, at most
FEW, LONG = (
    32,
    1024,
)  # products of few rows, with sums so long, have other bits where the rows begin elsewhere in memory
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
        needed = ahead(*fixed, *row)
        record(rest, [*changing, *needed])
        separate_results(rest.graph, len(changing))
        call_directly(rest.graph)
        write_in_place(rest.graph)
        for part in (ahead, rest):
            forget(part)
        self.at_once = max(1, AHEAD // max(1, sum(t.nbytes for t in needed)))  # how many steps to run together
        self._ahead = torch.func.vmap(ahead, in_dims=(*[None] * len(fixed), *[0] * len(row)))
        self._step = rest.forward

    def run(self, changing: list[Tensor], fixed: list[Tensor], rows: list[Tensor]) -> Iterator[list[Tensor]]:
        """What the tensors that change are after each of the steps whose rows are given. They may be written into."""
        for values in zip(*(t.unbind() for t in self._ahead(*fixed, *rows)), strict=True):
            changing = self._step(*changing, *values)
            yield changing

    def __call__(self, changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
        return next(self.run(changing, fixed, [t[None] for t in row]))


# -- tracing -----------------------------------------------------------------------------------------------------------


def as_operations(step: Step, *examples: tuple[list[Tensor], list[Tensor], list[Tensor]]) -> Step:
    """A step as the operations that it consists of, its gradients among them, so that vmap can take many.

    ``examples`` are arguments with different values: ValueError where the operations depend on these, also for a step
    that draws random numbers or keeps statistics.
    """
    graphs = [_written_down(step, *arguments) for arguments in examples]
    first, *others = ([(n.op, n.target, str(n.args), str(n.kwargs)) for n in graph.graph.nodes] for graph in graphs)
    constants, *more = (list(graph.buffers()) for graph in graphs)
    if any(other != first for other in others) or any(not all(map(torch.equal, constants, own)) for own in more):
        raise ValueError("a step computes something else for other values")
    return lambda changing, fixed, row: graphs[0](*changing, *fixed, *row)


def trace(step: Step, changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> fx.GraphModule:
    """The step as operations that write nothing in place, with what each of them gives.

    ValueError where it writes into other arguments than those that change.
    """

    def laid_out(*lists: list[Tensor]) -> list[Tensor]:
        # The next step takes what this one returns, so the results need the memory layout of the arguments.
        return [
            t if t.stride() == before.stride() else torch.empty_like(before).copy_(t)
            for before, t in zip(lists[0], step(*lists), strict=True)
        ]

    graph = _written_down(torch.func.functionalize(laid_out), changing, fixed, row)
    arguments = graph.graph.find_nodes(op="placeholder")
    for node in graph.graph.find_nodes(op="call_function", target=aten.copy_.default):  # what it wrote into an argument
        if node.args[0] not in arguments[: len(changing)]:
            raise ValueError("a step writes into a tensor that it may only read")
        _replace(node, node.args[1])  # what was there is not read again
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _written_down(step: Step, changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> fx.GraphModule:
    """All operations of a step, with what each of them gives: no Python code is left, ours or a user's."""
    module = fx.GraphModule(torch.nn.Module(), fx.Graph())
    lists = [t.clone() for t in changing], list(fixed), list(row)  # the step may write into what changes
    with _NoReading(), _writer(module, [t for tensors in lists for t in tensors]) as writer:
        new = step(*lists)
    module.graph.output([writer.node_of(t) for t in new])
    module.recompile()
    return module


class _NoReading(TorchFunctionMode):
    """Refuses what reads values past torch's operations."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.tolist, Tensor.numpy, Tensor.__array__):
            raise ValueError(f"a step reads values ({func.__name__})")
        return func(*args, **kwargs or {})


def _writer(module: fx.GraphModule, arguments: list[Tensor]) -> Any:
    """A context that writes each operation inside it into the module's graph."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Writer(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.nodes: dict[int, fx.Node] = {}
            self.alive: list[Tensor] = []  # or another tensor could have the id of one that is gone
            for number, t in enumerate(arguments):
                self.keep(t, module.graph.placeholder(f"given_{number}"))

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # True would import torch's compiler, which takes a second

        def keep(self, t: object, node: fx.Node) -> None:
            node.meta["value"] = t
            if isinstance(t, Tensor):
                self.nodes[id(t)] = node
                self.alive.append(t)

        def node_of(self, value: object) -> Any:
            if isinstance(value, Tensor) and id(value) not in self.nodes:  # it comes from outside
                module.register_buffer(name := f"outside_{len(self.alive)}", value)
                self.keep(value, module.graph.get_attr(name))
            return self.nodes[id(value)] if isinstance(value, Tensor) else value

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            if name.startswith("_foreach"):  # vmap has none of these: they are what they are for each tensor
                each = zip(*(a if isinstance(a, list) else [a] * len(args[0]) for a in args), strict=True)
                plain = getattr(aten, name.removeprefix("_foreach_")).Tensor
                return [self.__torch_dispatch__(plain, types, one) for one in each]
            if torch.Tag.nondeterministic_seeded in func.tags:
                raise ValueError(f"a step draws random numbers ({name}), for example in random layers")
            if "batch_norm" in name:  # which writes statistics in place, though torch does not say so
                raise ValueError(f"a step keeps statistics in place ({name})")
            if torch.Tag.data_dependent_output in func.tags:  # vmap refuses shapes that depend on values
                raise ValueError(f"a step reads values ({name})")
            found = func(*args, **kwargs or {})
            node = module.graph.call_function(func, *fx.node.map_aggregate((tuple(args), kwargs or {}), self.node_of))
            self.keep(found, node)
            for i, t in enumerate(found if isinstance(found, (tuple, list)) else ()):
                self.keep(t, module.graph.call_function(operator.getitem, (node, i)))
            return found

    return Writer()


# -- a graph, and what each of its nodes gives -------------------------------------------------------------------------


class _Recorder(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        n.meta["value"] = value = super().run_node(n)
        return value


def record(graph: fx.GraphModule, arguments: list[Tensor]) -> None:
    """Keep with each node of the graph what it gives for these arguments."""
    _Recorder(graph).run(*arguments)


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


def _replace(node: fx.Node, by: Any) -> None:
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


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
        is_identity = _is(node, *COPIES) or (_is(node, aten.mul, aten.div) and node.args[1] == 1)
        if is_identity and _is_alike(node, given):
            _replace(node, given)
            continue
        before = given.args[0] if isinstance(given, fx.Node) and given.args else None
        if _is(node, aten.transpose) and _is(given, aten.transpose) and _is_alike(node, before):
            _replace(node, before)
        elif _is(node, aten.view) and _is(given, *VIEWS, aten.squeeze, aten.unsqueeze):
            node.args = (before, *node.args[1:])


def join_equal(graph: fx.Graph) -> None:
    """Compute once what is computed several times."""
    seen: dict[Hashable, fx.Node] = {}
    for node in _operations(graph):
        key = node.target, repr(node.args), repr(node.kwargs)
        if key in seen:
            _replace(node, seen[key])
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
                _replace(node, both)
                break


def divide_uneven(graph: fx.Graph) -> None:
    """Compute what may differ with its place in memory for each replica, so that no replica depends on the others."""
    for node in _operations(graph):
        value, given = node.meta["value"], node.all_input_nodes
        is_at_end = _name(node) in UNEVEN and _is_alike(node, given[0]) and value[0].numel() % EVEN > 0
        is_long = _is(node, aten.bmm) and max(value.shape[1:]) <= FEW and given[0].meta["value"].shape[2] >= LONG
        if not is_at_end and not is_long:
            continue
        with graph.inserting_before(node):
            each = []
            for replica in range(len(value)):
                own = {one: graph.call_function(aten.select.int, (one, 0, replica)) for one in given}
                if is_long:
                    copies = [graph.call_function(aten.clone.default, (own[one],)) for one in node.args]  # type: ignore[index]
                    each.append(graph.call_function(aten.mm.default, tuple(copies)))
                else:
                    each.append(graph.node_copy(node, own.__getitem__))
            stacked = graph.call_function(aten.stack.default, (each,))
        stacked.meta = node.meta
        _replace(node, stacked)


# -- what is done how, and when ----------------------------------------------------------------------------------------


def split(graph: fx.GraphModule, changing: int) -> tuple[fx.GraphModule, fx.GraphModule]:
    """A graph as two: what does not depend on its first arguments, and the rest, which takes that instead."""
    nodes, moving = list(graph.graph.nodes), set[fx.Node]()
    first = graph.graph.find_nodes(op="placeholder")[:changing]
    for node in nodes:
        depends = node in first or any(given in moving for given in node.all_input_nodes)
        if depends or node.op == "output" or _name(node) in UNEVEN:  # of many steps together these would differ
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
        if name.startswith("_") or not isinstance(expected, Tensor):
            continue
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda given: given.meta["value"])
        if _gives(expected, getattr(Tensor, name, None), args, kwargs):
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


def write_in_place(graph: fx.Graph) -> None:
    """Write a result where an argument of its operation was, if nothing else reads that afterwards.

    Of the step's arguments, that is so for one that becomes the result which takes its place.
    """
    order = {node: place for place, node in enumerate(graph.nodes)}
    memory = {node: _memory(node) for node in order}
    results = dict(zip(graph.output_node().args[0], graph.find_nodes(op="placeholder"), strict=False))  # type: ignore[arg-type]
    for node in order:
        if node.op != "call_method" or node.target not in ELEMENTWISE or node.kwargs:
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
