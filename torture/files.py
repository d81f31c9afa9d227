"""Hostile files, many per process. Each must be refused with a clean message, or give what the original gives.

A *damaged* file must not give a different result. A *forged* record (changed values) must be refused or remain usable:
whatever is done with it next ends in a result or a clean message. Files of tensors are believed for their checksums.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cclfp
from cclfp.cli import main
from cclfp.data import dataset_path, load_dataset, verify
from cclfp.data.images import import_images
from cclfp.errors import InputError, RunError
from cclfp.learner import Learner
from cclfp.learner.saving import learner_state
from cclfp.nets import MLP
from cclfp.runs.checkpoints import checkpoint_path
from cclfp.runs.events import Event, OnEvent, Step, ignore
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job
from cclfp.runs.pool import Pool
from cclfp.runs.run import run_jobs
from cclfp.runs.settings import configurations, read_presets, with_preset, write_presets
from cclfp.runs.store import Store, import_runs
from torture.campaign import Case, Fault, Kind, Verdict
from torture.commands import RESULT, Ended, check, digest
from torture.damage import PLAIN, damage_bytes, forge_value
from torture.material import copy, put_arrays, put_images, put_mnist, put_store, record_lines

Use = Callable[[Case, Path, bool], object]  # uses a file, which may be forged; returns what it has read

METHODS = ("er", "ccl-fp+", "icarl", "gem", "lwf", "si", "hal", "fdr", "a-gem", "joint")
CLASSES, INPUTS = 6, 5
ODD_TEXTS = (
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"",
    b"null",
    b"[]",
    b"[[]]",
    b"\xff\xfe{}",
    b"1" * 5000,
    b"[NaN]",
    b"\x00",
)
PROTECTED = ("method", "benchmark", "scenario", "buffer", "seed", "configuration", *RESULT[:-1])


def attempt(case: Case, path: Path, is_forged: bool, use: Use, expected: object) -> Verdict:
    """Use a file and judge the outcome."""
    try:
        found = use(case, path, is_forged)
    except (InputError, RunError):
        return Verdict.REFUSED
    if not is_forged and found != expected:
        raise Fault(Verdict.WRONG, f"{path.name}: {str(found)[:300]}, not {str(expected)[:300]}")
    return Verdict.SURVIVED


def damage_or_forge(case: Case, forge: Callable[[], tuple[str, bytes]] | None, original: bytes) -> tuple[bool, bytes]:
    """Damage or forge a file, and count it: whether it was forged, and the new content."""
    is_forged = forge is not None and case.random.random() < 0.4
    what, content = forge() if is_forged and forge is not None else damage_bytes(case.random, original)
    case.tries[what] += 1
    return is_forged, content


def call(*arguments: str | Path) -> str:
    """Run a command in this process, which must succeed, and return its output."""
    out = io.StringIO()
    sys.argv = ["cclfp", *map(str, arguments)]
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    ended = check(Ended(code, out.getvalue()))
    if code:
        raise Fault(Verdict.LOST, f"an accepted file makes cclfp {' '.join(map(str, arguments))} fail: {ended.last}")
    return ended.text


# -- learner files --------------------------------------------------------------------------------------------------


def prepare_learners(material: Path) -> None:
    for method in METHODS:
        learner = cclfp.make(
            method, psi=MLP(INPUTS, (8, 8)), num_classes=CLASSES, memory=12, tasks=[[0, 1], [2, 3], [4, 5]]
        )
        for task in range(2):
            for step in range(4):
                learner.observe(*batch(task, step), task=task)
            learner.end_task()
        learner.observe(*batch(2, 0), task=2)
        learner.save(material / f"{method}.ckpt")


def batch(task: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(100 * task + step)
    return torch.randn(6, INPUTS, generator=g), torch.tensor([2 * task, 2 * task + 1] * 3)


def run_learner(case: Case) -> Verdict:
    method = case.random.choice(METHODS)
    path = case.folder / f"{method}.ckpt"
    original = (case.material / path.name).read_bytes()
    is_forged, content = damage_or_forge(case, None, original)
    path.write_bytes(content)
    expected = digest(learner_state(cclfp.load(case.material / path.name)))
    return attempt(case, path, is_forged, use_learner, expected)


def use_learner(case: Case, path: Path, is_forged: bool) -> str:
    """Load a learner and continue training."""
    learner = cclfp.load(path)
    state = digest(learner_state(learner))
    continue_training(learner, case.folder / "again.ckpt")
    return state


def continue_training(learner: Learner, path: Path) -> None:
    x, y = batch(2, 1)
    for _ in range(2):
        predicted = learner.predict(x)
        if not set(predicted.tolist()) <= set(range(CLASSES)):
            raise Fault(Verdict.WRONG, f"predicted {predicted.tolist()} of {CLASSES} classes")
        learner.observe(x, y, task=2)
    learner.end_task()
    learner.save(path)
    cclfp.load(path).predict(x)


# -- checkpoints ----------------------------------------------------------------------------------------------------


class Stop(Exception):
    """Simulates a SIGKILL."""


def job_in(folder: Path, seed: int = 0) -> Job:
    (configuration,) = configurations(["er"], "split-mnist", memory=20, backbone="mlp:width=8")
    return Job(configuration, seed, Execution("cpu", "eager", store=folder / "runs.sqlite", checkpoint_every=0.0))


def train(job: Job, on_event: OnEvent = ignore) -> dict[str, Any]:
    """Train one run in this process, and give its record."""
    return dict(run_jobs([job], on_event, Pool())[job.key])


def prepare_checkpoints(material: Path) -> None:
    put_mnist(material)
    os.environ["CCLFP_HOME"] = str(material / "home")
    whole = train(job_in(material / "whole"))
    (material / "expected.json").write_text(json.dumps([whole[name] for name in RESULT]))

    def stop(event: Event) -> None:
        if isinstance(event, Step) and event.task > 3:
            raise Stop

    with contextlib.suppress(Stop):
        train(job_in(material / "stopped"), stop)
    (checkpoint,) = (material / "stopped" / "runs.sqlite.checkpoints").glob("*.ckpt")
    shutil.copy(checkpoint, material / "original.ckpt")


def run_checkpoint(case: Case) -> Verdict:
    os.environ["CCLFP_HOME"] = str(case.material / "home")
    original = case.material / "original.ckpt"
    is_forged, content = damage_or_forge(case, None, original.read_bytes())
    job = job_in(case.folder)
    path = checkpoint_path(job)
    path.parent.mkdir()
    path.write_bytes(content)
    return attempt(case, path, is_forged, use_checkpoint, json.loads((case.material / "expected.json").read_text()))


def use_checkpoint(case: Case, path: Path, is_forged: bool) -> list[Any]:
    record = train(job_in(case.folder))
    return [record[name] for name in RESULT]


# -- run records and stores -----------------------------------------------------------------------------------------


def run_record(case: Case) -> Verdict:
    """A file of records. No check covers a run's times, its environment and the inner accuracies of its matrix."""
    line = case.random.choice(record_lines())
    record = json.loads(line)
    is_forged, content = damage_or_forge(case, lambda: forge_json(case, record), line.encode())
    path = case.folder / "records.jsonl"
    path.write_bytes(content)
    return attempt(case, path, is_forged, use_record, [_protected(record)])


def use_record(case: Case, path: Path, is_forged: bool) -> list[Any]:
    store = Store(case.folder / "runs.sqlite")
    import_runs([path], store)
    found = [_protected(record) for record in store.records()]
    call("runs", "--store", store.path)
    call("runs", "--json", "--store", store.path)
    call("runs", "export", case.folder / "again.jsonl", "--store", store.path)
    return found


def forge_json(case: Case, original: Any) -> tuple[str, bytes]:
    if case.random.random() < 0.05:
        return "odd text", case.random.choice(ODD_TEXTS)
    how, value = forge_value(case.random, original, PLAIN)
    return how, json.dumps(value).encode()


def _protected(record: Mapping[str, Any]) -> list[Any]:
    """The values of a record that its key and its accuracies protect, rounded to five digits."""
    values = [record[name] for name in PROTECTED]
    return [round(value, 5) if isinstance(value, float) else value for value in values]


def prepare_stores(material: Path) -> None:
    put_store(material / "place", step=60)
    records = Store(material / "place" / "runs.sqlite").records()
    (material / "expected.json").write_text(json.dumps([_protected(record) for record in records]))


def run_store(case: Case) -> Verdict:
    path = case.folder / "runs.sqlite"
    _, content = damage_or_forge(case, None, (case.material / "place" / "runs.sqlite").read_bytes())
    path.write_bytes(content)
    return attempt(case, path, False, use_store, json.loads((case.material / "expected.json").read_text()))


def use_store(case: Case, path: Path, is_forged: bool) -> list[Any]:
    found = json.loads(json.dumps([_protected(record) for record in Store(path).records()]))
    call("runs", "--store", path)
    call("runs", "export", case.folder / "again.jsonl", "--store", path)
    return list(found)


def run_presets(case: Case) -> Verdict:
    """Presets are text that users edit: accepted presets must have values that the methods accept."""
    original = Path(cclfp.runs.settings.__file__).with_name("presets.json").read_bytes()
    several = json.loads(original)[:8]
    _, content = damage_or_forge(case, lambda: forge_json(case, several), json.dumps(several).encode())
    path = case.folder / "presets.json"
    path.write_bytes(content)
    return attempt(case, path, True, use_presets, None)


def use_presets(case: Case, path: Path, is_forged: bool) -> None:
    found = read_presets(path)
    again = case.folder / "again.json"
    write_presets(with_preset(found, found[0]) if found else [], again)
    if read_presets(again) != found:
        raise Fault(Verdict.WRONG, "presets differ after they were written and read again")


# -- images and arrays ----------------------------------------------------------------------------------------------


def own_home(case: Case) -> Path:
    """Give the case its own CCLFP_HOME."""
    os.environ["CCLFP_HOME"] = str(case.folder / "home")
    return case.folder / "home"


def dataset_checksum(name: str) -> str:
    """A checksum of a dataset."""
    data = load_dataset(name)
    arrays = (data.train_images, data.train_labels, data.test_images, data.test_labels)
    return digest([*(torch.as_tensor(np.array(array)) for array in arrays), list(data.classes)])


def prepare_arrays(material: Path) -> None:
    put_arrays(material)
    os.environ["CCLFP_HOME"] = str(material / "home")
    name = import_images(material / "pets.npz")
    (material / "expected.json").write_text(json.dumps([name, dataset_checksum(name)]))


def run_npz(case: Case) -> Verdict:
    own_home(case)
    original = case.material / "pets.npz"
    path = case.folder / "pets.npz"
    is_forged, content = damage_or_forge(case, lambda: forge_npz(case, original), original.read_bytes())
    path.write_bytes(content)
    _, expected = json.loads((case.material / "expected.json").read_text())
    return attempt(case, path, is_forged, lambda case, path, is_forged: dataset_checksum(import_images(path)), expected)


def forge_npz(case: Case, path: Path) -> tuple[str, bytes]:
    """A file in which one array has another header or content, with valid checksums."""
    with np.load(path) as arrays:
        members = {name: _npy(arrays[name]) for name in arrays.files}
    name = case.random.choice(list(members))
    header, body = members[name][:128], members[name][128:]
    shape, dtype = "(30, 6, 6)", "|u1"
    dtypes, others = (
        ["|V1000000000", "|O", "<f8", "<U9", "x"],
        [np.zeros((2, 2)), np.array("x"), np.zeros((3, 0), "u1")],
    )
    forgeries: dict[str, Callable[[], bytes]] = {
        "huge shape": lambda: _header(f"({10 ** case.random.randint(6, 30)}, 6, 6)", dtype) + body,
        "negative shape": lambda: _header("(-1, 6, 6)", dtype) + body,
        "odd dtype": lambda: _header(shape, case.random.choice(dtypes)) + body,
        "deep header": lambda: _header("(" * 5000, dtype) + body,
        "no header": lambda: body,
        "short content": lambda: header + body[: len(body) // 2],
        "another array": lambda: _npy(case.random.choice(others)),
        "text": lambda: b"ant,bee,cat\n" * 20,
    }
    how = case.random.choice(list(forgeries))
    members[name] = forgeries[how]()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", case.random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for member, content in members.items():
            archive.writestr(f"{member}.npy", content)
    return how, buffer.getvalue()


def _npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _header(shape: str, dtype: str) -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text


def run_cached(case: Case) -> Verdict:
    """Stored arrays: cclfp data verify finds every change, and a run does not crash."""
    home = copy(case.material / "home", own_home(case))
    name, expected = json.loads((case.material / "expected.json").read_text())
    files = sorted((home / "data" / name / "arrays").iterdir())
    path = case.random.choice(files)
    _, content = damage_or_forge(case, None, path.read_bytes())
    path.write_bytes(content)
    with contextlib.suppress(InputError):  # for example a label without a class
        cclfp.run("finetune", name, seeds=1, tasks=3, backbone="mlp:width=8", engine="eager", store=home / "r.sqlite")
    return attempt(case, path, False, use_cached, (name, expected))


def use_cached(case: Case, path: Path, is_forged: bool) -> tuple[str, str]:
    name = path.parents[1].name
    verify(name)
    return dataset_path(name).name, dataset_checksum(name)


def run_image(case: Case) -> Verdict:
    """Only PNG files have checksums. A damaged image of another format may be read as a different image."""
    own_home(case)
    photos = case.folder / "photos"
    shutil.copytree(case.material / "photos", photos)
    path = case.random.choice(sorted(photos.rglob("*.*")))
    _, content = damage_or_forge(case, None, path.read_bytes())
    path.write_bytes(content)
    is_checked = path.suffix == ".png"
    expected = (case.material / "expected").read_text()
    return attempt(case, photos, not is_checked, lambda *_: dataset_checksum(import_images(photos, size=8)), expected)


def prepare_images(material: Path) -> None:
    put_images(material)
    os.environ["CCLFP_HOME"] = str(material / "home")
    (material / "expected").write_text(dataset_checksum(import_images(material / "photos", size=8)))


def _kind(name: str, run: Callable[[Case], Verdict], prepare: Callable[[Path], None] | None, **more: Any) -> Kind:
    return Kind("files", name, run, prepare, **{"batch": 50, "minimum": 400, "quick": 40, "limit": 60, **more})


KINDS = [
    _kind("learner files", run_learner, prepare_learners, share=2, minimum=1200),
    _kind("checkpoints", run_checkpoint, prepare_checkpoints, share=3, minimum=300, batch=20, quick=8),
    _kind("run records", run_record, None, share=2, minimum=1000),
    _kind("stores", run_store, prepare_stores, share=1, minimum=400, quick=20),
    _kind("presets", run_presets, None, share=0.3),
    _kind("npz files", run_npz, prepare_arrays, share=0.5),
    _kind("stored arrays", run_cached, prepare_arrays, share=0.7, minimum=200, batch=20, quick=15),
    _kind("images", run_image, prepare_images, share=1, minimum=150, batch=20, quick=8),
]
