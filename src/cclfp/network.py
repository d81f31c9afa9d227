"""psi and the classifier f as pure functions of their parameters, and what is kept of a psi."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch.func import functional_call

from cclfp.errors import DamagedError, InputError
from cclfp.layouts import describe_value
from cclfp.nets import stacked, tangents

CHUNK = 800_000  # numbers a forward pass takes at once: 1,000 of MNIST's images, 65 of 64×64; on CUDA 8 times that

HEAD = ("f.weight", "f.bias")

Loss = Callable[[Tensor], Tensor]  # of f's outputs
Tensors = dict[str, Tensor]
PsiMode = dict[str, list[str]]


class Network:
    """psi and the classifier f as pure functions of ``params`` (trainable tensors by name) and ``buffers`` (psi's).

    The functions work on two twins of psi that share its tensors: one in the mode psi was given in, for training, one
    in eval mode. So psi is trained in place, and its own mode is neither touched nor looked at again.

    With ``autocast`` psi computes in that precision (its weights and features stay as they are); f never does.
    """

    def __init__(self, psi: nn.Module, f: nn.Linear, mode: PsiMode, autocast: torch.dtype | None = None) -> None:
        self._train, self._eval = twin(psi), twin(psi).eval()
        for name, module in self._train.named_modules():
            module.training = name in mode["training"]
        self._trainable = mode["trained"]
        self._autocast = autocast
        self.layout = stacked.Layout.of(psi, mode, autocast)  # of stacked replicas, where there are kernels for them
        # functional_call looks for tied weights anew at every call, which costs as much as a small layer.
        self._tied = len(list(psi.named_parameters(remove_duplicate=False))) > len(list(psi.parameters()))
        self.params: Tensors = {f"psi.{name}": psi.get_parameter(name) for name in self._trainable}
        self.params |= {"f.weight": f.weight, "f.bias": f.bias}
        self.buffers: Tensors = dict(psi.named_buffers())

    def features(self, params: Tensors, buffers: Tensors, x: Tensor) -> tuple[Tensor, Tensors]:
        """psi(x) in training, and the buffers after it (BatchNorm updates its statistics here and nowhere else)."""
        if self.layout is not None and is_vmapped() and self.layout.takes(x):
            z, after = stacked.train(self.layout, self._own(params), buffers, x)
            return z, {name: after[name] for name in buffers}
        if is_transformed():
            buffers = {name: b.clone() for name, b in buffers.items()}
        else:
            new = {name: torch.empty_like(b) for name, b in buffers.items()}
            copy_all(list(new.values()), list(buffers.values()))
            buffers = new
        return self._call(self._train, params, buffers, x), buffers

    def frozen_features(self, params: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        """psi(x) in eval mode: for an old model and for testing."""
        if self.layout is not None and is_vmapped() and self.layout.takes(x):
            return stacked.freeze(self.layout, self._own(params), buffers, x)
        return self._call(self._eval, params, buffers, x)

    def classify(self, params: Tensors, z: Tensor) -> Tensor:
        """f(z): one logit a class."""
        return F.linear(z, params["f.weight"], params["f.bias"])

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


class Derivatives:
    """A loss of f(psi(x)) in training, its gradient, and its Hessian times a direction, in stacked kernels.

    PyTorch's way to the latter, a gradient of a gradient, the kernels have not got.
    """

    def __init__(self, net: Network, params: Tensors, buffers: Tensors, x: Tensor, loss: Loss) -> None:
        assert net.layout is not None
        self._net, self._layout, self._params = net, net.layout, net._own(params)
        self.z, after, self._saved = stacked.train_saving(self._layout, self._params, buffers, x)
        self.buffers = {name: after[name] for name in buffers}  # afterwards
        self._head = {name: params[name] for name in HEAD}
        self._of_head = torch.func.grad(lambda head, z: loss(net.classify(head, z)), argnums=(0, 1))
        head, self._dz = self._of_head(self._head, self.z)
        psi = tangents.gradient(self._layout, self._params, self._dz, self._saved)
        self.gradient = self._in_order(params, psi, head)

    def hessian_times(self, direction: Tensors) -> Tensors:
        """The Hessian of the loss times a direction, which has a tensor for each parameter."""
        own = self._net._own(direction)
        z, others = tangents.tangent(self._layout, self._params, own, self._saved)
        times = torch.func.vjp(self._of_head, self._head, self.z)[1]  # a Hessian is symmetric
        head, dz = times(({name: direction[name] for name in HEAD}, z))
        psi = tangents.curvature(self._layout, self._params, own, self._dz, dz, self._saved, others)
        return self._in_order(direction, psi, head)

    def _in_order(self, like: Tensors, psi: Tensors, head: Tensors) -> Tensors:
        named = {f"psi.{name}": t for name, t in psi.items()} | head
        return {name: named[name] for name in like}


class _Cast(torch.autograd.Function):
    """Tensors in another precision, all in one go."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        new = [torch.empty_like(t, dtype=dtype) for t in tensors]
        torch._foreach_copy_(new, list(tensors))
        ctx.dtype = tensors[0].dtype
        return tuple(new)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        new = [torch.empty_like(g, dtype=ctx.dtype) for g in grads]
        torch._foreach_copy_(new, list(grads))
        return (None, *new)


def _cast(params: Tensors, dtype: torch.dtype) -> Tensors:
    """The matrices and filters of a network, which autocast would cast one by one; the vectors stay."""
    names = [name for name, p in params.items() if p.ndim > 1 and p.dtype == torch.float32]
    if not names:
        return params
    return params | dict(zip(names, _Cast.apply(dtype, *(params[name] for name in names)), strict=True))


def is_transformed() -> bool:
    """Whether this runs under vmap, torch.func.grad or torch.compile."""
    return torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None


def is_vmapped() -> bool:
    """Whether this runs under vmap: for many replicas at once."""
    return any(level.key() == TransformType.Vmap for level in retrieve_all_functorch_interpreters())


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors into others: on CUDA all of a dtype in one go, where one by one the launches would cost more."""
    for dtype in {t.dtype for t in targets}:
        which = [i for i, t in enumerate(targets) if t.dtype == dtype]
        torch._foreach_copy_([targets[i] for i in which], [sources[i] for i in which])


def chunks(x: Tensor) -> tuple[Tensor, ...]:
    """Examples in as many parts as a forward pass takes at once where no gradient is needed.

    >>> [len(part) for part in chunks(torch.zeros(150, 3, 64, 64))]
    [65, 65, 20]
    """
    size = 8 * CHUNK if x.is_cuda else CHUNK
    parts: tuple[Tensor, ...] = x.split(max(1, size // max(1, x[:1].numel())))
    return parts


def psi_mode(psi: nn.Module) -> PsiMode:
    """Which parameters of psi are trained, and which of its modules are in training mode."""
    return {
        "trained": [name for name, p in psi.named_parameters() if p.requires_grad],
        "training": [name for name, module in psi.named_modules() if module.training],
    }


def check_mode(psi: nn.Module, mode: Any) -> PsiMode:
    """What :func:`psi_mode` gave; DamagedError where it names what this psi does not have."""
    known = {
        "trained": {name for name, p in psi.named_parameters() if p.is_floating_point() or p.is_complex()},
        "training": {name for name, _ in psi.named_modules()},
    }
    for part, names in known.items():
        given = mode[part]
        if not isinstance(given, list) or not all(isinstance(name, str) and name in names for name in given):
            raise DamagedError(f"psi_mode.{part} is {given!r}, expected names of psi's own")
    return {part: list(dict.fromkeys(mode[part])) for part in known}


def psi_tensors(psi: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer of psi, those that its state_dict leaves out included."""
    return {**dict(psi.named_parameters()), **dict(psi.named_buffers())}


def check_psi_tensors(psi: nn.Module, saved: dict[str, Tensor]) -> None:
    """InputError where these are not what :func:`psi_tensors` gives of this psi, but of another network."""
    ours = psi_tensors(psi)

    def kind(tensors: dict[str, Tensor], name: str) -> str:
        return describe_value(tensors[name]) if name in tensors else "missing"

    for name in [*saved, *ours]:
        there, here = kind(saved, name), kind(ours, name)
        if there != here:
            raise InputError(f"this psi is not the one that was saved: {name} was {there} and is {here}")


def load_psi_tensors(psi: nn.Module, saved: dict[str, Tensor]) -> None:
    """Copy what :func:`psi_tensors` gave into psi, once it is checked."""
    with torch.no_grad():
        for name, tensor in psi_tensors(psi).items():
            tensor.copy_(saved[name])


def twin(module: nn.Module) -> nn.Module:
    """A copy of the module's structure on the same parameters and buffers."""
    shared = {id(t): t for t in itertools.chain(module.parameters(), module.buffers())}
    return copy.deepcopy(module, shared)
