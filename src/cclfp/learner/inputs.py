"""From raw examples to what psi takes: augmentation, transform, and the dtype of psi's parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cclfp.core.randomness import generator, seeded
from cclfp.errors import InputError
from cclfp.learner.settings import Settings
from cclfp.nets.network import twin
from cclfp.transforms import Augmentation, Transform


class Inputs:
    """Prepares the raw examples of one learner."""

    def __init__(self, settings: Settings, psi: nn.Module) -> None:
        self._settings = settings
        self._psi = psi

    def draw_augmentation(self, step: int, n: int, reuse: torch.Generator | None = None) -> Tensor | None:
        """The table that says how the n examples of a step are augmented. It depends on the seed and the step only.

        ``reuse`` is a generator to draw with, for a caller that draws many steps. It is seeded for each.
        """
        augment = self._settings.augment
        if augment is None:
            return None
        table = augment.draw(n, generator(self._settings.seed, "augmentation", step, reuse=reuse))
        if not isinstance(table, Tensor) or len(table) != n:
            raise InputError(f"augment.draw must give a tensor with a row for each of the {n} examples")
        return table

    def for_training(self, x: Tensor, table: Tensor | None) -> Tensor:
        """What psi takes in training: the examples augmented as ``table`` says, then transformed."""
        if self._settings.augment is not None:
            x = _augment(self._settings.augment, x, table)
        return self._transform(x, self._settings.transform)

    def for_testing(self, x: Tensor) -> Tensor:
        """What psi takes when predicting."""
        return self._transform(x, self._settings.predict_transform)

    def probe_training(self, x: Tensor) -> Tensor:
        """psi of raw examples prepared as in training; see :meth:`probe`."""
        table = self.draw_augmentation(0, len(x))
        return self._features(x, lambda: self.for_training(x, table))

    def probe(self, x: Tensor) -> Tensor:
        """psi of raw examples prepared for testing.

        InputError where psi does not take them, or does not return features.
        """
        return self._features(x, lambda: self.for_testing(x))

    def _features(self, x: Tensor, prepare: Callable[[], Tensor]) -> Tensor:
        with torch.no_grad(), seeded(self._settings.seed, "probe", 0, x.device):
            prepared = prepare()
        try:
            with torch.no_grad():
                z = twin(self._psi).eval()(prepared)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise InputError(f"psi does not take x of shape {tuple(x.shape)} and {x.dtype}: {error}") from error
        dtypes = (torch.float32, torch.float64)
        if not isinstance(z, Tensor) or z.ndim != 2 or len(z) != len(x) or z.dtype not in dtypes:
            got = f"a {z.dtype} tensor of shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
            raise InputError(
                f"psi must map {len(x)} examples to float32 or float64 of shape ({len(x)}, features), not {got}"
            )
        return z

    def _transform(self, x: Tensor, transform: Transform | None) -> Tensor:
        n = x.shape[0]  # not len(x), which torch.export would take for a constant
        if transform is not None:
            x = transform(x)
            if not isinstance(x, Tensor) or x.ndim == 0 or x.shape[0] != n:
                got = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
                raise InputError(f"transform must give a tensor of as many examples as it takes ({n}), not {got}")
        return x.to(self._dtype) if x.is_floating_point() else x

    @property
    def _dtype(self) -> torch.dtype:
        floating = (t.dtype for t in self._psi.parameters() if t.is_floating_point())
        return next(floating, torch.get_default_dtype())


def _augment(augment: Augmentation, x: Tensor, table: Tensor | None) -> Tensor:
    assert table is not None, "an augmentation needs its table"
    changed = augment(x, table.to(x.device))
    if not isinstance(changed, Tensor) or len(changed) != len(x):
        got = f"shape {tuple(changed.shape)}" if isinstance(changed, Tensor) else type(changed).__name__
        raise InputError(f"augment must give a tensor of as many examples as it takes ({len(x)}), not {got}")
    return changed
