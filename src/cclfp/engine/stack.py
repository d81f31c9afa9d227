"""Many replicas as one: the tensors that their steps read and write in flat lists, and a function that takes a step.

The same function then runs as it is, compiled, or in a CUDA graph. :class:`Stack` has the replicas side by side in each
tensor, one operation for all of them (vmap). :class:`Fork` keeps them apart and lets them run at the same time; that is
for BatchNorm, whose statistics each network updates in place, and for large convolutions, which gain nothing stacked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from cclfp.engine.plan import Plan
from cclfp.engine.precision import computing_in
from cclfp.learner import Learner
from cclfp.memory import Examples
from cclfp.methods import Batch
from cclfp.scenarios import ClassMask

Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]  # changing, fixed, row -> changing
Compile = Callable[..., Step]  # of a step and three arguments like those it will be called with

TOLERANCE = 0.02  # by how much of itself a step may differ from the one that a replica takes alone
ROUGH = 0.2  # the same where psi computes in bf16
CHECKED = 16  # at most so many replicas are compared with what they do alone


class Row(NamedTuple):
    """What one step of all replicas is made of: a line of their plans' tables, replicas first."""

    rows: Tensor  # replicas x examples: which of the pool's inputs
    y: Tensor  # replicas x examples
    task: Tensor  # replicas x examples
    slots: Tensor  # replicas x replayed
    settled: Tensor  # replicas x replayed
    augment: Tensor  # replicas x examples x what the augmentation draws; empty where there is none


class Tables:
    """The plans of one task of all replicas, of the same sizes at every step.

    ``offsets`` says where in the pool the inputs of each replica's stream begin. The tables have room for ``room``
    steps, so that those of all tasks are of one shape.
    """

    def __init__(
        self, plans: Sequence[Plan], streams: Sequence[Examples], offsets: Sequence[int], room: int = 0
    ) -> None:
        self.sizes = plans[0].sizes
        if any(plan.sizes != self.sizes for plan in plans):
            raise ValueError("their tasks are of different sizes")
        # Replicas may share a plan. Streams that share their inputs may still differ in what task a class belongs to.
        kinds = list(dict.fromkeys(zip(map(id, plans), map(id, streams), offsets, strict=True)))
        which = [kinds.index(kind) for kind in zip(map(id, plans), map(id, streams), offsets, strict=True)]
        first = [which.index(kind) for kind in range(len(kinds))]
        chosen = [(plans[i], streams[i], offsets[i]) for i in first]
        augmented = [plan.augment for plan, _, _ in chosen if plan.augment is not None]
        tables = Row(
            torch.stack([plan.rows + offset for plan, _, offset in chosen], 1),
            torch.stack([stream.y[plan.rows] for plan, stream, _ in chosen], 1),
            torch.stack([stream.task[plan.rows] for plan, stream, _ in chosen], 1),
            torch.stack([plan.slots for plan, _, _ in chosen], 1),
            torch.stack([plan.settled for plan, _, _ in chosen], 1),
            torch.stack(augmented, 1) if augmented else torch.empty(len(self.sizes), len(chosen), 0),
        )
        index = torch.tensor(which, device=tables.rows.device)
        self.tables = Row(*(_longer(t.to(index.device).index_select(1, index), room) for t in tables))

    def row(self, step: int) -> list[Tensor]:
        return self._cut([t[step] for t in self.tables], *self.sizes[step])

    def row_at(self, counter: Tensor, like: int) -> list[Tensor]:
        """The row of the step that a (1,) tensor counts, whose sizes are those of step ``like``."""
        return self._cut([t.index_select(0, counter).squeeze(0) for t in self.tables], *self.sizes[like])

    def segments(self) -> list[range]:
        """The steps in runs of equal sizes."""
        starts = [i for i, size in enumerate(self.sizes) if i == 0 or size != self.sizes[i - 1]]
        return [range(a, b) for a, b in zip(starts, [*starts[1:], len(self.sizes)], strict=True)]

    def of(self, replicas: slice) -> Tables:
        """The tables of some of the replicas."""
        some = object.__new__(Tables)
        some.sizes, some.tables = self.sizes, Row(*(t[:, replicas].contiguous() for t in self.tables))
        return some

    def _cut(self, row: list[Tensor], current: int, replayed: int) -> list[Tensor]:
        size = current + replayed
        widths = (size, size, size, replayed, replayed, size)
        return [t[:, :width] for t, width in zip(row, widths, strict=True)]


class Together(Protocol):
    """What an engine needs to know of replicas in a task that has begun. ``put_back`` gives them what steps made."""

    learners: Sequence[Learner]
    changing: list[Tensor]  # what their steps change
    fixed: list[Tensor]  # what their steps only read; the pool of inputs first

    @property
    def structure(self) -> str:
        """What tells the program of one step from that of another, besides the shapes of its tensors."""

    def stepper(self, tables: Tables, like: int, compile: Compile | None = None) -> Step:
        """A function that takes steps like the one of that number, for all replicas; compiled if a compiler is given.

        An error here is one of a step that cannot be taken so.
        """

    def put_back(self, changing: list[Tensor], steps: int) -> None:
        """Let the learners go on from what ``steps`` steps made of ``changing``."""


def together(learners: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor) -> Stack | Fork:
    """The learners, whose task has begun, in the form that suits their network."""
    return (Fork if is_normalised(learners[0].psi) else Stack)(learners, masks, pool)


def is_normalised(psi: nn.Module) -> bool:
    """Whether psi has BatchNorm (or a relative that keeps statistics)."""
    return any(isinstance(module, nn.modules.batchnorm._NormBase) for module in psi.modules())


class Stack:
    """Replicas as one network with a dimension more."""

    def __init__(self, learners: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor) -> None:
        self.learners = learners
        self._first = learners[0]
        leaves, self._spec = stacked([learner.model for learner in learners])
        self.changing = leaves if pool.is_cuda else [_turned(t) for t in leaves]
        hypers, self._hyper_spec = stacked([dataclasses.asdict(learner.hyper_tensors) for learner in learners])
        self.fixed = [pool, torch.stack([_mask_table(mask) for mask in masks]), *hypers]

    @property
    def structure(self) -> str:
        return f"{self._first.method_name} {self._spec} {self._hyper_spec}"

    def stepper(self, tables: Tables, like: int, compile: Compile | None = None) -> Step:
        current, row = tables.sizes[like][0], tables.row(like)

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            return self._step(changing, fixed, row, current)

        taken = step if compile is None else compile(step, self.changing, self.fixed, row)
        with computing_in("float32"):
            before = _shaken(self.changing)
            new = taken([t.clone() for t in before], self.fixed, row)
            batches = _batches(self._first, self.fixed, row)
            for replica in _some_of(self.learners):
                own, ours, batch = ([t[replica] for t in tensors] for tensors in (before, new, batches))
                learner = self.learners[replica]
                given = [t.clone() for t in own]
                alone = _flat_step(learner, given, self._spec, _batch(batch, current), learner.hyper_tensors)
                _compare(own, ours, alone)
        return taken

    def put_back(self, changing: list[Tensor], steps: int) -> None:
        for replica, learner in enumerate(self.learners):
            own = [t[replica].clone() for t in changing]
            params, buffers, state = tree_unflatten(own, self._spec)
            learner.take(params, buffers, state, steps)

    def _step(self, changing: list[Tensor], fixed: list[Tensor], row: list[Tensor], current: int) -> list[Tensor]:
        """One step of all replicas, ``current`` of whose examples are new: what is changing after it."""
        first, kind = self._first, type(self._first.hyper)
        hypers, batches = fixed[2:], _batches(self._first, fixed, row)

        def one(changing: list[Tensor], hypers: list[Tensor], *batch: Tensor) -> list[Tensor]:
            hyper = kind(**tree_unflatten(hypers, self._hyper_spec))
            return _flat_step(first, changing, self._spec, _batch(batch, current), hyper)

        new: list[Tensor] = torch.func.vmap(one)(changing, hypers, *batches)
        return new


class Fork:
    """Replicas side by side, each on a stream of its own where the device has streams."""

    def __init__(self, learners: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor) -> None:
        self.learners = learners
        leaves, specs = zip(*(tree_flatten(learner.model) for learner in learners), strict=True)
        self._spec: TreeSpec = specs[0]
        self._length = len(leaves[0])
        self.changing = [leaf.detach() for own in leaves for leaf in own]
        hypers = [tree_flatten(dataclasses.asdict(learner.hyper_tensors)) for learner in learners]
        self._hyper_spec = hypers[0][1]
        self._hypers = len(hypers[0][0])
        own = [hyper for several, _ in hypers for hyper in several]
        self.fixed = [pool, torch.stack([_mask_table(mask) for mask in masks]), *own]
        self._streams = [torch.cuda.Stream(pool.device) for _ in learners] if pool.is_cuda else []

    @property
    def structure(self) -> str:
        return f"{self.learners[0].method_name} {len(self.learners)} apart {self._spec} {self._hyper_spec}"

    def stepper(self, tables: Tables, like: int, compile: Compile | None = None) -> Step:
        current, row = tables.sizes[like][0], tables.row(like)

        def of(learner: Learner) -> Step:
            def step(changing: list[Tensor], hypers: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
                hyper = type(learner.hyper)(**tree_unflatten(hypers, self._hyper_spec))
                return _flat_step(learner, changing, self._spec, _batch(batch, current), hyper)

            return step

        def copied(replica: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
            changing, hypers, batch = self._own(replica, shaken, self.fixed, batches)
            return [t.clone() for t in changing], hypers, batch

        batches, shaken = _batches(self.learners[0], self.fixed, row), _shaken(self.changing)
        steps = [of(learner) for learner in self.learners]
        if compile is not None:
            program = compile(steps[0], *copied(0))
            tolerance = TOLERANCE if self.learners[0].autocast is None else ROUGH
            with computing_in("float32"):
                for replica in _some_of(self.learners):
                    ours, theirs = program(*copied(replica)), steps[replica](*copied(replica))
                    _compare(copied(replica)[0], ours, theirs, tolerance)
            steps = [program] * len(steps)
        else:
            _refuse_randomness(lambda: steps[0](*copied(0)), row[0].device)

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            batches = _batches(self.learners[0], fixed, row)
            new: list[Tensor] = []
            for replica, one in enumerate(steps):
                arguments = self._own(replica, changing, fixed, batches)
                if not self._streams:
                    new += one(*arguments)
                    continue
                self._streams[replica].wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self._streams[replica]):
                    new += one(*arguments)
            for stream in self._streams:
                torch.cuda.current_stream().wait_stream(stream)
            return new

        return step

    def put_back(self, changing: list[Tensor], steps: int) -> None:
        for replica, learner in enumerate(self.learners):
            own = [t.clone() for t in changing[replica * self._length : (replica + 1) * self._length]]
            params, buffers, state = tree_unflatten(own, self._spec)
            learner.take(params, buffers, state, steps)

    def _own(
        self, replica: int, changing: list[Tensor], fixed: list[Tensor], batches: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        first = 2 + replica * self._hypers
        return (
            changing[replica * self._length : (replica + 1) * self._length],
            fixed[first : first + self._hypers],
            [t[replica] for t in batches],
        )


def _flat_step(learner: Learner, changing: list[Tensor], spec: TreeSpec, batch: Batch, hyper: Any) -> list[Tensor]:
    params, buffers, state = tree_unflatten(changing, spec)
    new, new_spec = tree_flatten(learner.method.step(params, buffers, state, batch, hyper))
    if new_spec != spec:
        raise TypeError(f"a step of {learner.method_name} gave a state of another structure than it took")
    return new


def _compare(before: list[Tensor], ours: list[Tensor], theirs: list[Tensor], tolerance: float = TOLERANCE) -> None:
    """See that a step taken together is the one that a replica takes by itself, to a fiftieth of it.

    It is not where a step reads something of a learner's own that is not among its arguments: a frozen layer drawn from
    its seed, an attribute of psi or of the method.
    """
    off = size = 0.0
    for start, a, b in zip(before, ours, theirs, strict=True):
        both = ~(a.isnan() & b.isnan())
        off += float((a.double() - b.double())[both].square().sum())
        size += float((b.double() - start.double())[both].square().sum())
    if not off <= tolerance**2 * size + 1e-12:
        share = (off / size) ** 0.5 if size else float("inf")
        text = f"a step is off by {share:.1%}: it reads something that differs between them and is not in its arguments"
        raise ValueError(text)


def _shaken(tensors: list[Tensor]) -> list[Tensor]:
    """The tensors, each changed a little, by a share of its own.

    Where a task begins, a network is its old self and has the outputs that were stored, and the gradient of a distance
    to these is what rounding makes of it: no place to compare steps at.
    """
    shares = (1 + 0.02 * ((number + 1) * 0.618 % 1) for number in range(len(tensors)))
    return [t * share if t.is_floating_point() else t for t, share in zip(tensors, shares, strict=True)]


def _refuse_randomness(step: Callable[[], object], device: torch.device) -> None:
    """Random layers would draw from generators that all replicas share; the eager engine seeds them at every step."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    before = [g.get_state() for g in generators]
    step()
    if any(not torch.equal(g.get_state(), state) for g, state in zip(generators, before, strict=True)):
        for g, state in zip(generators, before, strict=True):
            g.set_state(state)
        raise ValueError("psi or a transform has random layers")


def _some_of(learners: Sequence[Learner]) -> list[int]:
    """Replicas to compare with what they do alone: all where they are few, else some, of different seeds."""
    if len(learners) <= CHECKED:
        return list(range(len(learners)))
    first_of = {learner.seed: replica for replica, learner in reversed(list(enumerate(learners)))}
    return sorted(first_of.values())[:CHECKED]


def _batches(learner: Learner, fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
    """The tensors of a minibatch (see :func:`_batch`), replicas first. All of a cohort's learners prepare alike."""
    pool, masks = fixed[:2]
    rows, y, task, slots, settled, augment = row
    images = learner.prepare_training(pool[rows.flatten()], augment.flatten(0, 1) if augment.numel() else None)
    replicas = torch.arange(len(rows), device=rows.device)[:, None]
    return [images.unflatten(0, (len(rows), -1)), y, task, masks[replicas, task], slots, settled]


def _batch(tensors: Sequence[Tensor], current: int) -> Batch:
    x, y, task, mask, slots, settled = tensors
    return Batch(x, y, task, mask, current, slots, settled)


def _mask_table(mask: ClassMask) -> Tensor:
    """tasks x classes: the mask of an example of each task."""
    return mask.train(torch.arange(len(mask.classes_of), device=mask.classes_of.device))


def stacked(trees: Sequence[Any]) -> tuple[list[Tensor], TreeSpec]:
    """The leaves of equal trees, each stacked over them."""
    leaves, specs = zip(*(tree_flatten(tree) for tree in trees), strict=True)
    if any(spec != specs[0] for spec in specs):
        raise ValueError("their states differ in structure")
    return [torch.stack([leaf.detach() for leaf in several]) for several in zip(*leaves, strict=True)], specs[0]


def _turned(t: Tensor) -> Tensor:
    """Stacked matrices with their columns together in memory.

    A CPU's matmul of a minibatch with a layer's weights takes a third of the time so.
    """
    return t.mT.contiguous().mT if t.ndim == 3 else t


def _longer(table: Tensor, steps: int) -> Tensor:
    if len(table) >= steps:
        return table
    return torch.cat([table, table.new_zeros(steps - len(table), *table.shape[1:])])
