"""Files of tensors: what is damaged or altered is refused before it is used, and a full disk loses nothing."""

from __future__ import annotations

import errno
import functools
import io
import itertools
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from conftest import Cli
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from training import Stop, stop_at, texts, train
from training import make_job as make_any_job

import cclfp
from cclfp.core import files
from cclfp.core.files import read_tensors, write_tensors
from cclfp.engine.cohort import Cohort
from cclfp.errors import DamagedError, InputError
from cclfp.learner.saving import FORMAT, learner_state
from cclfp.methods import METHODS, Method
from cclfp.methods.base import State
from cclfp.methods.ccl_fp import CCLFP
from cclfp.methods.er import ER
from cclfp.nets import MLP
from cclfp.runs import checkpoints, start, training
from cclfp.runs.events import Event, ignore
from cclfp.runs.jobs import Job
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store
from cclfp.schedules import Schedule
from cclfp.testing import Case, same
from cclfp.testing.case import equal
from cclfp.transforms import CropFlip, Normalise

TRIED = 40  # alterations of each learner's file
FUZZED = ("er", "ccl-fp+", "icarl", "gem", "hal", "fdr", "si", "lwf")


def psi() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())


def batch(task: int = 0, seed: int = 0, n: int = 6) -> tuple[Tensor, Tensor]:
    y = 2 * task + torch.arange(n) % 2
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed)) + y[:, None], y


def trained(method: str | type[Method], tasks: int = 1, in_task: bool = True, **arguments: Any) -> cclfp.Learner:
    """A learner after some tasks and, with ``in_task``, two steps of another."""
    chosen: dict[str, Any] = {"psi": psi(), "num_classes": 6, "memory": 8, "replay": 3, "lr": 0.01, **arguments}
    if method == "hal":
        chosen["steps"] = 3
    learner = cclfp.make(method, **chosen)
    for task in range(tasks + in_task):
        for step in range(2):
            learner.observe(*batch(task, step), task=task)
        if task < tasks:
            learner.end_task()
    return learner


# -- bytes --------------------------------------------------------------------------------------------------------


@functools.cache
def contents() -> dict[str, bytes]:
    """A learner file, and one like a checkpoint."""
    replica = Case(METHODS["ccl-fp+"], "class", {}).replica()
    Cohort([replica]).advance()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        trained("er").save(path)
        learner = path.read_bytes()
        write_tensors(path, {"format": checkpoints.FORMAT, "engine": {"threads": 1}, "replica": replica.state_dict()})
        return {FORMAT: learner, checkpoints.FORMAT: path.read_bytes()}


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
    changed = [
        flipped,
        b"",
        bytes(len(part)) + rest,
        part + part + rest,
        rest,
        part[::-1] + rest,
        part + bytes(99) + rest,
    ]
    check_damaged(kind, original, original[:start] + data.draw(st.sampled_from(changed)))


@pytest.mark.slow
def test_no_flipped_bit_changes_a_value(tmp_path: Path) -> None:
    """Every part of a file is met: contents, headers, padding, the archive's directory and its end."""
    path = tmp_path / "file"
    write_tensors(
        path, {"format": FORMAT, "tensor": torch.arange(9.0), "other": torch.ones(3), "numbers": [1, 2.5, "a"]}
    )
    original = path.read_bytes()
    refused, entry = 0, 8 * original.rindex(b"archive/data/0")
    bits = {*range(0, 8 * len(original), 29), *range(entry - 8 * 46, entry)}  # all of an entry of the directory
    for bit in bits:
        content = bytearray(original)
        content[bit // 8] ^= 1 << bit % 8
        refused += check_damaged(FORMAT, original, bytes(content))
    assert refused > 50


def flip(path: Path) -> bytes:
    """Flip a bit in the middle of the largest tensor of a file; its content then."""
    with zipfile.ZipFile(path) as archive:
        entry = max(archive.infolist(), key=lambda entry: entry.file_size)
    content = bytearray(path.read_bytes())
    content[entry.header_offset + 128 + entry.file_size // 2] ^= 64
    path.write_bytes(content)
    return bytes(content)


def test_a_learner_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "learner"
    trained("er").save(path)
    flip(path)
    with pytest.raises(InputError, match=r"learner cannot be read as a cclfp learner: it is damaged, .*checksum\)"):
        cclfp.load(path, psi=psi())


def test_archives_that_are_not_written_here_are_refused(tmp_path: Path) -> None:
    path, original = tmp_path / "file", contents()[FORMAT]
    for compression, times in ((zipfile.ZIP_DEFLATED, 1), (zipfile.ZIP_STORED, 2)):
        with zipfile.ZipFile(io.BytesIO(original)) as old, zipfile.ZipFile(path, "w", compression) as new:
            for entry, _ in itertools.product(old.infolist(), range(times)):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("warnings.warn", lambda *_, **__: None)  # of names that are there twice
                    new.writestr(entry.filename, old.read(entry))
        with pytest.raises(DamagedError, match="structure"):
            read_tensors(path, FORMAT)
    path.write_bytes(original + original)
    with pytest.raises(DamagedError):
        read_tensors(path, FORMAT)


def test_values_that_contain_one_another_are_refused(tmp_path: Path) -> None:
    deep: list[Any] = [1]
    for _ in range(60):
        deep = [deep, deep]
    round_: list[Any] = []
    round_.append(round_)
    for values in (deep, round_):
        torch.save({"format": FORMAT, "values": values}, tmp_path / "file")
        with pytest.raises(DamagedError):
            read_tensors(tmp_path / "file", FORMAT)


def test_checksums_are_written_whatever_the_user_chose(tmp_path: Path) -> None:
    ours = trained("er")
    torch.serialization.set_crc32_options(False)
    try:
        ours.save(tmp_path / "learner")
        assert not torch.serialization.get_crc32_options()
    finally:
        torch.serialization.set_crc32_options(True)
    assert same(ours, cclfp.load(tmp_path / "learner", psi=psi()))


def test_the_names_in_a_file_stay() -> None:
    """Files of the version before have these names: attributes may be renamed, but not what is in a file."""
    state = learner_state(trained("er"))
    assert list(state) == [
        *("method", "hyper", "num_classes", "num_tasks", "scenario", "seed", "replay", "memory_size"),
        *("backbone", "transform", "predict_transform", "augment"),
        *("psi", "psi_mode", "f", "state", "memory", "classes", "class_names", "like"),
        *("steps", "tasks_done", "in_task"),
    ]
    assert list(state["memory"]) == ["schedule", "examples"]
    assert list(state["memory"]["schedule"]) == ["seen", "written", "settled", "_draws", "_places"]


def test_files_of_the_version_before_are_read(tmp_path: Path) -> None:
    ours = trained("icarl")
    state = learner_state(ours)
    del state["class_names"]
    torch.save({"format": "cclfp learner 2", "cclfp": "0", **state}, tmp_path / "learner")
    loaded = cclfp.load(tmp_path / "learner", psi=psi())
    assert same(ours, loaded)
    assert loaded.classes is None


# -- wrong values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hyper", [1]),
        ("hyper", {"lr": "0.1"}),
        ("hyper", {"lr": float("nan")}),
        ("hyper", {1: 0.1}),
        ("hyper", {"momentum": 0.9}),
        ("scenario", 3),
        ("scenario", ["class"]),
        ("scenario", "klass"),
        ("method", None),
        ("method", {"name": "er"}),
        ("method", "ghost"),
        ("num_classes", "6"),
        ("num_classes", 6.0),
        ("num_classes", 7),
        ("num_classes", 10**400),
        ("num_tasks", -1),
        ("seed", -1),
        ("seed", True),
        ("replay", 0),
        ("memory_size", 2**62),
        ("backbone", 3),
        ("transform", "scale"),
        ("transform", {"name": []}),
        ("transform", {"name": "normalise", "mean": [float("nan")], "std": [1.0]}),
        ("augment", {"name": "crop+flip", "padding": 1}),
        ("like", None),
        ("like", [[4], torch.float32]),
    ],
)
def test_a_wrong_value_is_named(name: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "learner.ckpt"
    trained("er").save(path)
    torch.save(read_tensors(path, FORMAT) | {name: value}, path)
    with pytest.raises(InputError, match=r"learner\.ckpt"):
        cclfp.load(path, psi=None if name == "backbone" else psi())


@pytest.mark.parametrize("name", ["psi", "f", "state", "memory"])
def test_values_that_are_not_finite_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "learner"
    trained("si" if name == "state" else "er").save(path)
    state = read_tensors(path, FORMAT)
    inner = {"state": "start", "memory": "examples"}.get(name)
    tensors = state[name] if inner is None else state[name][inner]
    next(iter(tensors.values())).detach().view(-1)[0] = torch.inf
    torch.save(state, path)
    with pytest.raises(InputError, match="not finite"):
        cclfp.load(path, psi=psi())


def test_buffers_need_not_be_finite(tmp_path: Path) -> None:
    class Masked(nn.Module):
        mask: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor([0.0, 0.0, -torch.inf]))

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x + self.mask, -1)

    for method in ("ccl-fp", "lwf"):
        ours = trained(method, psi=Masked())
        ours.save(tmp_path / "learner")
        assert same(ours, cclfp.load(tmp_path / "learner", psi=Masked()))


def test_a_refused_file_leaves_psi_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "learner"
    trained("er").save(path)
    torch.save(read_tensors(path, FORMAT) | {"num_classes": 7}, path)
    mine = psi()
    with pytest.raises(InputError, match="is damaged"):
        cclfp.load(path, psi=mine)
    assert all(map(torch.equal, mine.state_dict().values(), psi().state_dict().values()))


@pytest.mark.parametrize("method", METHODS)
def test_loading_changes_no_random_state(method: str, tmp_path: Path) -> None:
    ours, mine = trained(method), psi()
    ours.save(tmp_path / "learner")
    before = torch.get_rng_state()
    assert same(ours, cclfp.load(tmp_path / "learner", psi=mine))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("method", "name"), [("si", "importance"), ("lwf", "masks"), ("icarl", "means"), ("hal", "embedding")]
)
def test_a_learner_is_tried_out_before_it_is_returned(method: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "learner"
    trained(method).save(path)
    state = read_tensors(path, FORMAT)
    del state["state"][name]
    torch.save(state, path)
    mine = psi()
    with pytest.raises(DamagedError, match="is damaged: KeyError"):
        cclfp.load(path, psi=mine)
    assert all(map(torch.equal, mine.state_dict().values(), psi().state_dict().values()))


def test_a_backbone_of_this_package_is_rebuilt(tmp_path: Path) -> None:
    ours = cclfp.make("si", psi=MLP(3, [5]), num_classes=2)
    ours.observe(*batch())
    ours.save(tmp_path / "learner")
    assert same(ours, cclfp.load(tmp_path / "learner"))


def test_images_are_loaded_with_their_transform(tmp_path: Path) -> None:
    transform, augment = Normalise([0.5] * 3, [0.5] * 3), CropFlip(2)
    ours = cclfp.make("lwf", psi=MLP(48, [5]), num_classes=2, transform=transform, augment=augment)
    ours.observe(torch.randint(0, 256, (4, 3, 4, 4), dtype=torch.uint8), torch.tensor([0, 1, 1, 0]))
    ours.save(tmp_path / "learner")
    assert same(ours, cclfp.load(tmp_path / "learner"))
    state = read_tensors(tmp_path / "learner", FORMAT)
    for wrong in (None, {"name": "normalise", "mean": [0.5], "std": [0.5]}):
        torch.save(state | {"transform": wrong}, tmp_path / "learner")
        with pytest.raises(InputError):
            cclfp.load(tmp_path / "learner")


# -- methods of a user's own --------------------------------------------------------------------------------------


class Least(ER):
    """A state that no method here has, on a schedule that counts otherwise."""

    name = "least"

    class Last(Schedule):
        def place(self, tasks: Any) -> list[int]:
            self.newest = len(tasks)
            slots = [i if i < self.size else -1 for i in range(len(tasks))]
            self.written = [0] * max(len(self.written), min(self.size, len(tasks)))
            return slots

    schedule: ClassVar[type[Schedule] | None] = Last

    def begin_task(self, params: Any, buffers: Any, state: State, hyper: Any, context: Any) -> State:
        return state or {
            "least": torch.tensor(torch.inf),
            "deep": {"part": torch.ones(1, dtype=torch.int32)},
        }


class Twice(CCLFP):
    """More state than the method it is made from."""

    name = "twice"

    def end_task(self, params: Any, buffers: Any, state: State, hyper: Any, context: Any) -> State:
        return {**super().end_task(params, buffers, state, hyper, context), "ended": torch.tensor(context.position)}


class Louder(CCLFP):
    """The same state with another loss."""

    name = "louder"

    def extra_loss(self, z: Tensor, batch: Any, hyper: Any) -> Tensor | float:
        return z.square().mean()


class Picky(ER):
    """Refuses other batches than those that it was trained on."""

    name = "picky"

    def step(self, params: Any, buffers: Any, state: State, batch: Any, hyper: Any) -> Any:
        assert batch.n_current == 6
        return super().step(params, buffers, state, batch, hyper)


@pytest.mark.parametrize("method", [Least, Twice, Louder, Picky])
@pytest.mark.parametrize("in_task", [True, False])
def test_a_method_of_ones_own_is_loaded(method: type[Method], in_task: bool, tmp_path: Path) -> None:
    ours = trained(method, tasks=2, in_task=in_task)
    ours.save(tmp_path / "learner")
    loaded = cclfp.load(tmp_path / "learner", psi=psi(), method=method)
    for learner in (ours, loaded):
        learner.observe(*batch(2, 7), task=2)
    assert same(ours, loaded)


# -- damaged checkpoints ------------------------------------------------------------------------------------------


def make_job(store: Path, **changes: Any) -> Job:
    (configuration,) = configurations(["er"], "split-mnist", None)
    return make_any_job(configuration, 0, store, **changes)


def stopped(job: Job, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkpoint of a run that was stopped in its second task."""
    monkeypatch.setattr(training, "STEP_EVERY", 0.0)
    with pytest.raises(Stop):
        train(job, stop_at(50))
    return Store(job.execution.store).checkpoints / f"{job.key}.ckpt"


def noted(job: Job) -> tuple[Any, list[str]]:
    """The accuracies of a run, and what it said."""
    events: list[Event] = []
    return train(job, events.append)["accuracy_matrix"], texts(events)


@pytest.mark.usefixtures("small_mnist")
def test_a_damaged_checkpoint_is_kept_aside_and_the_run_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, _ = noted(make_job(tmp_path / "other.sqlite"))
    job = make_job(tmp_path / "runs.sqlite")
    for again in range(2):
        path = stopped(job, monkeypatch)
        content, kept = flip(path), path.with_suffix(".damaged")
        matrix, notes = noted(job)
        assert matrix == right
        (restart,) = (note for note in notes if "starting again, the checkpoint is damaged" in note)
        assert kept.name in restart
        assert "does not match its checksum" in restart
        assert f"a damaged checkpoint of this run is kept as {kept}" in notes[-1]
        assert kept.read_bytes() == content  # the last one, and no other
        assert list(kept.parent.iterdir()) == [kept], again
        Store(job.execution.store).path.unlink()


def change_position(state: dict[str, Any]) -> None:
    state["replica"]["position"] += 1


def change_weights(state: dict[str, Any]) -> None:
    state["replica"]["learner"]["f"]["weight"] = torch.zeros(3, 3)


@pytest.mark.usefixtures("small_mnist")
def test_a_checkpoint_whose_values_were_changed_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(tmp_path / "runs.sqlite")
    path = stopped(job, monkeypatch)
    original = path.read_bytes()
    for change in (change_position, change_weights):
        path.write_bytes(original)
        state = read_tensors(path, checkpoints.FORMAT)
        change(state)
        torch.save(state, path)
        with pytest.raises(DamagedError):
            start._continue(job, path, {}, ignore)


# -- full disks ---------------------------------------------------------------------------------------------------


class Failing(io.BytesIO):
    """A file with so much space."""

    def __init__(self, space: int, error: BaseException) -> None:
        super().__init__()
        self.space, self.error = space, error

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self.space:
            raise self.error
        return super().write(data)


@pytest.mark.parametrize("space", [0, 10, 100, 1000, 5000, 9000])
def test_the_reason_why_nothing_could_be_written_comes_through(space: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()):
        file = Failing(space, error)
        monkeypatch.setattr(files, "write_atomic", lambda path, write, file=file: write(file))
        with pytest.raises(type(error)) as raised:
            write_tensors(Path("file"), {"tensor": torch.zeros(2000)})
        assert raised.value is error


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Makes a file system of so many kB."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "cclfp-test", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no file system can be mounted here")
        return folder

    yield mount
    if folder.is_mount():
        subprocess.run(["umount", str(folder)], check=True)


def test_a_learner_that_does_not_fit_leaves_the_old_one(small_disk: Callable[[int], Path]) -> None:
    path = small_disk(300) / "learner"
    ours = cclfp.make("er", psi=MLP(3, [40000]), num_classes=1)
    old = trained("er")
    old.save(path)
    ours.observe(torch.zeros(1, 3), torch.tensor([0]))
    with pytest.raises(OSError, match=r"No space left on device: '.*/disk/learner'"):
        ours.save(path)
    assert same(old, cclfp.load(path, psi=psi()))
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.usefixtures("small_mnist")
def test_a_disk_that_fills_while_a_checkpoint_is_written(small_disk: Callable[[int], Path], tmp_path: Path) -> None:
    right, _ = noted(make_job(tmp_path / "other.sqlite"))
    store = small_disk(300) / "runs.sqlite"
    matrix, notes = noted(make_job(store))
    assert matrix == right
    text = "no checkpoint could be written, continuing without one: [Errno 28] No space left"
    assert sum(text in note for note in notes) == 4
    assert list(Store(store).checkpoints.iterdir()) == []


@pytest.mark.usefixtures("small_mnist")
def test_a_disk_that_fills_while_a_learner_is_saved(
    small_disk: Callable[[int], Path], tmp_path: Path, cli: Cli
) -> None:
    folder = small_disk(300) / "learners"
    answer = cli("run", "er", "split-mnist", "--seeds", "1", "--store", tmp_path / "runs.sqlite", "--save", folder)
    assert answer.code == 2
    assert "the run is stored, but its learner cannot be saved as" in answer.err
    assert "No space left on device" in answer.err
    assert "Traceback" not in answer.err
    assert list(folder.iterdir()) == []
    assert len(list(Store(tmp_path / "runs.sqlite").records())) == 1


LIMITED = """
import resource, sys, torch, cclfp
learner = cclfp.make("er", psi=torch.nn.Linear(3, 4000), num_classes=2)
learner.observe(torch.zeros(1, 3), torch.tensor([0]))
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    learner.save(sys.argv[1])
except OSError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="there are no such limits")
def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    path = tmp_path / "files" / "learner"
    done = subprocess.run([sys.executable, "-c", LIMITED, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"File too large: '{path}'" in done.stdout
    assert list(path.parent.iterdir()) == []
