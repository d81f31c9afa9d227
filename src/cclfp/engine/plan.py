"""A plan: for one seed and one task, which examples, replayed examples and augmentations each step uses.

Sampling never looks at the model, so the whole schedule is known before the task starts. The draws are those that
``Learner.observe`` would make, in the same order. :class:`StepTables` are the plans of replicas that train together.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cclfp.core.memory import Examples, Memory
from cclfp.schedules import Reservoir, Ring, Schedule


@dataclasses.dataclass(frozen=True)
class Plan:
    """Tables of a task: which of a stream's training examples each step takes, and how they are augmented."""

    rows: Tensor  # steps x (batch + replay): a step's current rows, then its replayed rows, then -1
    sizes: list[tuple[int, int]]  # how many current and how many replayed examples a step has
    current: Tensor  # the rows of the task, in the order they are trained
    memory: Tensor  # the row in each filled slot after the last step
    schedule: Schedule | None  # the memory's schedule after the last step
    slots: Tensor  # steps x replay: the slot of each replayed example, then -1
    from_past_task: Tensor  # steps x replay: whether it came before the task began
    placed: Tensor  # steps x batch: the slot that each current example goes to after the step; -1: none
    augment: Tensor | None  # steps x (batch + replay) x what the augmentation draws for an example; None: no change

    def to(self, device: torch.device) -> Plan:
        tables: dict[str, Any] = {
            name: table.to(device) for name, table in vars(self).items() if isinstance(table, Tensor)
        }
        return dataclasses.replace(self, **tables)


def plan_task(
    rows: Tensor,
    tasks: Tensor,
    *,
    batch: int,
    epochs: int,
    replay: int,
    draws: int = 1,
    memory: Memory | None,
    order: torch.Generator,
    augment: Callable[[int, int], Tensor | None] = lambda step, n: None,
) -> Plan:
    """Plan the training on the examples ``rows``, in a fresh order each epoch; the last, incomplete batch is used.

    ``tasks`` has the task of every example of the stream. Each step replays ``draws`` times ``replay`` examples. With
    ``replay=0`` nothing is replayed.
    ``augment`` draws the table for the n examples of a step, counted from the task's first.

    Nothing is changed: the plan has a schedule of its own, which the memory takes over at the task's end.
    """
    current = torch.cat([rows[torch.randperm(len(rows), generator=order)] for _ in range(epochs)]).numpy()
    batches = np.tile(np.diff([*range(0, len(rows), batch), len(rows)]), epochs)
    schedule, held = None, np.empty(0, dtype=np.int64)
    none = np.empty((len(batches), 0), np.int64)
    ahead = PlannedReplay(none, none.astype(bool), np.full(len(current), -1))
    if memory is not None:
        schedule, held = copy.deepcopy(memory.schedule), memory.rows.cpu().numpy()
        ahead = plan_replay(schedule, tasks.cpu().numpy()[current], batches, replay, draws)
    is_replayed = ahead.slots >= 0
    replayed = is_replayed.sum(1)
    sizes = batches + replayed
    table = np.full((len(batches), sizes.max(initial=0)), -1)
    column = np.arange(table.shape[1])
    is_current = column < batches[:, None]
    table[is_current] = current
    began = np.broadcast_to((np.cumsum(batches) - batches)[:, None], is_replayed.shape)
    table[(column < sizes[:, None]) & ~is_current] = _rows(
        ahead.slots[is_replayed], began[is_replayed], ahead.placed, held, current
    )
    placed = np.full((len(batches), batches.max(initial=0)), -1)
    placed[is_current[:, : placed.shape[1]]] = ahead.placed
    filled = np.arange(max(len(held), ahead.placed.max(initial=-1) + 1))
    return Plan(
        rows=torch.from_numpy(table),
        sizes=list(zip(batches.tolist(), replayed.tolist(), strict=True)),
        current=torch.from_numpy(current),
        memory=torch.from_numpy(_rows(filled, np.array(len(current)), ahead.placed, held, current)),
        schedule=schedule,
        slots=torch.from_numpy(ahead.slots),
        from_past_task=torch.from_numpy(ahead.from_past_task),
        placed=torch.from_numpy(placed),
        augment=_tables(sizes, table.shape[1], augment),
    )


def _rows(slots: np.ndarray, when: np.ndarray, placed: np.ndarray, held: np.ndarray, current: np.ndarray) -> np.ndarray:
    """The row in each of the slots before the ``when``-th example came.

    ``placed`` says where each went, ``held`` which rows were there before the first.
    """
    kept = np.flatnonzero(placed >= 0)
    n = len(placed) + 1
    keys = np.concatenate([[-1], np.sort(placed[kept] * n + kept)])  # by slot, then by time
    last = keys[np.searchsorted(keys, slots * n + when) - 1]
    return np.concatenate([held, current])[np.where(last // n == slots, len(held) + last % n, slots)]


def _tables(sizes: np.ndarray, width: int, draw: Callable[[int, int], Tensor | None]) -> Tensor | None:
    tables = [table for step, n in enumerate(sizes.tolist()) if (table := draw(step, n)) is not None]
    if not tables:
        return None
    full = tables[0].new_zeros((len(tables), width, *tables[0].shape[1:]))
    full[torch.from_numpy(np.arange(width) < sizes[:, None])] = torch.cat(tables)
    return full


# -- what a memory replays and stores, planned ----------------------------------------------------------------------


class PlannedReplay(NamedTuple):
    """What a schedule replays and stores in many steps, planned before they are trained."""

    slots: np.ndarray  # steps x replayed: the slots that each step replays, padded with -1
    from_past_task: np.ndarray  # steps x replayed: whether the slot held an example of a task that had ended
    placed: np.ndarray  # the slot of each example; -1: not kept, or overwritten in the same step


def plan_replay(schedule: Schedule, tasks: np.ndarray, sizes: np.ndarray, k: int, draws: int = 1) -> PlannedReplay:
    """``schedule.draw(k)``, as often as ``draws`` says, and ``schedule.place`` for many steps.

    Step i has the next ``sizes[i]`` examples, at least one. ``tasks`` has the task of every example.
    """
    if type(schedule) in (Reservoir, Ring):  # but not their subclasses, which may draw or place otherwise
        return _plan_at_once(schedule, tasks, sizes, k, draws)
    slots: list[list[int]] = []
    from_past_task: list[list[bool]] = []
    placed: list[int] = []
    for of in np.split(tasks, np.cumsum(sizes)[:-1]) if len(sizes) else []:
        slots.append([slot for _ in range(draws) for slot in schedule.draw(k, of.tolist())])
        from_past_task.append([schedule.is_from_past_task(slot) for slot in slots[-1]])
        placed += schedule.place(of.tolist())
    return PlannedReplay(_pad(slots, -1), _pad(from_past_task, False), np.array(placed, dtype=np.int64))


def _pad(rows: Sequence[Sequence[int]], value: int) -> np.ndarray:
    """The rows as one table, each padded with ``value`` to the length of the longest."""
    width = max(map(len, rows), default=0)
    table = [[*row, *[value] * (width - len(row))] for row in rows]
    return np.array(table, dtype=type(value)).reshape(len(rows), width)


def _plan_at_once(schedule: Schedule, tasks: np.ndarray, sizes: np.ndarray, k: int, draws: int) -> PlannedReplay:
    """What the loop of :func:`plan_replay` gives, computed for all steps at once.

    It is for schedules that may draw any filled slot, and where the slots of new examples do not depend on the steps.
    """
    starts = np.cumsum(sizes) - sizes
    slots, held = schedule.next_slots(tasks), len(schedule)
    filled = np.maximum.accumulate(np.concatenate([[held], slots + 1]))  # slots before each example
    drawn = _choose_many(schedule, filled[starts], k, draws)
    kept = np.flatnonzero(slots >= 0)
    written = np.concatenate([schedule.written, np.full(filled[-1] - held, schedule.seen)]).astype(np.int64)
    until = np.full(len(written), len(slots))  # the first example that is written to each slot
    until[slots[kept][::-1]] = kept[::-1]
    from_past_task = (drawn >= 0) & (written[drawn] < schedule.seen_before_task) & (starts[:, None] <= until[drawn])
    step, order = np.repeat(np.arange(len(sizes)), sizes), np.argsort(slots, kind="stable")
    first, second = order[:-1], order[1:]  # pairs of examples, of which some are written to one slot in one step
    placed = slots.copy()
    placed[first[(slots[first] == slots[second]) & (step[first] == step[second])]] = -1
    written[slots[kept]] = schedule.seen + kept
    schedule.written = written.tolist()
    schedule.seen += len(slots)
    return PlannedReplay(drawn, from_past_task, placed)


def _choose_many(schedule: Schedule, counts: np.ndarray, k: int, draws: int) -> np.ndarray:
    """One row per count: what ``schedule.draw(k)`` gives with so many filled slots, ``draws`` times, then -1."""
    steps, counts = len(counts), np.repeat(counts, draws)
    ks = np.minimum(k, counts)
    width = int(ks.max(initial=0))
    is_drawn = np.arange(width) < ks[:, None]
    u = np.zeros(is_drawn.shape)
    u[is_drawn] = schedule.uniform(int(ks.sum()))
    chosen = np.empty((width, len(counts)), dtype=np.int64)
    for j in range(width):
        top = counts - ks + j
        i = (u[:, j] * (top + 1)).astype(np.int64)
        chosen[j] = np.where((chosen[:j] == i).any(0), top, i)
    rows = np.where(is_drawn, chosen.T, -1).reshape(steps, draws * width)
    return np.take_along_axis(rows, np.argsort(rows < 0, axis=1, kind="stable"), 1)  # -1 last


# -- the plans of replicas that train together -------------------------------------------------------------------------


class StepTables:
    """The plans of one task of all replicas. Each step has the same number of examples in all of them.

    ``offsets`` says where the inputs of each replica's stream begin in the pool. The tables have at least ``room``
    rows, so that those of all tasks can have the same shape. They are those of a :class:`Plan`, with the replicas as a
    second dimension: which of the pool's inputs each example is, its label and its task, then ``slots``,
    ``from_past_task``, ``placed`` and ``augment``, which is empty where there is none.
    """

    def __init__(
        self, plans: Sequence[Plan], streams: Sequence[Examples], offsets: Sequence[int], room: int = 0
    ) -> None:
        self.sizes = plans[0].sizes
        if any(plan.sizes != self.sizes for plan in plans):
            raise ValueError("their tasks are of different sizes")
        none = torch.empty(len(self.sizes), 0, device=plans[0].rows.device)
        made: dict[Hashable, tuple[Tensor, ...]] = {}
        rows = []
        for plan, stream, offset in zip(plans, streams, offsets, strict=True):
            # Replicas may share a plan. Streams that share their inputs may still differ in the task of a class.
            key = id(plan), id(stream), offset
            if key not in made:
                inputs, y, task = plan.rows + offset, stream.y[plan.rows], stream.task[plan.rows]
                augment = none if plan.augment is None else plan.augment
                made[key] = inputs, y, task, plan.slots, plan.from_past_task, plan.placed, augment
            rows.append(made[key])
        tables = [torch.stack(several, 1) for several in zip(*rows, strict=True)]
        missing = max(0, room - len(self.sizes))
        self.tables = [torch.cat([t, t.new_zeros(missing, *t.shape[1:])]) for t in tables]

    def row(self, step: int) -> list[Tensor]:
        """The row of a step."""
        return self._cut([t[step] for t in self.tables], step, 1)

    def rows(self, steps: range) -> list[Tensor]:
        """The rows of steps of the same sizes, steps first."""
        return self._cut([t[steps.start : steps.stop] for t in self.tables], steps[0], 2)

    def row_at(self, counter: Tensor, like: int) -> list[Tensor]:
        """The row of the step in ``counter``, a (1,) tensor. Its sizes must be those of step ``like``."""
        return self._cut([t.index_select(0, counter).squeeze(0) for t in self.tables], like, 1)

    def segments(self) -> list[range]:
        """The steps, split where their sizes change."""
        starts = [i for i, size in enumerate(self.sizes) if i == 0 or size != self.sizes[i - 1]]
        return [range(a, b) for a, b in zip(starts, [*starts[1:], len(self.sizes)], strict=True)]

    def _cut(self, tables: list[Tensor], like: int, dim: int) -> list[Tensor]:
        """Without what a step of the sizes of ``like`` does not have; ``dim`` is that of the examples."""
        (current, replayed), size = self.sizes[like], sum(self.sizes[like])
        widths = (size, size, size, replayed, replayed, current, size)
        return [t.narrow(dim, 0, min(width, t.shape[dim])) for t, width in zip(tables, widths, strict=True)]
