"""Augmentation and normalisation against plain slices and formulas; who is augmented, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import cclfp
from cclfp.core.memory import Examples
from cclfp.engine.cohort import Cohort
from cclfp.engine.replica import Replica
from cclfp.errors import InputError
from cclfp.learner.saving import describe, rebuild
from cclfp.streams import Stream
from cclfp.testing import same
from cclfp.transforms import CropFlip, Normalise, Scale


def cropped_by_hand(image: Tensor, padding: int, down: int, right: int, mirror: int) -> Tensor:
    """Put the image on a black canvas, cut a piece of its size out, mirror it."""
    channels, height, width = image.shape
    canvas = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
    canvas[:, padding : padding + height, padding : padding + width] = image
    piece = canvas[:, down : down + height, right : right + width]
    return piece.flip(2) if mirror else piece


@settings(deadline=None, max_examples=30)
@given(
    n=st.integers(1, 4),
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    padding=st.integers(0, 4),
    seed=st.integers(0, 99),
)
def test_crop_and_flip_equal_slices(n: int, channels: int, height: int, width: int, padding: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, channels, height, width), dtype=torch.uint8, generator=g)
    before = images.clone()
    augment = CropFlip(padding)
    table = augment.draw(n, g)
    ours = augment(images, table)
    assert ours.dtype == torch.uint8
    for i in range(n):
        assert torch.equal(ours[i], cropped_by_hand(images[i], padding, *table[i].tolist()))
    assert torch.equal(images, before)


def test_a_table_is_drawn_number_by_number() -> None:
    numbers = iter(torch.rand(30, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).tolist())
    wanted = [[int(values * next(numbers)) for values in (9, 9, 2)] for _ in range(10)]
    assert CropFlip(4).draw(10, torch.Generator().manual_seed(3)).tolist() == wanted


def test_normalise_equals_its_formula() -> None:
    mean, std = [0.1, 0.5, 0.7], [0.2, 0.3, 0.4]
    images = torch.randint(0, 256, (2, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for c in range(3):
        wanted = (images[:, c].double() / 255 - mean[c]) / std[c]
        torch.testing.assert_close(Normalise(mean, std)(images)[:, c].double(), wanted, rtol=0, atol=1e-6)


def test_descriptions_build_the_same() -> None:
    for transform in (Scale(), Normalise([0.5], [0.25]), CropFlip(3)):
        again = rebuild(describe(transform))
        assert (type(again), again.arguments) == (type(transform), transform.arguments)
    assert (describe(None), describe(torch.clone)) == (None, "custom")


class Spy(CropFlip):
    """Keeps what it is asked for."""

    def __init__(self) -> None:
        super().__init__(2)
        self.seen: list[tuple[Tensor, Tensor]] = []

    def __call__(self, x: Tensor, table: Tensor) -> Tensor:
        self.seen.append((x.clone(), table.clone()))
        return super().__call__(x, table)


def images(n: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (n, 1, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def learner(augment: Any, **more: Any) -> cclfp.Learner:
    layer = nn.Linear(36, 8, bias=False)
    nn.init.eye_(layer.weight)
    psi = nn.Sequential(nn.Flatten(), layer, nn.ReLU())
    return cclfp.make("er", psi=psi, num_classes=4, memory=5, replay=3, transform=Scale(), augment=augment, **more)


def test_current_and_replayed_images_are_augmented_afresh_and_predictions_never() -> None:
    spy = Spy()
    ours = learner(spy)
    for step in range(6):
        ours.observe(images(4, step), torch.tensor([0, 1, 2, 3]))
    assert [len(x) for x, _ in spy.seen] == [4, 7, 7, 7, 7, 7]
    assert [len(table) for _, table in spy.seen] == [4, 7, 7, 7, 7, 7]
    assert ours.memory is not None
    kept = {x.numpy().tobytes() for step in range(6) for x in images(4, step)}
    assert {x.numpy().tobytes() for x in ours.memory.examples().x} <= kept  # the memory holds raw images
    replayed: dict[bytes, set[Any]] = {}
    for x, table in spy.seen:
        for image, row in zip(x[4:], table[4:], strict=True):
            replayed.setdefault(image.numpy().tobytes(), set()).add(tuple(row.tolist()))
    assert any(len(rows) > 1 for rows in replayed.values())
    ours.predict(images(9))
    ours.logits(images(9))
    assert len(spy.seen) == 6


def test_planned_training_augments_as_observe_does() -> None:
    y = torch.arange(60) % 4
    train, rows = Examples(images(60), y, y // 2), [(y // 2 == t).nonzero().flatten() for t in (0, 1)]
    data = Stream("class", 4, [[0, 1], [2, 3]], train, rows, [train.rows(r) for r in rows])
    replica = Replica(learner(CropFlip(2), tasks=data.classes), data, batch=7)
    ours = learner(CropFlip(2), tasks=data.classes)
    for position in (0, 1):
        plan = next(replica.plans())
        Cohort([replica]).advance()
        for step, (current, _) in enumerate(plan.sizes):
            part = data.train.rows(plan.rows[step, :current])
            ours.observe(part.x, part.y, task=position)
        ours.end_task()
    assert same(replica.learner, ours)


@pytest.mark.parametrize(
    ("part", "function", "message"),
    [
        ("__call__", lambda self, x, table: x[1:], r"augment must give a tensor of as many examples as it takes \(4\)"),
        ("draw", lambda self, n, g: None, "augment.draw must give a tensor with a row for each of the 4 examples"),
        ("draw", lambda self, n, g: torch.zeros(n, 2), r"a table of 4 rows and 3 columns, not \(4, 2\)"),
    ],
)
def test_an_augmentation_that_fails_leaves_the_learner_as_it_was(part: str, function: Any, message: str) -> None:
    wrong = type("Wrong", (CropFlip,), {part: function})()
    ours, twin = learner(wrong), learner(wrong)
    with pytest.raises(InputError, match=message):
        ours.observe(images(4), torch.tensor([0, 1, 2, 3]))
    assert same(ours, twin)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rebuild({"name": "scael"}), "unknown backbone or transform 'scael'. Did you mean 'scale'"),
        (lambda: learner(3), "augment must have draw"),
        (lambda: learner(torch.clone), "augment must have draw"),
        (lambda: CropFlip(-1), "padding=-1: expected a whole number, 0 or more"),
        (lambda: CropFlip(1.5), "padding=1.5: expected a whole number, 0 or more"),  # type: ignore[arg-type]
        (lambda: CropFlip(2)(images(4).flatten(1), torch.zeros(4, 3)), r"CropFlip takes images .* not \(4, 36\)"),
        (lambda: Normalise([0.5, 0.5], [0.5]), "expected one finite number per channel, and std above 0"),
        (lambda: Normalise(0.5, 0.5), "mean=0.5, std=0.5: expected one finite number per channel"),  # type: ignore[arg-type]
        (lambda: Normalise([0.5], [0.0]), "expected one finite number per channel, and std above 0"),
        (lambda: Normalise([0.5] * 3, [0.5] * 3)(images(4)), r"images with 3 channels, not of shape \(4, 1, 6, 6\)"),
    ],
)
def test_what_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
