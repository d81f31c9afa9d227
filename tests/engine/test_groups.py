"""Groups of replicas: what their steps return, and how a step together is compared with a step alone."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from cclfp.engine.cohort import make_group
from cclfp.engine.eager import seconds_per_step
from cclfp.engine.groups import MAX_COMPARED, Group, ParallelGroup, StackedGroup, compare_steps, perturb, pick_replicas
from cclfp.engine.plan import StepTables
from cclfp.methods import METHODS
from cclfp.testing import Case, stackable_psi, toy_psi


def group_of(method: str, *, stacked: bool) -> tuple[Group, StepTables]:
    case = Case(METHODS[method], "class", {})
    replicas = [case.replica(seed, stackable_psi() if stacked else toy_psi(random=False)) for seed in range(2)]
    plans, masks = [one.plan() for one in replicas], [one.begin_task() for one in replicas]
    pool = torch.cat([one.stream.train.x for one in replicas])
    group = make_group([one.learner for one in replicas], masks, pool)
    offsets = [0, len(replicas[0].stream.train.y)]
    return group, StepTables(plans, [one.stream.train for one in replicas], offsets)


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("method", ["er", "si", "icarl"])
def test_the_loss_is_no_output_of_a_step(method: str, stacked: bool) -> None:
    """A compiled program and a CUDA graph have the outputs of the step: what changes, and nothing else."""
    group, tables = group_of(method, stacked=stacked)
    assert type(group) is (StackedGroup if stacked else ParallelGroup)
    step, row = group.make_step(tables, 0), tables.row(0)
    with torch.no_grad():
        new = step([t.clone() for t in group.changing], group.fixed, row)
        traced = make_fx(step)(group.changing, group.fixed, row)
    assert [t.shape for t in new] == [t.shape for t in group.changing]
    (output,) = (node for node in traced.graph.nodes if node.op == "output")
    assert len(output.args[0]) == len(group.changing)


def test_steps_that_differ_are_found() -> None:
    before, after = [torch.ones(4), torch.zeros(2)], [torch.full((4,), 1.1), torch.ones(2)]
    compare_steps(before, after, [t.clone() for t in after], 0.02)
    compare_steps(before, [torch.full((4,), 1.101), after[1]], after, 0.02)
    with pytest.raises(ValueError, match="a step reads something that is not in its arguments"):
        compare_steps(before, [torch.full((4,), 1.2), after[1]], after, 0.02)
    whole = [torch.tensor([3])]
    with pytest.raises(ValueError, match="off by 1"):
        compare_steps(whole, [torch.tensor([5])], [torch.tensor([4])], 0.6)


def test_perturbed_tensors_are_near_and_unequal() -> None:
    near = perturb([torch.ones(3), torch.ones(3), torch.tensor([7])])
    assert all(1 < float(t[0]) < 1.02 for t in near[:2])
    assert not torch.equal(near[0], near[1])
    assert near[2].tolist() == [7]


def test_replicas_of_different_seeds_and_hyperparameters_are_compared() -> None:
    learners = [Case(METHODS["er"], "class", {"lr": lr}).learner(seed) for seed in range(12) for lr in (0.1, 0.2)]
    picked = pick_replicas(learners)
    assert len(picked) <= MAX_COMPARED
    assert len({learners[i].seed for i in picked}) >= 8
    assert {learners[i].hyper.lr for i in picked} == {0.1, 0.2}
    assert pick_replicas(learners[:3]) == [0, 1, 2]


def test_a_step_of_the_eager_engine_is_timed() -> None:
    assert 0 < seconds_per_step(Case(METHODS["er"], "class", {}).replica()) < 1
