"""The contract of a method. One method is one file: a class and a frozen dataclass of hyperparameters.

A method is written for ONE replica, in tensors of fixed shape: no ``.item()``, no Python branch on tensor values, no
shape that depends on data. The same ``step`` then runs eagerly, under ``torch.func.vmap`` (many replicas at once),
traced and in a CUDA graph. Whatever changes between tasks or replicas must be in its arguments: put it into the
state. A traced step does not notice when an attribute of the method changes.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from cclfp.core import trees
from cclfp.core.randomness import generator
from cclfp.core.scenarios import SCENARIOS, check_scenario
from cclfp.errors import InputError, unknown
from cclfp.losses import is_transformed
from cclfp.nets.network import Network, Tensors
from cclfp.schedules import Schedule

if TYPE_CHECKING:
    from cclfp.core.memory import Memory
    from cclfp.core.scenarios import ClassMask

State = dict[str, Any]  # nested dictionaries of tensors
Objective = Callable[[Tensors], tuple[Tensor, Any]]  # a loss of the parameters, and nested dictionaries of tensors
# What a step returns: new parameters, buffers and state, and possibly {"loss": a 0-d tensor}.
Stepped = tuple[Tensors, Tensors, State] | tuple[Tensors, Tensors, State, Tensors]


@dataclasses.dataclass(frozen=True)
class Batch:
    """A training minibatch: the current examples first, then those of each draw from the memory, all transformed."""

    x: Tensor
    y: Tensor
    task: Tensor
    mask: Tensor  # examples x classes: which classes each example may choose from
    n_current: int
    slots: Tensor  # the memory slot of each replayed example
    from_past_task: Tensor  # whether each replayed example came before the current task began
    # The slot that each current example is stored in after the step; -1: it is not stored.
    placed: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    def split(self, rows: Tensor, draws: int = 1) -> tuple[Tensor, ...]:
        """The rows of the current examples, then those of each draw. ``rows`` has one row per example.

        >>> nothing = torch.empty(0)
        >>> batch = Batch(torch.zeros(5, 2), nothing, nothing, nothing, 1, torch.arange(4), nothing)
        >>> [part.tolist() for part in batch.split(torch.arange(5), draws=2)]
        [[0], [1, 2], [3, 4]]
        """
        parts: tuple[Tensor, ...] = rows.split([self.n_current, *[len(self.slots) // draws] * draws])
        return parts


@dataclasses.dataclass(frozen=True)
class TaskContext:
    """What ``begin_task`` and ``end_task`` can use besides the model."""

    position: int  # how many tasks ended before this one
    memory: Memory  # only where the method has a schedule
    classes: ClassMask  # the classes of each task
    prepare: Callable[[Tensor], Tensor]  # from raw examples, such as the memory's, to inputs of psi
    seed: int

    def generator(self, purpose: str) -> torch.Generator:
        """A generator for the method's own use, determined by the seed, the task and the purpose."""
        return generator(self.seed, purpose, self.position)


def setting(
    default: float,
    doc: str,
    *,
    low: float,
    high: float = math.inf,
    low_open: bool = False,
    whole: bool = False,
    before: float | str | None = None,
    search: Sequence[float] = (),
) -> Any:
    """A field for a hyperparameter: its default, one line of documentation and the interval of its values.

    A hyperparameter that is added after the method was released has the value that runs had ``before``: a number, or
    the name of the setting that it was equal to. Records and files without the hyperparameter mean that value, and a
    run with that value keeps its key.

    ``search`` are the values that ``cclfp tune`` tries; without any it leaves the hyperparameter at its default.
    """
    bounds = {"doc": doc, "low": low, "high": high, "low_open": low_open, "whole": whole, "before": before}
    return dataclasses.field(default=default, metadata={**bounds, "search": tuple(map(float, search))})


def interval(field: dataclasses.Field[Any]) -> str:
    """The interval of a hyperparameter in mathematical notation: ``[0, 1]``, ``(0, inf)``."""
    m = field.metadata
    left = "(" if m["low_open"] else "["
    right = ")" if math.isinf(m["high"]) else "]"
    return f"{left}{m['low']:g}, {m['high']:g}{right}"


@dataclasses.dataclass(frozen=True)
class Hyperparameters:
    """Hyperparameters of every method. Users give numbers; a step sees each one as a 0-d tensor."""

    lr: float = setting(0.1, "step size of plain SGD", low=0, low_open=True)


class Method:
    """Base of all methods: SGD on ``loss``. Override ``loss``, or ``step`` where SGD on one loss is not enough.

    ``cclfp.methods.er`` is the shortest example; docs/own-method.md shows more.
    """

    name: ClassVar[str]
    reference: ClassVar[str] = ""
    Hyper: ClassVar[type[Hyperparameters]] = Hyperparameters
    refuses: ClassVar[dict[str, str]] = {}  # scenarios for which it is not defined, and why
    schedule: ClassVar[type[Schedule] | None] = None  # how the memory is filled and replayed; None: no memory
    # Whether batches include examples from the memory, if there is one: as many as the setting ``replay`` says, or as
    # the hyperparameter with this name says.
    replays: ClassVar[bool | str] = True
    draws: ClassVar[int] = 1  # how often that many examples are drawn for each batch, independently of each other
    keeps_task: ClassVar[bool] = False  # the memory also holds the current task until its end
    joint: ClassVar[bool] = False  # train on one shuffled stream of all tasks
    # Whether a loss is about the logits of all classes on purpose, also of those that no example may choose yet, as
    # when logits are distilled. Otherwise check_method takes it for a loss that lacks its mask. It changes no training.
    moves_every_row: ClassVar[bool] = False

    def __init__(self, net: Network) -> None:
        self.net = net

    def loss(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> tuple[Any, ...]:
        """The loss on a batch, and psi's buffers after the forward pass on it.

        A third value is optional: a dictionary of the values to :meth:`remember` of the current examples.
        """
        raise NotImplementedError

    def step(self, params: Tensors, buffers: Tensors, state: State, batch: Batch, hyper: Any) -> Stepped:
        """One training step: new parameters, buffers and state. The arguments stay as they are.

        A fourth value is optional: a dictionary with ``loss``, a 0-d tensor, which ``Learner.observe`` returns. Here it
        is the value of :meth:`loss` before the step.
        """

        def objective(p: Tensors) -> tuple[Tensor, dict[str, Tensors]]:
            returned = self.loss(p, buffers, state, batch, hyper)
            loss, after, values = unpack(f"loss of {self.name}", returned, "loss", "buffers")
            return loss, {"buffers": after, "values": values}

        grads, loss, aux = gradient_and_loss(objective, params)
        state = self.remember(state, batch, aux["values"])
        return self.net.sgd(params, grads, hyper.lr), aux["buffers"], state, {"loss": loss}

    @classmethod
    def remembers(cls, num_classes: int) -> dict[str, tuple[int, ...]]:
        """What is stored beside each example in the memory: names, and the shape of one example's values.

        ``state[name]`` then has one row per slot of the memory, zeros at first. The values of replayed examples are
        ``state[name][batch.slots]``. The default ``step`` stores what ``loss`` returns as its third value.
        """
        return {}

    def remember(self, state: State, batch: Batch, values: Mapping[str, Tensor]) -> State:
        """The state with the values of those current examples that the memory stores; one row per current example."""
        declared, new = self.remembers(batch.mask.shape[-1]), {}
        for name, rows in values.items():
            if name not in declared or rows.shape != (batch.n_current, *declared[name]):
                got = f"values of {name!r} of shape {tuple(rows.shape)} for {batch.n_current} current examples"
                raise InputError(f"{self.name} has {got}, but its remembers() declares {declared} for each of them")
            stored = state[name]
            slots = torch.arange(len(stored), device=batch.placed.device)
            hits = batch.placed == slots[:, None]  # slots x current examples: no index that depends on data
            chosen = rows.detach().to(stored.dtype)[hits.int().argmax(1)]
            new[name] = torch.where(hits.any(1).view(-1, *[1] * (stored.ndim - 1)), chosen, stored)
        return {**state, **new}

    def begin_task(self, params: Tensors, buffers: Tensors, state: State, hyper: Any, context: TaskContext) -> State:
        """The method's state at the start of a task. Any Python code is allowed. The learner copies new tensors."""
        return state

    def end_task(self, params: Tensors, buffers: Tensors, state: State, hyper: Any, context: TaskContext) -> State:
        """The method's state after a task. Any Python code is allowed. The learner copies new tensors."""
        return state

    def scores(self, params: Tensors, buffers: Tensors, state: State, x: Tensor) -> Tensor:
        """One score per class: f(psi(x)). The prediction is the allowed class with the largest score."""
        return self.net.classify(params, self.net.frozen_features(params, buffers, x))

    def storage(self, params: Tensors, memory: Memory | None) -> Tensors:
        """The tensors for what the method :meth:`remembers`, before anything is stored."""
        weight = params["f.weight"]
        shapes = self.remembers(len(weight))
        if shapes and (memory is None or memory.keeps_task):
            raise InputError(f"{self.name} remembers {', '.join(shapes)}, but no example is stored at its step")
        size = 0 if memory is None else memory.size
        return {name: weight.new_zeros(size, *shape) for name, shape in shapes.items()}

    @classmethod
    def scenarios(cls) -> list[str]:
        """The scenarios for which the method is defined."""
        return [scenario for scenario in SCENARIOS if scenario not in cls.refuses]

    @classmethod
    def check_scenario(cls, scenario: str) -> None:
        """InputError for a scenario for which the method is not defined."""
        check_scenario(scenario)
        if scenario in cls.refuses:
            raise InputError(f"{cls.name} is not defined in the {scenario} scenario: {cls.refuses[scenario]}")

    @classmethod
    def defaults(cls, scenario: str) -> dict[str, float]:
        """Defaults for a scenario that differ from those of the dataclass."""
        return {}

    @classmethod
    def hyper(cls, scenario: str, /, **given: float) -> Hyperparameters:
        """The given hyperparameters, with defaults for the others; InputError for an unknown name or invalid value."""
        fields = {field.name: field for field in dataclasses.fields(cls.Hyper)}
        for name, value in given.items():
            if name not in fields:
                raise unknown(f"hyperparameter of {cls.name}", name, fields)
            m = fields[name].metadata
            fine = _is_finite(value) and m["low"] <= value <= m["high"] and not (m["low_open"] and value == m["low"])
            if not fine or (m["whole"] and value != int(value)):
                kind = "a whole number" if m["whole"] else "a number"
                raise InputError(f"{name}={value!r}: expected {kind} in {interval(fields[name])} ({m['doc']})")
        return cls.Hyper(**{name: float(value) for name, value in {**cls.defaults(scenario), **given}.items()})

    @classmethod
    def earlier_values(cls, settings: Mapping[str, Any]) -> dict[str, float]:
        """The hyperparameters added later, at the values that runs with these other settings had before."""
        known = {field.name: field.metadata.get("before") for field in dataclasses.fields(cls.Hyper)}
        return {name: settings[b] if isinstance(b, str) else b for name, b in known.items() if b is not None}

    @classmethod
    def replay_size(cls, hyper: Hyperparameters, replay: int | None) -> int:
        """How many examples of the memory join each batch at most; 0: none."""
        if cls.schedule is None or not cls.replays:
            return 0
        return int(getattr(hyper, cls.replays)) if isinstance(cls.replays, str) else replay or 0


def _is_finite(value: object) -> bool:
    """Whether the value is a finite number that fits in a float; numpy numbers are accepted."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int with hundreds of digits
        return False


def unpack(what: str, returned: Any, *names: str) -> list[Any]:
    """The named values that a ``step`` or ``loss`` returned, then its dictionary; InputError where it is not these."""
    several = returned if isinstance(returned, tuple) else (returned,)
    values = [*several, {}] if len(several) == len(names) else [*several]
    if len(values) != len(names) + 1 or not isinstance(values[-1], dict):
        got = ", ".join(type(value).__name__ for value in several)
        raise InputError(f"{what} returned ({got}), expected ({', '.join(names)}) or these and a dict")
    loss = values[0] if names[0] == "loss" else values[-1].get("loss", torch.zeros(()))
    if not isinstance(loss, Tensor) or loss.ndim:
        got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise InputError(f"{what} returned {got} as the loss, expected a 0-d tensor")
    return values


def gradient(objective: Objective, params: Tensors) -> tuple[Tensors, Any]:
    """The gradient of the objective's first output with respect to each parameter, and its second output.

    >>> grads, _ = gradient(lambda p: ((p["a"] ** 2).sum(), {}), {"a": torch.tensor([1.0, 2.0])})
    >>> grads["a"]
    tensor([2., 4.])
    """
    grads, _, aux = gradient_and_loss(objective, params)
    return grads, aux


def gradient_and_loss(objective: Objective, params: Tensors) -> tuple[Tensors, Tensor, Any]:
    """The gradient of the objective's first output, that output itself (the loss), and its second output.

    The second output is a dictionary of tensors, or of such dictionaries.

    >>> grads, loss, _ = gradient_and_loss(lambda p: ((p["a"] ** 2).sum(), {}), {"a": torch.tensor([1.0, 2.0])})
    >>> loss
    tensor(5.)
    """
    # Under vmap and torch.compile only torch.func works; elsewhere autograd.grad takes two thirds of its time.
    params = {name: p.detach() for name, p in params.items()}
    if is_transformed():
        grads, (loss, aux) = torch.func.grad_and_value(objective, has_aux=True)(params)
        return grads, loss, aux
    leaves = {name: p.requires_grad_() for name, p in params.items()}
    with torch.enable_grad():
        loss, aux = objective(leaves)
    of_each = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(params, of_each, strict=True)), loss.detach(), trees.map_tree(Tensor.detach, aux)
