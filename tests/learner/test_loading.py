"""Files of tensors: what is damaged or altered is refused before it is used, and a full disk loses nothing."""

from __future__ import annotations

import errno
import functools
import io
import pickle
import re
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import Cli
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import cclfp
from cclfp.core.files import read_tensors, write_tensors
from cclfp.engine.cohort import Cohort
from cclfp.errors import DamagedError, InputError
from cclfp.learner.saving import FORMAT, learner_state
from cclfp.methods import METHODS
from cclfp.nets import MLP
from cclfp.runs import checkpoints
from cclfp.runs.store import Store
from cclfp.testing import Case, same
from cclfp.testing.case import equal
from cclfp.transforms import CropFlip, Normalise


def psi() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())


def batch(task: int = 0, seed: int = 0, n: int = 6) -> tuple[Tensor, Tensor]:
    y = 2 * task + torch.arange(n) % 2
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed)) + y[:, None], y


def trained(method: str, **arguments: Any) -> cclfp.Learner:
    """A learner after a task and two steps of another."""
    usual: dict[str, Any] = {"psi": psi(), "num_classes": 6, "memory": 8, "replay": 3, "lr": 0.01}
    learner = cclfp.make(method, **{**usual, **arguments})
    for task in (0, 1):
        for step in range(2):
            learner.observe(*batch(task, step), task=task)
        if task == 0:
            learner.end_task()
    return learner


def saved(learner: cclfp.Learner, folder: Path, **changes: Any) -> Path:
    """A learner's file, with some values changed."""
    learner.save(folder / "learner.ckpt")
    if changes:
        torch.save(read_tensors(folder / "learner.ckpt", FORMAT) | changes, folder / "learner.ckpt")
    return folder / "learner.ckpt"


# -- bytes --------------------------------------------------------------------------------------------------------


@functools.cache
def contents() -> dict[str, bytes]:
    """A learner file, and one like a checkpoint."""
    replica = Case(METHODS["ccl-fp+"], "class", {}).replica()
    Cohort([replica]).advance()
    with tempfile.TemporaryDirectory() as folder:
        learner, path = saved(trained("er"), Path(folder)), Path(folder) / "file"
        write_tensors(path, {"format": checkpoints.FORMAT, "engine": {"threads": 1}, "replica": replica.state_dict()})
        return {FORMAT: learner.read_bytes(), checkpoints.FORMAT: path.read_bytes()}


def check_damaged(kind: str, original: bytes, content: bytes) -> bool:
    """Whether a file is refused; if not it must be equal in all values."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        try:
            found = read_tensors(path, kind)
        except DamagedError:
            return True
        path.write_bytes(original)
        assert equal(found, read_tensors(path, kind))
        return False


@pytest.mark.parametrize("kind", [FORMAT, checkpoints.FORMAT])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_equal(kind: str, data: st.DataObject) -> None:
    original = contents()[kind]
    start = data.draw(st.integers(0, len(original) - 1))
    end = data.draw(st.integers(start + 1, min(len(original), start + 2000)) | st.just(len(original)))
    part, rest = original[start:end], original[end:]
    flipped = bytes([original[start] ^ 1 << data.draw(st.integers(0, 7))]) + original[start + 1 :]
    added = [part + part + rest, part + bytes(99) + rest]
    changed = [flipped, b"", rest, bytes(len(part)) + rest, part[::-1] + rest, *added]
    check_damaged(kind, original, original[:start] + data.draw(st.sampled_from(changed)))


@pytest.mark.slow
def test_no_flipped_bit_changes_a_value(tmp_path: Path) -> None:
    """Every part of a file is met: contents, headers, padding, the archive's directory and its end."""
    path = tmp_path / "file"
    tensors = {"tensor": torch.arange(9.0), "other": torch.ones(3)}
    write_tensors(path, {"format": FORMAT, **tensors, "numbers": [1, 2.5, "a"]})
    original = path.read_bytes()
    refused, entry = 0, 8 * original.rindex(b"archive/data/0")
    bits = {*range(0, 8 * len(original), 101), *range(entry - 8 * 46, entry)}  # all of an entry of the directory
    for bit in bits:
        content = bytearray(original)
        content[bit // 8] ^= 1 << bit % 8
        refused += check_damaged(FORMAT, original, bytes(content))
    assert refused > 20


def test_a_learner_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    path = saved(trained("er"), tmp_path)
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
    content = bytearray(path.read_bytes())
    content[largest.header_offset + 128 + largest.file_size // 2] ^= 64
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"learner.ckpt cannot be read as a cclfp learner: it is damaged, .*checksum"):
        cclfp.load(path, psi=psi())


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("pack", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value, protocol=2))])
def test_loading_executes_nothing(pack: Any, tmp_path: Path) -> None:
    path, proof = tmp_path / "learner.ckpt", tmp_path / "executed"
    pack({"format": FORMAT, "psi": Bomb(proof)}, path)
    with pytest.raises(ValueError, match="cannot be read as a cclfp learner"):
        cclfp.load(path, psi=psi())
    assert not proof.exists()


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200) | st.binary(max_size=50).map(lambda b: pickle.dumps({"format": FORMAT}, 2)[:-5] + b))
def test_rubbish_is_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learner.ckpt"
        path.write_bytes(content)
        with warnings.catch_warnings(action="ignore"), pytest.raises(ValueError, match=r"learner\.ckpt"):
            cclfp.load(path, psi=psi())


def test_archives_that_are_not_written_here_are_refused(tmp_path: Path) -> None:
    path, original = tmp_path / "file", contents()[FORMAT]
    for compression, times in ((zipfile.ZIP_DEFLATED, 1), (zipfile.ZIP_STORED, 2)):
        with (
            warnings.catch_warnings(action="ignore"),  # of names that are there twice
            zipfile.ZipFile(io.BytesIO(original)) as old,
            zipfile.ZipFile(path, "w", compression) as new,
        ):
            for entry in old.infolist() * times:
                new.writestr(entry.filename, old.read(entry))
        with pytest.raises(DamagedError, match="structure"):
            read_tensors(path, FORMAT)
    path.write_bytes(original + original)
    with pytest.raises(DamagedError):
        read_tensors(path, FORMAT)


def test_checksums_are_written_whatever_the_user_chose(tmp_path: Path) -> None:
    ours = trained("er")
    torch.serialization.set_crc32_options(False)
    try:
        path = saved(ours, tmp_path)
        assert not torch.serialization.get_crc32_options()
    finally:
        torch.serialization.set_crc32_options(True)
    assert same(ours, cclfp.load(path, psi=psi()))


def test_the_names_in_a_file_stay() -> None:
    """Files of the version before have these names: attributes may be renamed, but not what is in a file."""
    state = learner_state(trained("er"))
    assert list(state) == [
        *("method", "hyper", "num_classes", "num_tasks", "scenario", "seed", "replay", "memory_size"),
        *("backbone", "transform", "predict_transform", "augment"),
        *("psi", "psi_mode", "autocast", "f", "state", "memory", "classes", "class_names", "like"),
        *("steps", "tasks_done", "in_task"),
    ]
    assert list(state["memory"]) == ["schedule", "examples"]
    assert list(state["memory"]["schedule"]) == ["seen", "written", "settled", "_draws", "_places"]


def test_files_of_the_version_before_are_read(tmp_path: Path) -> None:
    ours = trained("icarl")
    state = learner_state(ours)
    del state["class_names"], state["autocast"]
    torch.save({"format": "cclfp learner 2", "cclfp": "0", **state}, tmp_path / "learner")
    loaded = cclfp.load(tmp_path / "learner", psi=psi())
    assert same(ours, loaded)
    assert loaded.classes is None


# -- what cannot be loaded, and what comes back -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("hyper", {"lr": "0.1"}, "lr='0.1': expected a number"),
        ("hyper", {"momentum": 0.9}, "unknown hyperparameter of er 'momentum'"),
        ("hyper", [1], "is damaged"),
        ("scenario", ["class"], "unknown scenario"),
        ("method", "ghost", "it is a learner of ghost, which does not ship with cclfp"),
        ("method", None, "it is a learner of None"),
        ("num_classes", 6.0, "num_classes=6.0: expected a whole number"),
        ("num_classes", 7, "is damaged"),
        ("num_classes", 10**400, "num_classes=1000"),
        ("replay", 0, "replay=0"),
        ("transform", {"name": "normalise", "mean": [float("nan")], "std": [1.0]}, "expected one finite number"),
        ("like", None, "is damaged"),
        ("like", [[4], torch.float32], "psi does not take x of shape"),
        ("state", 3, "is damaged"),
        ("f", {"weight": torch.zeros(3)}, "is damaged"),
        ("class_names", ["a", "a"], "names of the classes, all different"),
        ("class_names", {"a": 1}, "expected the names of the classes"),
    ],
)
def test_a_wrong_value_is_refused_and_psi_stays_as_it_was(name: str, value: Any, message: str, tmp_path: Path) -> None:
    path, mine = saved(trained("er"), tmp_path, **{name: value}), psi()
    with pytest.raises(InputError, match=message) as refused:
        cclfp.load(path, psi=mine)
    assert "learner.ckpt" in str(refused.value)
    assert all(map(torch.equal, mine.state_dict().values(), psi().state_dict().values()))


@pytest.mark.parametrize("name", ["psi", "f"])
def test_a_learner_that_has_diverged_is_refused(name: str, tmp_path: Path) -> None:
    ours = trained("er")
    next(getattr(ours, name).parameters()).detach().view(-1)[0] = torch.inf
    path, mine = saved(ours, tmp_path), psi()
    with pytest.raises(InputError, match="weights are not finite: its training diverged"):
        cclfp.load(path, psi=mine)
    assert all(map(torch.equal, mine.state_dict().values(), psi().state_dict().values()))


def test_a_buffer_may_be_infinite(tmp_path: Path) -> None:
    """Such as a mask that is added to scores."""

    def masked() -> nn.Module:
        made = psi()
        made.register_buffer("mask", torch.full((2, 2), -torch.inf))
        return made

    ours = trained("ccl-fp", psi=masked())
    again = cclfp.load(saved(ours, tmp_path), psi=masked())
    assert torch.equal(again.logits(batch()[0]), ours.logits(batch()[0]))


def test_a_learner_without_the_examples_of_its_task_is_refused(tmp_path: Path) -> None:
    ours = trained("icarl")
    memory = learner_state(ours)["memory"]
    del memory["current"]
    with pytest.raises(DamagedError, match="is damaged: KeyError.'current'"):
        cclfp.load(saved(ours, tmp_path, memory=memory), psi=psi())


class Spread:
    """An augmentation of a user's own."""

    def draw(self, n: int, g: torch.Generator) -> Tensor:
        return torch.rand(n, generator=g)

    def __call__(self, x: Tensor, table: Tensor) -> Tensor:
        return x * table[:, None]


def test_load_says_what_is_missing(tmp_path: Path) -> None:
    own: dict[str, Any] = {"transform": torch.clone, "predict_transform": torch.abs, "augment": Spread()}
    path = saved(trained("er", **own), tmp_path)
    for name in own:
        with pytest.raises(ValueError, match=f"it was saved with a {name} of your own: give it again"):
            cclfp.load(path, psi=psi(), **{**own, name: None})
    with pytest.raises(ValueError, match="psi of your own"):
        cclfp.load(path, **own)
    with pytest.raises(ValueError, match="it is a learner of er, not of si"):
        cclfp.load(path, psi=psi(), method="si", **own)
    for changed, now in ((psi().double(), r"float64 \(4, 3\)"), (nn.Sequential(nn.Linear(3, 5)), r"float32 \(5, 3\)")):
        with pytest.raises(ValueError, match=rf"0.weight was torch.float32 \(4, 3\) and is now torch.{now}"):
            cclfp.load(path, psi=changed, **own)
    torch.save({"a": 1}, path)
    with pytest.raises(ValueError, match="is not a 'cclfp learner 2' file"):
        cclfp.load(path)
    with pytest.raises(ValueError, match="there is no file"):
        cclfp.load(tmp_path / "none")


class Centred(nn.Module):
    """Has a buffer that its state_dict leaves out, and a layer that is frozen."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3), persistent=False)
        self.layers = psi()
        self.layers[0].weight.requires_grad_(False)  # type: ignore[index]

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.add_(x.mean(0))
        return self.layers(x - self.mean)  # type: ignore[no-any-return]


def test_psi_counts_as_it_was_given_and_comes_back_whole(tmp_path: Path) -> None:
    """What a user does to psi's mode and flags later, by hand, changes nothing; what is frozen stays so."""
    left, touched = trained("er", psi=Centred()), trained("er", psi=Centred())
    touched.psi.eval().requires_grad_(True)
    touched.to("cpu")
    loaded = cclfp.load(saved(touched, tmp_path), psi=Centred().eval())
    for one in (left, touched, loaded):
        one.observe(*batch(1, 5), task=1)
    assert same(left, touched)
    assert same(left, loaded)


def test_what_ships_with_the_package_comes_back_by_itself(tmp_path: Path) -> None:
    transform, augment = Normalise([0.5] * 3, [0.5] * 3), CropFlip(2)
    ours = cclfp.make("lwf", psi=MLP(48, [5]), num_classes=2, transform=transform, augment=augment)
    x, y = torch.randint(0, 256, (4, 3, 4, 4), dtype=torch.uint8), torch.tensor([0, 1, 1, 0])
    ours.observe(x, y)
    path, before = saved(ours, tmp_path), torch.get_rng_state()
    loaded = cclfp.load(path)
    assert torch.equal(before, torch.get_rng_state())
    for wrong in (None, {"name": "normalise", "mean": [0.5], "std": [0.5]}):
        with pytest.raises(InputError):
            cclfp.load(saved(ours, tmp_path, transform=wrong))
    for one in (ours, loaded):
        one.observe(x, y)
    assert same(ours, loaded)


# -- full disks ---------------------------------------------------------------------------------------------------


def fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the last step of writing a file fail, as on a full disk; torture/ fills real ones."""
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("cclfp.core.files.os.fsync", Mock(side_effect=full))


def test_a_learner_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = trained("er")
    path = saved(old, tmp_path)
    fill_the_disk(monkeypatch)
    with pytest.raises(OSError, match=r"No space left on device: '.*/learner.ckpt'"):
        trained("si").save(path)
    assert same(old, cclfp.load(path, psi=psi()))
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.usefixtures("small_mnist")
def test_a_run_whose_learner_cannot_be_written_is_stored(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_the_disk(monkeypatch)
    folder, store = tmp_path / "learners", tmp_path / "runs.sqlite"
    answer = cli("run", "er", "split-mnist", "--seeds", "1", "--store", store, "--save", folder)
    assert answer.code == 2
    text = r"the run is stored, but its learner cannot be saved as .*No space left on device"
    assert re.search(text, " ".join(answer.err.split()))
    assert "Traceback" not in answer.err
    assert list(folder.iterdir()) == []
    assert len(Store(store).records()) == 1
