"""Learners in files. Nothing in a file is executed.

A file has checksums of all that it holds, so what is read is what was written. A learner is built from it as
:func:`cclfp.make` builds one, and tried out, before it is used.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cclfp._version import __version__
from cclfp.core import trees
from cclfp.core.arguments import check_names
from cclfp.core.files import check_output, read_tensors, write_tensors
from cclfp.core.memory import Examples
from cclfp.core.randomness import generator, seeded
from cclfp.core.scenarios import ClassMask
from cclfp.errors import DamagedError, DivergenceError, InputError, shortage
from cclfp.learner.checks import check_features
from cclfp.learner.learner import PROBE, Learner
from cclfp.methods import METHODS, Method, get_method
from cclfp.nets import build_backbone, describe_backbone
from cclfp.nets.backbones import make_psi, parse_backbone
from cclfp.transforms import Augmentation, Transform, build_transform, describe

FORMAT = "cclfp learner 2"
STATISTICS = ("running_mean", "running_var")  # how the names of BatchNorm's buffers end
# The errors, besides InputError, that building something from a file of another program can raise.
DAMAGED = (KeyError, TypeError, AttributeError, IndexError, RuntimeError, ValueError, ArithmeticError)
NEEDED = (
    *("method", "hyper", "num_classes", "num_tasks", "scenario", "seed", "replay", "memory_size"),
    *("backbone", "transform", "predict_transform", "augment"),
)


def save(learner: Learner, path: Path, *, force: bool = False) -> None:
    """Write a learner's file, atomically. With ``force`` it may replace a file of any kind."""
    check_output(path, is_learner, force=force)
    write_tensors(path, {"format": FORMAT, "cclfp": __version__, **learner_state(learner)})


def is_learner(head: bytes) -> bool:
    """Whether a file begins as :func:`save` begins one, of any version of the format."""
    return head.startswith(b"PK") and b"cclfp learner " in head


def learner_state(learner: Learner, *, copies: bool = True) -> dict[str, Any]:
    """What a file holds. With ``copies=False`` the memory is rows of its stream, where it has one."""
    memory = learner.memory
    is_same = learner.predict_transform is learner.transform
    return {
        "method": learner.method.name,
        "hyper": dataclasses.asdict(learner.hyper),
        "num_classes": learner.num_classes,
        "num_tasks": learner.num_tasks,
        "scenario": learner.scenario,
        "seed": learner.seed,
        "replay": learner.replay,
        "memory_size": 0 if memory is None else memory.size,
        "backbone": describe_backbone(learner.psi),
        "transform": describe(learner.transform),
        "predict_transform": "same" if is_same else describe(learner.predict_transform),
        "augment": describe(learner.augment),
        "psi": _psi_tensors(learner.psi),
        "psi_mode": learner.psi_mode,
        "f": None if learner.f is None else learner.f.state_dict(),
        "state": learner.state,
        "memory": None if memory is None else memory.state_dict(copies=copies),
        "classes": learner.mask.state_dict(),
        "class_names": None if learner.classes is None else list(learner.classes),
        "like": None if learner.example is None else [list(learner.example[0]), learner.example[1]],
        "steps": learner.steps,
        "tasks_done": learner.tasks_done,
        "in_task": learner.in_task,
    }


def load_learner_state(learner: Learner, state: dict[str, Any], pool: Examples | None = None) -> None:
    """Take over what :func:`learner_state` gave; ``pool`` is the stream's examples where the memory is rows of it."""
    _load_psi(learner.psi, state["psi"])
    learner.psi_mode = state["psi_mode"]
    learner.steps, learner.tasks_done, learner.in_task = state["steps"], state["tasks_done"], state["in_task"]
    learner.mask = ClassMask(learner.scenario, **state["classes"]).to(learner.device)
    names = state.get("class_names")  # which files of earlier versions do not have
    learner.classes = None if names is None else check_names(names, learner.num_classes)
    if learner.memory is not None:
        learner.memory.load_state_dict(state["memory"], pool)
    learner.state = trees.map_tree(lambda t: t.detach().to(learner.device, copy=True), state["state"])
    learner.f = learner.example = None
    if state["f"] is not None:
        weight = state["f"]["weight"]
        f = nn.utils.skip_init(nn.Linear, weight.shape[1], learner.num_classes, dtype=weight.dtype)
        f.load_state_dict(state["f"])
        learner.bind(f.to(learner.device))
        shape, dtype = state["like"]
        learner.example = torch.Size(shape), dtype


def _psi_tensors(psi: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer of psi, including those that its state_dict leaves out."""
    return {**dict(psi.named_parameters()), **dict(psi.named_buffers())}


def _load_psi(psi: nn.Module, saved: dict[str, Tensor]) -> None:
    """Copy saved tensors into psi. InputError if its own have other names, shapes or dtypes."""
    ours = _psi_tensors(psi)
    there, here = ({name: f"{t.dtype} {tuple(t.shape)}" for name, t in tensors.items()} for tensors in (saved, ours))
    for name in [*saved, *ours]:
        was, now = there.get(name, "missing"), here.get(name, "missing")
        if was != now:
            raise InputError(f"this psi is not the one that was saved: {name} was {was} and is now {now}")
    with torch.no_grad():
        for name, tensor in ours.items():
            tensor.copy_(saved[name])


def load(
    path: str | Path,
    *,
    psi: nn.Module | str | None = None,
    transform: Transform | None = None,
    predict_transform: Transform | None = None,
    augment: Augmentation | None = None,
    method: type[Method] | str | None = None,
    device: str | torch.device | None = None,
) -> Learner:
    """A learner from a file that ``learner.save`` wrote. It continues as if it had never stopped.

    The file holds tensors and plain values; nothing in it is executed. Your own ``psi`` (of the same architecture; its
    weights are overwritten), ``transform``, ``augment`` and ``method`` are code, so you give them again. Those that
    ship with the package are rebuilt. ``psi`` and ``method`` may be given as ``"FILE.py:NAME"``, as to ``cclfp run``.

    >>> import tempfile
    >>> from cclfp import make
    >>> file = Path(tempfile.mkdtemp()) / "learner.ckpt"
    >>> learner = make("er", psi=nn.Flatten(), num_classes=2)
    >>> loss = learner.observe(torch.randn(4, 3), torch.tensor([0, 1, 1, 0]))
    >>> learner.save(file)
    >>> load(file, psi=nn.Flatten())
    Learner(er: lr=0.1; class scenario, 1 steps, memory 4/200)
    """
    path = Path(path)
    state = read_tensors(path, FORMAT)
    if missing := [name for name in NEEDED if name not in state]:
        raise InputError(f"{path} is not a whole learner: it lacks {', '.join(missing)}")
    with _reading(path):
        psi = psi if isinstance(psi, nn.Module) else _backbone(state, psi)
        transform = _transform("transform", transform, state["transform"])
        if predict_transform is None and state["predict_transform"] == "same":
            predict_transform = transform
        predict_transform = _transform("predict_transform", predict_transform, state["predict_transform"])
        augment = _transform("augment", augment, state["augment"])
        kind = _method(method, state["method"])

        def build(psi: nn.Module) -> Learner:
            learner = Learner(
                kind,
                psi,
                hyper={**kind.earlier_values(state), **state["hyper"]},  # the file may be older than a hyperparameter
                num_classes=state["num_classes"],
                scenario=state["scenario"],
                seed=state["seed"],
                tasks=None,
                num_tasks=state["num_tasks"],
                memory=state["memory_size"],
                replay=state["replay"],
                transform=transform,
                predict_transform=predict_transform,
                augment=augment,
                device=device,
            )
            load_learner_state(learner, state)
            return learner

        _try_out(build(copy.deepcopy(psi)))
        return build(psi)


def _try_out(learner: Learner) -> None:
    """Predict, and learn from one batch, with a learner that is thrown away: an error shows what cannot be used."""
    if learner.example is None:
        return
    new = _like_those_observed(learner)
    table = learner.draw_augmentation(0, len(new.y))
    with torch.no_grad(), seeded(learner.seed, "probe", 0, learner.device):
        prepared = learner.for_training(new.x, table)
    check_features(learner, new.x, lambda x: prepared)
    check_features(learner, new.x, learner.for_testing)
    _check_finite(learner, new.x)
    # A user's own method may refuse batches, and made-up inputs may be NaN after a user's transform.
    if learner.steps and learner.method in METHODS.values() and prepared.isfinite().all():
        learner.predict(new.x, new.task)
        with contextlib.suppress(DivergenceError):  # which leaves a learner as it was
            learner.observe(*new)


def _like_those_observed(learner: Learner) -> Examples:
    """A few examples that the learner may observe: those in its memory or, without any, made-up ones."""
    if learner.memory is not None and len(learner.memory):
        held = learner.memory.examples()
        return held.rows(torch.arange(max(2, min(PROBE, len(held.y)))) % len(held.y))  # BatchNorm needs two
    assert learner.example is not None
    shape, dtype = learner.example
    g = generator(learner.seed, "probe")
    x = torch.rand(2, *shape, generator=g) if dtype.is_floating_point else torch.ones(2, *shape)
    known = (learner.mask.classes_of & learner.mask.seen[:, None]).nonzero().tolist()
    task, y = torch.tensor([known[0] if known else (0, 0)] * 2, device=learner.device).unbind(1)
    return Examples(x.to(learner.device, dtype), y, task)


def _check_finite(learner: Learner, x: Tensor) -> None:
    """Refuse weights, features of x, a memory or the state of a shipped method that are not finite (InputError)."""
    params, buffers, state = learner.model
    # Nothing is known of the state of other methods.
    state = dict(state) if learner.method in METHODS.values() else {}
    # The buffers of a psi may be infinite on purpose, such as masks; its features and statistics may not.
    networks = [buffers, state.pop("buffers_old", buffers)]
    parts: dict[str, Any] = {"weights": params, "values in its state": state}
    parts["statistics"] = [b for own in networks for name, b in own.items() if name.endswith(STATISTICS)]
    with torch.no_grad(), seeded(learner.seed, "probe", 0, learner.device):
        prepared = learner.for_testing(x)
        if prepared.isfinite().all():
            parts["features"] = [learner.algorithm.net.frozen_features(params, own, prepared) for own in networks]
    if learner.memory is not None:
        parts["examples in memory"] = [learner.memory.examples().x, learner.memory.current().x]
    for name, part in parts.items():
        if not all(bool(tensor.isfinite().all()) for tensor in trees.leaves(part)):
            raise InputError(f"this learner has {name} that are not finite: its training diverged, or it was changed")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Add the name of the file to errors about what it holds."""
    try:
        yield
    except DamagedError as error:
        raise DamagedError(f"{path} is damaged: {error}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except DAMAGED as error:
        if (reason := shortage(error)) is not None:
            raise InputError(f"{path} cannot be loaded: {reason}") from error
        raise DamagedError(f"{path} is damaged: {error!r}") from error


def _method(given: type[Method] | str | None, saved: str) -> type[Method]:
    if given is None and saved not in METHODS:
        raise InputError(
            f"it is a learner of {saved}, which does not ship with cclfp: give the class, load(path, method=...) or "
            "--method FILE.py:NAME"
        )
    method = get_method(saved if given is None else given)
    if method.name != saved:
        raise InputError(f"it is a learner of {saved}, not of {method.name}")
    return method


def _backbone(state: dict[str, Any], given: str | None) -> nn.Module:
    """The psi that a file describes, or that ``given`` names: its function gets the shape of the learner's inputs."""
    if given is not None:
        return make_psi(parse_backbone(given), state["like"][0], state["seed"])
    if state["backbone"] is None:
        raise InputError(
            "it was saved with a psi of your own: give it again, load(path, psi=...) or --backbone FILE.py:NAME"
        )
    return build_backbone(state["backbone"])


def _transform(name: str, given: Any, saved: Any) -> Any:
    if given is not None or saved is None or saved == "same":
        return given
    if saved == "custom":
        raise InputError(f"it was saved with a {name} of your own: give it again, load(path, {name}=...)")
    return build_transform(saved)
