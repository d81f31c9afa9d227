"""psi and the classifier f as pure functions of their parameters."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from cclfp.losses import is_transformed

CHUNK = 800_000  # numbers per forward pass: 1,000 MNIST images or 65 colour images of 64×64; 8 times as many on CUDA

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

Tensors = dict[str, Tensor]
PsiMode = dict[str, list[str]]


class Network:
    """psi and the classifier f as pure functions of ``params`` (trainable tensors by name) and ``buffers`` (psi's).

    The functions use copies of psi that share its tensors: one in psi's initial mode, for training, one in eval mode,
    and one in eval mode except for BatchNorm. So psi is trained in place, and its own mode is neither changed nor read
    again.

    With ``autocast`` psi computes in that precision (its weights and features keep theirs). f never does.
    """

    def __init__(self, psi: nn.Module, f: nn.Linear, mode: PsiMode, autocast: torch.dtype | None = None) -> None:
        self._train, self._eval, self._normalising = twin(psi), twin(psi).eval(), twin(psi).eval()
        for name, module in self._train.named_modules():
            module.training = name in mode["training"]
        for name, module in self._normalising.named_modules():
            module.training = name in mode["training"] and isinstance(module, BATCH_NORMS)
        self._trainable = mode["trained"]
        self._autocast = autocast
        # functional_call searches for tied weights in every call, which costs as much as a small layer.
        self._tied = len(list(psi.named_parameters(remove_duplicate=False))) > len(list(psi.parameters()))
        self.params: Tensors = {f"psi.{name}": psi.get_parameter(name) for name in self._trainable}
        self.params |= {"f.weight": f.weight, "f.bias": f.bias}
        self.buffers: Tensors = dict(psi.named_buffers())

    def features(self, params: Tensors, buffers: Tensors, x: Tensor) -> tuple[Tensor, Tensors]:
        """psi(x) in training mode, and the new buffers (only here does BatchNorm update its statistics)."""
        after = _copy_of(buffers)
        return self._call(self._train, params, after, x), after

    def frozen_features(self, params: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        """psi(x) in eval mode, for an old model and for testing."""
        return self._call(self._eval, params, buffers, x)

    def normalised_features(self, params: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        """psi(x) in eval mode, except that BatchNorm normalises x with its own statistics, and keeps none of them.

        A single example has no variance: then BatchNorm is in eval mode, too.
        """
        if len(x) == 1:
            return self.frozen_features(params, buffers, x)
        return self._call(self._normalising, params, _copy_of(buffers), x)

    def classify(self, params: Tensors, z: Tensor) -> Tensor:
        """f(z): one logit per class."""
        return F.linear(z, params["f.weight"], params["f.bias"])

    def sgd(self, params: Tensors, grads: Tensors, lr: Tensor) -> Tensors:
        """The parameters after a step of plain SGD: no momentum, no weight decay."""
        before, along = [p.detach() for p in params.values()], [grads[name] for name in params]
        # On CUDA separate operations would cost one launch each. vmap does not support those of many tensors.
        if hasattr(torch, "_foreach_sub") and hasattr(torch, "_foreach_mul") and not is_transformed():
            after: Sequence[Tensor] = torch._foreach_sub(before, torch._foreach_mul(along, lr))
        else:
            after = [p - lr * g for p, g in zip(before, along, strict=True)]
        return dict(zip(params, after, strict=True))

    def _own(self, params: Tensors) -> Tensors:
        """psi's parameters, by their names in psi."""
        return {name: params[f"psi.{name}"] for name in self._trainable}

    def _call(self, psi: nn.Module, params: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        own = self._own(params)
        if self._autocast is None:
            return functional_call(psi, own | buffers, (x,), tie_weights=self._tied)  # type: ignore[no-any-return]
        if x.is_cuda and not is_transformed():
            own = _cast(own, self._autocast)
        with torch.autocast(x.device.type, self._autocast, cache_enabled=False):
            z: Tensor = functional_call(psi, own | buffers, (x,), tie_weights=self._tied)
        return z.to(self.params["f.weight"].dtype)


def _copy_of(buffers: Tensors) -> Tensors:
    """A copy of the buffers, for BatchNorm to overwrite."""
    if is_transformed():
        return {name: b.clone() for name, b in buffers.items()}
    new = {name: torch.empty_like(b) for name, b in buffers.items()}
    copy_all(list(new.values()), list(buffers.values()))
    return new


class _Cast(torch.autograd.Function):
    """Convert many tensors to another precision with one call."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        new = [torch.empty_like(t, dtype=dtype) for t in tensors]
        copy_all(new, tensors)
        ctx.dtype = tensors[0].dtype
        return tuple(new)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        new = [torch.empty_like(g, dtype=ctx.dtype) for g in grads]
        copy_all(new, grads)
        return (None, *new)


def _cast(params: Tensors, dtype: torch.dtype) -> Tensors:
    """Cast the matrices and filters, which autocast would cast one by one; vectors keep their precision."""
    names = [name for name, p in params.items() if p.ndim > 1 and p.dtype == torch.float32]
    if not names:
        return params
    return params | dict(zip(names, _Cast.apply(dtype, *(params[name] for name in names)), strict=True))


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors into others, with one call per dtype: on CUDA separate copies would cost one launch each."""
    for dtype in {t.dtype for t in targets}:
        which = [i for i, t in enumerate(targets) if t.dtype == dtype]
        if hasattr(torch, "_foreach_copy_"):
            torch._foreach_copy_([targets[i] for i in which], [sources[i] for i in which])
        else:
            for i in which:
                targets[i].copy_(sources[i])


def chunks(x: Tensor) -> tuple[Tensor, ...]:
    """Split examples into parts that are small enough for a forward pass without gradients.

    >>> [len(part) for part in chunks(torch.zeros(150, 3, 64, 64))]
    [65, 65, 20]
    """
    size = 8 * CHUNK if x.is_cuda else CHUNK
    parts: tuple[Tensor, ...] = x.split(max(1, size // max(1, x[:1].numel())))
    return parts


def psi_mode(psi: nn.Module) -> PsiMode:
    """The names of the parameters of psi that are trained, and of its modules in training mode."""
    return {
        "trained": [name for name, p in psi.named_parameters() if p.requires_grad],
        "training": [name for name, module in psi.named_modules() if module.training],
    }


def twin(module: nn.Module) -> nn.Module:
    """A copy of the module that shares its parameters and buffers."""
    shared = {id(t): t for t in itertools.chain(module.parameters(), module.buffers())}
    return copy.deepcopy(module, shared)
