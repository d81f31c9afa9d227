"""``cclfp.make``: a learner for your own loop."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from cclfp.learner.learner import Learner
from cclfp.methods import Method, get_method
from cclfp.transforms import Augmentation, Transform


def make(
    method: str | type[Method],
    *,
    psi: nn.Module,
    num_classes: int,
    classes: Sequence[str] | None = None,
    memory: int = 200,
    seed: int = 0,
    scenario: str = "class",
    tasks: Sequence[Sequence[int]] | None = None,
    num_tasks: int | None = None,
    transform: Transform | None = None,
    predict_transform: Transform | None = None,
    augment: Augmentation | None = None,
    replay: int = 10,
    device: str | torch.device | None = None,
    **hyper: float,
) -> Learner:
    """A learner for your own loop.

    Parameters
    ----------
    method
        A name (``cclfp list methods``) or your own subclass of :class:`cclfp.Method`.
    psi
        Any module that maps a batch to features, one row per example. **It is trained in place**: its parameters with
        ``requires_grad``, and its BatchNorm statistics. Which parameters are trained, and in which mode
        (``psi.training``), is decided now; freezing layers or calling ``psi.eval()`` later changes nothing.
    num_classes
        How many classes there can be; the classifier f has one row per class.
    classes
        The names of the classes, which are saved with the learner. Where they are fewer than ``num_classes``, the rows
        after them are free for classes that come later (:meth:`Learner.add_task`).
    memory
        How many examples the replay memory holds, for methods that have one.
    seed
        All randomness comes from it (f's initial weights, what is remembered and replayed, random layers of psi).
    scenario
        Which classes a prediction may choose from: ``"class"``, those seen so far; ``"task"``, those of the example's
        own task; ``"domain"``, all.
    tasks
        The classes of each task. All classes of a task count as seen from its first batch on. Without it, a class
        counts as seen once an example of it was observed.
    num_tasks
        How many tasks there will be, for methods that split their memory evenly over them; by default the length of
        ``tasks``. Where neither is given, the shares of past tasks shrink with every new task.
    transform
        Applied to raw inputs, in training and when predicting: normalise here. A random transform draws from the seed.
    predict_transform
        Applied when predicting, instead of ``transform``.
    augment
        A random change of raw inputs, such as ``cclfp.transforms.CropFlip(4)``. It is applied at every training step to
        new and replayed examples alike, and never when predicting. The memory holds raw inputs, so a replayed example
        is augmented differently each time.
    replay
        How many remembered examples are added to each batch; A-GEM has the hyperparameter ``reference`` instead.
    device
        Where to train; by default psi's own device.
    **hyper
        The method's hyperparameters (``cclfp show METHOD``), such as ``lr``.

    Examples
    --------
    >>> learner = make("ccl-fp+", psi=nn.Sequential(nn.Linear(2, 8), nn.ReLU()), num_classes=4, lr=0.05, w=0.3)
    >>> loss = learner.observe(torch.randn(10, 2), torch.randint(0, 2, (10,)), task=0)
    >>> learner.end_task()
    >>> loss = learner.observe(torch.randn(5, 2), torch.randint(2, 4, (5,)), task=1)
    >>> set(learner.predict(torch.randn(20, 2), task=1).tolist()) <= {2, 3}
    True
    """
    return Learner(
        get_method(method),
        psi,
        hyper=hyper,
        num_classes=num_classes,
        scenario=scenario,
        seed=seed,
        tasks=tasks,
        num_tasks=num_tasks,
        memory=memory,
        replay=replay,
        transform=transform,
        predict_transform=predict_transform,
        augment=augment,
        device=device,
        classes=classes,
    )
