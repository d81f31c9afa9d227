"""Writes the operations of a step down, for one replica and then for all of them.

Tracing is refused where a step does more than compute with its arguments: where it reads values in Python, draws random
numbers, or writes elsewhere. What it reads from outside becomes a constant, which is compared before the step is used.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]  # changing, fixed, row -> changing
Lists = Sequence[list[Tensor]]  # the arguments of a step

aten = torch.ops.aten


def write_alike(pairs: Iterable[tuple[Step, Lists]]) -> fx.GraphModule:
    """The operations of steps with their arguments, their gradients among them, so that vmap can take many such steps.

    ValueError where these steps, or one step with other values, compute different things.
    """
    operations: fx.GraphModule | None = None
    for step, lists in pairs:
        again = write_down(step, *lists)
        operations = operations or again
        if not is_same(operations, again):
            reads = "a step reads something that is not in its arguments"
            raise ValueError(f"{reads}: it computes something else for other values, or for another replica")
    assert operations is not None
    return operations


def is_same(a: fx.GraphModule, b: fx.GraphModule) -> bool:
    """Whether both compute the same, with the same values from outside."""
    ours, theirs = (
        [(node.op, str(node.target), str(node.args), str(node.kwargs)) for node in graph.graph.nodes]
        for graph in (a, b)
    )
    outside, others = dict(a.named_buffers()), dict(b.named_buffers())
    return (ours, outside.keys()) == (theirs, others.keys()) and all(
        t.dtype == others[name].dtype and torch.equal(t.nan_to_num(), others[name].nan_to_num())
        for name, t in outside.items()
    )


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

    graph = write_down(torch.func.functionalize(laid_out), changing, fixed, row)
    arguments = graph.graph.find_nodes(op="placeholder")
    for node in graph.graph.find_nodes(op="call_function", target=aten.copy_.default):  # what it wrote into an argument
        if node.args[0] not in arguments[: len(changing)]:
            raise ValueError("a step writes into a tensor that it may only read")
        replace(node, node.args[1])  # what was there is not read again
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def replace(node: fx.Node, by: Any) -> None:
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


def write_down(step: Step, changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> fx.GraphModule:
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

    READING = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.__deepcopy__)
    MAKING = (torch.tensor, torch.as_tensor, torch.asarray)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.READING or (
            func in self.MAKING and isinstance(args[0], (list, tuple)) and _has_tensor(args[0])
        ):
            raise ValueError(f"a step reads values ({func.__name__})")
        return func(*args, **kwargs or {})


def _has_tensor(values: object) -> bool:
    return isinstance(values, Tensor) or (isinstance(values, (list, tuple)) and any(map(_has_tensor, values)))


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
            if isinstance(value, Tensor) and id(value) not in self.nodes:  # it comes from outside, and may change there
                module.register_buffer(name := f"outside_{len(self.alive)}", value.detach().clone())
                self.keep(value, module.graph.get_attr(name))
            return self.nodes[id(value)] if isinstance(value, Tensor) else value

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            if name in ("_foreach_mul", "_foreach_sub") and not kwargs:  # vmap has none of these
                each = zip(*(a if isinstance(a, list) else [a] * len(args[0]) for a in args), strict=True)
                plain = getattr(aten, name.removeprefix("_foreach_")).Tensor
                return [self.__torch_dispatch__(plain, types, one) for one in each]
            self.refuse(func, name)
            given, options = fx.node.map_aggregate((tuple(args), kwargs or {}), self.node_of)
            if func._schema.is_mutable and isinstance(given[0], fx.Node) and given[0].op == "get_attr":
                raise ValueError(f"a step writes into a tensor that is not in its arguments ({name})")
            found = func(*args, **kwargs or {})
            node = module.graph.call_function(func, given, options)
            self.keep(found, node)
            for i, t in enumerate(found if isinstance(found, (tuple, list)) else ()):
                self.keep(t, module.graph.call_function(operator.getitem, (node, i)))
            return found

        @staticmethod
        def refuse(func: Any, name: str) -> None:
            if torch.Tag.nondeterministic_seeded in func.tags:
                raise ValueError(f"a step draws random numbers ({name}), for example in random layers")
            if "batch_norm" in name:  # which writes statistics in place, though torch does not say so
                raise ValueError(f"a step keeps statistics in place ({name})")
            if torch.Tag.data_dependent_output in func.tags:  # vmap refuses shapes that depend on values
                raise ValueError(f"a step reads values ({name})")

    return Writer()
