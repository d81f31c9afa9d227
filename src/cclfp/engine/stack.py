"""Many replicas as one: the tensors that their steps read and write in flat lists, and a function that takes a step.

The same function then runs as it is, compiled, or in a CUDA graph. :class:`Stack` has the replicas side by side in each
tensor, one operation for all of them (vmap). :class:`Fork` keeps them apart and lets them run at the same time; that is
for BatchNorm, whose statistics each network updates in place, and for large convolutions, which gain nothing stacked by
PyTorch. :class:`KernelStack` is for ResNet18 in bf16 on a card that has our own kernels (:mod:`cclfp.nets.stacked`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import MappingKey, TreeSpec, tree_flatten, tree_flatten_with_path, tree_map, tree_unflatten

from cclfp.core.finite import not_finite
from cclfp.core.memory import Examples
from cclfp.core.scenarios import ClassMask
from cclfp.engine.plan import Plan
from cclfp.learner import Learner
from cclfp.methods import Batch
from cclfp.nets.stacked import round_all, rounded

Step = Callable[[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]  # changing, fixed, row -> changing
Compile = Callable[..., Step]  # of a step and three arguments like those it will be called with

# By how much of itself a tensor's step may differ from the one that a replica takes alone. In bf16 the steps of some of
# ResNet18's tensors, compiled and not, differ by a third.
TOLERANCE = {"float32": 0.02, "tf32": 0.2, "bf16": 0.6}
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

    def _cut(self, row: list[Tensor], current: int, replayed: int) -> list[Tensor]:
        size = current + replayed
        widths = (size, size, size, replayed, replayed, size)
        return [t[:, :width] for t, width in zip(row, widths, strict=True)]


class Together:
    """Replicas in a task that has begun, as an engine sees them. Base of :class:`Stack` and :class:`Fork`."""

    changing: list[Tensor]  # what their steps change
    fixed: list[Tensor]  # what their steps only read; the pool of inputs and the tables of masks first

    def __init__(self, learners: Sequence[Learner]) -> None:
        self.learners = learners
        self._specs = [tree_flatten(learner.model)[1] for learner in learners]
        if any(spec != self._specs[0] for spec in self._specs):
            raise ValueError("their states differ in structure")
        self._spec = self._specs[0]
        self._hyper_spec = tree_flatten(dataclasses.asdict(learners[0].hyper_tensors))[1]

    @property
    def structure(self) -> str:
        """What tells the program of one step from that of another, besides the shapes of its tensors."""
        return f"{type(self).__name__} {self.learners[0].method_name} {self._spec} {self._hyper_spec}"

    def stepper(self, tables: Tables, like: int, compile: Compile | None = None) -> Step:
        """A function that takes steps like the one of that number, for all replicas; compiled if a compiler is given.

        An error here is one of a step that cannot be taken so.
        """
        raise NotImplementedError

    def own(self, tensors: list[Tensor], replica: int) -> list[Tensor]:
        """A replica's part of what is changing."""
        raise NotImplementedError

    def shaken(self) -> list[Tensor]:
        """What is changing, each tensor changed a little (see :func:`_shaken`)."""
        return _shaken(self.changing)

    def check(self, step: Step, tables: Tables, like: int) -> None:
        """See that a step taken together is the one that each replica takes by itself.

        It is not where a step reads something that is not among its arguments: a frozen layer drawn from the learner's
        seed, an attribute that another task, or another replica, has set.
        """
        current, row = tables.sizes[like][0], tables.row(like)
        before = self.shaken()
        new = step([t.clone() for t in before], self.fixed, row)
        batches = _batches(self.learners[0], self.fixed, row)
        precision = "tf32" if row[0].is_cuda and torch.backends.cuda.matmul.allow_tf32 else "float32"
        tolerance = TOLERANCE[precision if self.learners[0].autocast is None else "bf16"]
        for replica in _some_of(self.learners):
            learner, own = self.learners[replica], self.own(before, replica)
            batch = _batch([t[replica] for t in batches], current)
            alone = _flat_step(learner, [t.clone() for t in own], self._spec, batch, learner.hyper_tensors)
            params: dict[str, Tensor] = tree_unflatten(alone, self._spec)[0]
            if not_finite(list(params.values())):  # it diverges: there is nothing to compare
                continue
            _compare(own, self.own(new, replica), alone, tolerance)

    def put_back(self, changing: list[Tensor], steps: int) -> None:
        """Let the learners go on from what ``steps`` steps made of ``changing``, all of them or, on an error, none."""
        after = []
        for replica in range(len(self.learners)):
            params, buffers, state = tree_unflatten(self.own(changing, replica), self._spec)
            after.append((params, buffers, tree_map(torch.clone, state)))
        for learner, (params, buffers, state) in zip(self.learners, after, strict=True):
            learner.take(params, buffers, state, steps)
        self.changing, self.fixed = [], []  # functions that were made for this task may stay


def together(
    learners: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor, *, kernels: bool = True
) -> Together:
    """The learners, whose task has begun, in the form that suits their network; with our own ``kernels`` or without."""
    if not is_normalised(learners[0].psi):
        return Stack(learners, masks, pool)
    return (KernelStack if kernels and has_kernels(learners, pool) else Fork)(learners, masks, pool)


def has_kernels(learners: Sequence[Learner], pool: Tensor) -> bool:
    """Whether there are kernels for these learners as one network: there must be at least two."""
    layout = learners[0].method.net.layout
    return len(learners) > 1 and layout is not None and layout.takes(learners[0].prepare_testing(pool[:1]))


def is_normalised(psi: nn.Module) -> bool:
    """Whether psi has BatchNorm (or a relative that keeps statistics)."""
    return any(isinstance(module, nn.modules.batchnorm._NormBase) for module in psi.modules())


class Stack(Together):
    """Replicas as one network with a dimension more."""

    def __init__(self, learners: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor) -> None:
        super().__init__(learners)
        leaves, _ = stacked([learner.model for learner in learners])
        self.changing = leaves if pool.is_cuda else [_turned(t) for t in leaves]
        hypers, _ = stacked([dataclasses.asdict(learner.hyper_tensors) for learner in learners])
        self.fixed = [pool, torch.stack([_mask_table(mask) for mask in masks]), *hypers]

    def own(self, tensors: list[Tensor], replica: int) -> list[Tensor]:
        return [t[replica] for t in tensors]

    def stepper(self, tables: Tables, like: int, compile: Compile | None = None) -> Step:
        current, first, spec, hyper_spec = tables.sizes[like][0], self.learners[0], self._spec, self._hyper_spec

        def one(changing: list[Tensor], hypers: list[Tensor], *batch: Tensor) -> list[Tensor]:
            hyper = type(first.hyper)(**tree_unflatten(hypers, hyper_spec))
            return _flat_step(first, changing, spec, _batch(batch, current), hyper)

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            new: list[Tensor] = torch.func.vmap(one)(changing, fixed[2:], *_batches(first, fixed, row))
            return new

        return step if compile is None else compile(step, self.changing, self.fixed, tables.row(like))


class KernelStack(Stack):
    """Replicas of ResNet18 as one network, in kernels of our own.

    Behind the tensors that change there are copies of the filters of networks among them, rounded to what the kernels
    read. A state that holds an old network holds its statistics too; what else has a parameter's name, such as SI's
    sums, no kernel reads.
    """

    def __init__(self, learners: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor) -> None:
        super().__init__(learners, masks, pool)
        layout = learners[0].method.net.layout
        assert layout is not None
        names = {f"psi.{name}" for name in layout.filters}
        params, buffers, _ = learners[0].model
        paths = [path for path, _ in tree_flatten_with_path(learners[0].model)[0]]
        keys = [path[-1].key if isinstance(path[-1], MappingKey) else None for path in paths]
        in_state = range(len(params) + len(buffers), len(paths))
        filters = [i for i, key in enumerate(keys) if key in names]
        has_old = any(keys[i] in buffers for i in in_state)
        self._dtype, self._leaves = layout.dtype, len(paths)
        self._filters = [i for i in filters if has_old or i not in in_state]
        leaves = [_channels_last(t) if i in filters else t for i, t in enumerate(self.changing)]
        self.changing = self._with_copies(leaves)

    def own(self, tensors: list[Tensor], replica: int) -> list[Tensor]:
        return super().own(tensors[: self._leaves], replica)

    def shaken(self) -> list[Tensor]:
        return self._with_copies(_shaken(self.changing[: self._leaves]))

    def _with_copies(self, leaves: list[Tensor]) -> list[Tensor]:
        return [*leaves, *round_all([leaves[i] for i in self._filters], self._dtype)]

    def stepper(self, tables: Tables, like: int, compile: Compile | None = None) -> Step:
        plain, filters = super().stepper(tables, like), self._filters  # the compiler cannot see into our kernels

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            leaves = changing[: self._leaves]
            with rounded([leaves[i] for i in filters], changing[self._leaves :], leaves) as copies:
                new = plain(leaves, fixed, row)
            known = [copies.get(new[i]) for i in filters]
            missing = [new[i] for i, copy in zip(filters, known, strict=True) if copy is None]
            made = iter(round_all(missing, self._dtype))
            return [*new, *(next(made) if copy is None else copy for copy in known)]

        return step


class Fork(Together):
    """Replicas side by side, each on a stream of its own where the device has streams."""

    def __init__(self, learners: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor) -> None:
        super().__init__(learners)
        leaves = [tree_flatten(learner.model)[0] for learner in learners]
        hypers = [tree_flatten(dataclasses.asdict(learner.hyper_tensors))[0] for learner in learners]
        self._leaves, self._hypers = len(leaves[0]), len(hypers[0])
        self.changing = [leaf.detach() for own in leaves for leaf in own]
        self.fixed = [pool, torch.stack([_mask_table(mask) for mask in masks]), *(h for own in hypers for h in own)]
        self._streams = [torch.cuda.Stream(pool.device) for _ in learners] if pool.is_cuda else []

    def own(self, tensors: list[Tensor], replica: int) -> list[Tensor]:
        return tensors[replica * self._leaves : (replica + 1) * self._leaves]

    def stepper(self, tables: Tables, like: int, compile: Compile | None = None) -> Step:
        current, row = tables.sizes[like][0], tables.row(like)

        def of(learner: Learner) -> Step:
            def step(changing: list[Tensor], hypers: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
                hyper = type(learner.hyper)(**tree_unflatten(hypers, self._hyper_spec))
                return _flat_step(learner, changing, self._spec, _batch(batch, current), hyper)

            return step

        def arguments(
            replica: int, changing: list[Tensor], fixed: list[Tensor], batches: list[Tensor]
        ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
            hypers = fixed[2 + replica * self._hypers : 2 + (replica + 1) * self._hypers]
            return self.own(changing, replica), hypers, [t[replica] for t in batches]

        steps = [of(learner) for learner in self.learners]
        changing, *others = arguments(0, self.changing, self.fixed, _batches(self.learners[0], self.fixed, row))
        _refuse_randomness(lambda: steps[0]([t.clone() for t in changing], *others), row[0].device)
        if compile is not None:
            steps = [compile(steps[0], changing, *others)] * len(steps)

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            batches = _batches(self.learners[0], fixed, row)
            new: list[Tensor] = []
            for replica, one in enumerate(steps):
                given = arguments(replica, changing, fixed, batches)
                if not self._streams:
                    new += one(*given)
                    continue
                self._streams[replica].wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self._streams[replica]):
                    new += one(*given)
            for stream in self._streams:
                torch.cuda.current_stream().wait_stream(stream)
            return new

        return step


def _flat_step(learner: Learner, changing: list[Tensor], spec: TreeSpec, batch: Batch, hyper: Any) -> list[Tensor]:
    params, buffers, state = tree_unflatten(changing, spec)
    new, new_spec = tree_flatten(learner.method.step(params, buffers, state, batch, hyper))
    if new_spec != spec:
        raise TypeError(f"a step of {learner.method_name} gave a state of another structure than it took")
    return new


def _compare(before: list[Tensor], ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    """See that two steps are the same, each tensor to ``tolerance`` of its change (and what rounding makes of it)."""
    known = [~(a.isnan() & b.isnan() | a.isinf() & (a == b)) for a, b in zip(ours, theirs, strict=True)]
    sizes = [_norm(b, start, where) for start, b, where in zip(before, theirs, known, strict=True)]
    floats = [t.is_floating_point() for t in before]
    whole = max((size for size, is_float in zip(sizes, floats, strict=True) if is_float), default=0.0)
    for start, a, b, where, size, is_float in zip(before, ours, theirs, known, sizes, floats, strict=True):
        off = _norm(a, b, where)
        slack = (
            1e-6 * float(start.double().nan_to_num(0.0, 0.0, 0.0).norm()) + 1e-3 * tolerance * whole
            if is_float
            else 0.0
        )
        if not off <= tolerance * size * is_float + slack:
            text = f"off by {off:.1e} where it is {size:.1e}"
            raise ValueError(f"a step reads something that differs between them and is not in its arguments: {text}")


def _norm(a: Tensor, b: Tensor, where: Tensor) -> float:
    return float((a.double() - b.double())[where].norm())


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
    """Replicas to compare with what they do alone: all where they are few, else some of each seed and setting."""
    if len(learners) <= CHECKED:
        return list(range(len(learners)))
    reverse = list(enumerate(learners))[::-1]
    seeds = {learner.seed: replica for replica, learner in reverse}
    settings = {str(learner.hyper): replica for replica, learner in reverse}
    return sorted({*sorted(seeds.values())[: CHECKED // 2], *sorted(settings.values())[-CHECKED // 2 :]})


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


def _channels_last(t: Tensor) -> Tensor:
    """Stacked filters with their channels together in memory."""
    return t.movedim(2, -1).contiguous().movedim(-1, 2)


def _longer(table: Tensor, steps: int) -> Tensor:
    if len(table) >= steps:
        return table
    return torch.cat([table, table.new_zeros(steps - len(table), *table.shape[1:])])
