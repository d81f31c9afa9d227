"""How many replicas a GPU has memory for."""

from __future__ import annotations

import torch
from torch import Tensor

from cclfp.core.scenarios import ClassMask
from cclfp.engine.grouping import make_group
from cclfp.engine.plan import Plan
from cclfp.engine.replica import Replica
from cclfp.engine.tables import Tables

SHARE = 0.7  # of a GPU's free memory that may be used


def count_fitting(replica: Replica, plan: Plan, mask: ClassMask, pool: Tensor, offset: int) -> int:
    """How many replicas can train at the same time, from what one step of one replica takes.

    The replica's task has begun. Its inputs start at ``offset`` in the pool.
    """
    group = make_group([replica.trainer], [mask], pool)
    tables = Tables([plan], [replica.stream.train], [offset])
    held = sum(t.numel() * t.element_size() for t in group.changing)
    longest = max(range(len(plan.sizes)), key=lambda step: sum(plan.sizes[step]))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        group.check_step(group.make_step(tables, longest), tables, longest)
    taken = torch.cuda.max_memory_allocated() - before
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    # Four times what changes: the group's tensors, those that a graph writes to, and later tasks' old networks.
    return max(1, int(SHARE * free / (taken + 4 * held)))
