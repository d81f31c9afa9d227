"""Replicas that take their steps together: flat lists of tensors, and one function that takes a step of all of them.

The function can be traced, or run in a CUDA graph. There are three kinds of groups:

- :class:`StackedGroup` has the replicas side by side in each tensor, so that one operation serves all of them (vmap).
- :class:`ParallelGroup` keeps their tensors apart and lets them run at the same time. It is for BatchNorm, whose
  statistics each network updates in place, and for large convolutions, which PyTorch does not make faster when it
  stacks them.
- :class:`KernelGroup` is for ResNet18 in bf16 on a GPU that has our own kernels.

Before a group trains, its step is compared with the step that each of its replicas takes alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cclfp.core import trees
from cclfp.core.randomness import global_generators
from cclfp.core.scenarios import ClassMask
from cclfp.engine.kernels import Layout
from cclfp.engine.kernels.arrange import SideStream, events_now, round_all, rounded
from cclfp.engine.kernels.stacked_resnet import on_kernels
from cclfp.engine.plan import StepTables
from cclfp.engine.tracing import Step
from cclfp.learner import Learner
from cclfp.learner.checks import not_finite
from cclfp.methods import Batch, Method
from cclfp.nets.network import BATCH_NORMS

NORMS = (*BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


class Group:
    """Base of all groups. The learners' task has begun."""

    changing: list[Tensor]  # what their steps change

    def __init__(self, learners: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor) -> None:
        self.learners = learners
        self.spec = common_structure([learner.model for learner in learners])
        hypers = zip(*(vars(learner.hyper_tensors).values() for learner in learners), strict=True)
        # What their steps only read: the pool of inputs, masks (replicas x tasks x classes), and hyperparameters.
        self.fixed = [pool, _mask_tables(masks), *map(torch.stack, hypers)]

    @property
    def size(self) -> int:
        """How many bytes their steps change."""
        return sum(t.nbytes for t in self.changing)

    def kind_of_step(self, tables: StepTables, segment: range) -> Hashable:
        """What all steps have in common that one function can take."""
        first, tensors = self.learners[0], [*self.changing, *self.fixed, *tables.row(segment[0])]
        shapes = ((t.shape, t.stride(), t.dtype) for t in tensors)
        names = type(self), first.algorithm.name, str(self.spec), *vars(first.hyper)
        return (*names, tables.sizes[segment[0]][0], *shapes)

    def make_step(self, tables: StepTables, like: int) -> Step:
        """A function that takes steps of the same sizes as step ``like``, for all replicas.

        An error here means that such a step cannot be taken together.
        """
        raise NotImplementedError

    def part_of(self, tensors: list[Tensor], replica: int) -> list[Tensor]:
        """A replica's part of the tensors that change."""
        raise NotImplementedError

    def perturbed(self) -> list[Tensor]:
        """The tensors that change, each changed a little (see :func:`perturb`)."""
        return perturb(self.changing)

    def check_step(self, step: Step, tables: StepTables, like: int) -> None:
        """ValueError where a step taken together is not the one that each replica takes alone.

        They differ where a step reads something that is not among its arguments: a frozen layer drawn from the
        learner's seed, or an attribute that another task, or another replica, has set; also where a transform makes
        something else of many examples than of few.
        """
        current, row = tables.sizes[like][0], tables.row(like)
        before = self.perturbed()
        new = step([t.clone() for t in before], self.fixed, row)
        tolerance = tolerance_of(self.learners[0], row[0].device)
        for replica in pick_replicas(self.learners):
            own = self.part_of(before, replica)
            alone = self.step_alone(replica, own, row, current)
            params: dict[str, Tensor] = trees.unflatten(alone, self.spec)[0]
            if not_finite(list(params.values())):  # it diverges: there is nothing to compare
                continue
            compare_steps(own, self.part_of(new, replica), alone, tolerance)

    def step_of(self, method: Method, current: int) -> Step:
        """The step of one replica: what changes, its hyperparameters and its batch -> what changes.

        The first ``current`` examples of its batches are new.
        """
        kind, names = type(self.learners[0].hyper), list(vars(self.learners[0].hyper))

        def step(changing: list[Tensor], hypers: list[Tensor], batch: list[Tensor]) -> list[Tensor]:
            hyper = kind(**dict(zip(names, hypers, strict=True)))  # type: ignore[arg-type]
            params, buffers, state = trees.unflatten(changing, self.spec)
            x, y, task, mask, *slots = batch
            stepped = method.step(params, buffers, state, Batch(x, y, task, mask, current, *slots), hyper)
            new, spec = trees.flatten(stepped[:3])  # without the loss that it may return
            if spec != self.spec:
                raise TypeError(f"a step of {method.name} gave a state of another structure than it took")
            return new

        return step

    def step_alone(self, replica: int, own: list[Tensor], row: list[Tensor], current: int) -> list[Tensor]:
        """What a step of one replica, on its part of a row and prepared alone, makes of a copy of its tensors.

        ValueError where it draws random numbers.
        """
        learner, only = self.learners[replica], slice(replica, replica + 1)
        step, before = self.step_of(learner.algorithm, current), [t.clone() for t in own]
        with _no_randomness(row[0].device):
            prepared = prepare_batches(learner, [self.fixed[0], self.fixed[1][only]], [t[only] for t in row])
            return step(before, [t[replica] for t in self.fixed[2:]], [t[0] for t in prepared])

    def write_back(self, changing: list[Tensor], steps: int) -> None:
        """Update the learners with what ``steps`` steps made of ``changing``: all of them or, on an error, none."""
        after = []
        for replica in range(len(self.learners)):
            params, buffers, state = trees.unflatten(self.part_of(changing, replica), self.spec)
            after.append((params, buffers, trees.map_tree(torch.clone, state)))
        for learner, model in zip(self.learners, after, strict=True):
            learner.update(model, steps)
        self.changing, self.fixed = [], []  # step functions of this task may be kept, and with them this group


def prepare_batches(learner: Learner, fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
    """The tensors of a :class:`Batch`, replicas first. All learners of a group prepare their inputs alike."""
    pool, masks = fixed[:2]
    rows, y, task, slots, from_past_task, placed, augment = row
    x = learner.for_training(_take(pool, rows.flatten()), augment.flatten(0, 1) if augment.numel() else None)
    replicas = torch.arange(len(rows), device=rows.device)[:, None]
    return [x.unflatten(0, (len(rows), -1)), y, task, masks[replicas, task], slots, from_past_task, placed]


def _take(pool: Tensor, rows: Tensor) -> Tensor:
    """These rows of a pool; on a CPU as those of a table, which takes an eighth of the time under vmap."""
    if pool.is_cuda:
        return pool[rows]
    table: Tensor = F.embedding(rows, pool.flatten(1))
    taken: Tensor = table.unflatten(1, pool.shape[1:])
    return taken


def _mask_tables(masks: Sequence[ClassMask]) -> Tensor:
    """replicas x tasks x classes: the mask of an example of each task."""
    tasks = torch.arange(len(masks[0].classes_of), device=masks[0].classes_of.device)
    return torch.stack([mask.train(tasks) for mask in masks])


def common_structure(models: Sequence[Any]) -> trees.Structure:
    """The structure that these trees have in common; ValueError where they differ."""
    first, *others = (trees.flatten(model)[1] for model in models)
    if any(other != first for other in others):
        raise ValueError("their states differ in structure")
    return first


def stack_leaves(models: Sequence[Any]) -> list[Tensor]:
    """The leaves of trees of equal structure, each stacked over the trees."""
    return [torch.stack([t.detach() for t in several]) for several in zip(*map(trees.leaves, models), strict=True)]


class StackedGroup(Group):
    """Replicas as one network with one dimension more."""

    def __init__(self, learners: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor) -> None:
        super().__init__(learners, masks, pool)
        self.method = learners[0].algorithm  # which takes the steps
        self.changing = stack_leaves([learner.model for learner in learners])

    def part_of(self, tensors: list[Tensor], replica: int) -> list[Tensor]:
        return [t[replica] for t in tensors]

    def make_step(self, tables: StepTables, like: int) -> Step:
        return self.stacked(self.step_of(self.method, tables.sizes[like][0]))

    def stacked(self, step_of_one: Step) -> Step:
        """The step of all replicas, which are prepared together."""

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            prepared = prepare_batches(self.learners[0], fixed, row)
            new: list[Tensor] = torch.func.vmap(step_of_one)(changing, fixed[2:], prepared)
            return new

        return step

    def step_each(self, changing: list[Tensor], row: list[Tensor], current: int) -> list[Tensor]:
        """What a step makes of the tensors, taken by one replica after the other."""
        each = [self.step_alone(i, self.part_of(changing, i), row, current) for i in range(len(self.learners))]
        return [torch.stack(several) for several in zip(*each, strict=True)]


class ParallelGroup(Group):
    """Replicas side by side, on a GPU each on a CUDA stream of its own."""

    def __init__(self, learners: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor) -> None:
        super().__init__(learners, masks, pool)
        self.changing = [leaf.detach() for learner in learners for leaf in trees.leaves(learner.model)]
        self._beside = [SideStream(pool.device, number) for number in range(len(learners))]

    def part_of(self, tensors: list[Tensor], replica: int) -> list[Tensor]:
        leaves = len(tensors) // len(self.learners)
        return tensors[replica * leaves : (replica + 1) * leaves]

    def make_step(self, tables: StepTables, like: int) -> Step:
        current, row = tables.sizes[like][0], tables.row(like)
        steps = [self.step_of(learner.algorithm, current) for learner in self.learners]
        self.step_alone(0, self.part_of(self.changing, 0), row, current)  # refused where it draws random numbers

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            prepared, new = prepare_batches(self.learners[0], fixed, row), list[Tensor]()
            for i, (own, beside) in enumerate(zip(steps, self._beside, strict=True)):
                with beside.after(*events_now(fixed[0])):
                    new += own(self.part_of(changing, i), [t[i] for t in fixed[2:]], [t[i] for t in prepared])
            for beside in self._beside:
                beside.join()
            return new

        return step


class KernelGroup(StackedGroup):
    """Replicas of ResNet18 as one network, in kernels of our own: their method sees a :class:`StackedResNet`.

    The tensors that change are followed by copies of the networks' filters among them, rounded to what the kernels
    read. A state that holds an old network holds its BatchNorm statistics too. Other tensors with the name of a
    parameter, such as SI's importances, are not read by any kernel.
    """

    def __init__(self, learners: Sequence[Learner], masks: Sequence[ClassMask], pool: Tensor, layout: Layout) -> None:
        super().__init__(learners, masks, pool)
        self.method = on_kernels(learners[0].algorithm, layout)
        names = {f"psi.{name}" for name in layout.filters}
        params, buffers, _ = learners[0].model
        keys = [path[-1] for path, _ in trees.walk(learners[0].model)]
        in_state = range(len(params) + len(buffers), len(keys))
        filters = [i for i, key in enumerate(keys) if key in names]
        has_old_network = any(keys[i] in buffers for i in in_state)
        self._dtype, self._leaves = layout.dtype, len(keys)
        self._filters = [i for i in filters if has_old_network or i not in in_state]
        lying = [_channels_last(t) if i in filters else t for i, t in enumerate(self.changing)]
        self.changing = self._with_copies(lying)

    def part_of(self, tensors: list[Tensor], replica: int) -> list[Tensor]:
        return super().part_of(tensors[: self._leaves], replica)

    def perturbed(self) -> list[Tensor]:
        return self._with_copies(perturb(self.changing[: self._leaves]))

    def _with_copies(self, leaves: list[Tensor]) -> list[Tensor]:
        return [*leaves, *round_all([leaves[i] for i in self._filters], self._dtype)]

    def make_step(self, tables: StepTables, like: int) -> Step:
        plain, filters = super().make_step(tables, like), self._filters

        def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
            leaves = changing[: self._leaves]
            with rounded([leaves[i] for i in filters], changing[self._leaves :], leaves) as copies:
                new = plain(leaves, fixed, row)
            return [*new, *copies.of([new[i] for i in filters], self._dtype)]

        return step


def _channels_last(t: Tensor) -> Tensor:
    """Stacked filters whose channels are contiguous in memory."""
    return t.movedim(2, -1).contiguous().movedim(-1, 2)


def is_normalised(psi: nn.Module) -> bool:
    """Whether psi has BatchNorm, or another layer that keeps statistics."""
    return any(isinstance(module, NORMS) for module in psi.modules())


# -- a step together is compared with the step alone -------------------------------------------------------------------

# How much a tensor's change in a step may differ from its change where the replica steps alone, relative to the latter.
# In bf16 the changes of some of ResNet18's tensors, stacked and not, differ by a third.
TOLERANCE = {"float32": 0.02, "tf32": 0.2, "bf16": 0.6}
MAX_COMPARED = 16  # replicas that are compared with their step alone


def tolerance_of(learner: Learner, device: torch.device) -> float:
    """The tolerance for the precision that a learner computes in."""
    if learner.autocast is not None:
        return TOLERANCE["bf16"]
    is_tf32 = device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    return TOLERANCE["tf32" if is_tf32 else "float32"]


def compare_steps(before: list[Tensor], ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    """ValueError where two steps from ``before`` differ by more than ``tolerance`` of a tensor's change.

    What rounding alone can cause is allowed.
    """
    known = [~(a.isnan() & b.isnan() | a.isinf() & (a == b)) for a, b in zip(ours, theirs, strict=True)]
    sizes = [_distance(b, start, where) for start, b, where in zip(before, theirs, known, strict=True)]
    floats = [t.is_floating_point() for t in before]
    largest = max((size for size, is_float in zip(sizes, floats, strict=True) if is_float), default=0.0)
    for start, a, b, where, size, is_float in zip(before, ours, theirs, known, sizes, floats, strict=True):
        off = _distance(a, b, where)
        slack = 0.0
        if is_float:
            slack = 1e-6 * float(start.double().nan_to_num(0.0, 0.0, 0.0).norm()) + 1e-3 * tolerance * largest
        if not off <= tolerance * size * is_float + slack:
            text = f"alone it changes a tensor by {size:.1e}, together the result differs from that by {off:.1e}"
            raise ValueError(f"a step reads something that is not in its arguments: {text}")


def _distance(a: Tensor, b: Tensor, where: Tensor) -> float:
    return float((a.double() - b.double())[where].norm())


def perturb(tensors: list[Tensor]) -> list[Tensor]:
    """The tensors, each scaled by a factor of its own between 1 and 1.02.

    When a task begins, a network equals its old copy and gives the outputs that were stored. The gradient of a distance
    to these is then nothing but rounding, so that steps from there cannot be compared.
    """
    factors = (1 + 0.02 * ((number + 1) * 0.618 % 1) for number in range(len(tensors)))
    return [t * factor if t.is_floating_point() else t for t, factor in zip(tensors, factors, strict=True)]


def pick_replicas(learners: Sequence[Learner]) -> list[int]:
    """Which replicas to compare: all where they are few, else some of different seeds and hyperparameters."""
    if len(learners) <= MAX_COMPARED:
        return list(range(len(learners)))
    reverse = list(enumerate(learners))[::-1]
    seeds = {learner.seed: replica for replica, learner in reverse}
    hypers = {str(learner.hyper): replica for replica, learner in reverse}
    return sorted({*sorted(seeds.values())[: MAX_COMPARED // 2], *sorted(hypers.values())[-MAX_COMPARED // 2 :]})


@contextlib.contextmanager
def _no_randomness(device: torch.device) -> Iterator[None]:
    """ValueError where random numbers are drawn inside.

    Random layers would draw from generators that all replicas share. The eager engine seeds them at every step.
    """
    generators = global_generators(device)
    before = [g.get_state() for g in generators]
    yield
    if any(not torch.equal(g.get_state(), state) for g, state in zip(generators, before, strict=True)):
        for g, state in zip(generators, before, strict=True):
            g.set_state(state)
        raise ValueError("a step draws random numbers, for example in random layers")
