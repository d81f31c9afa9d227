"""Hostile files, many per process. Each must be refused with a clean message, or give what the original gives.

A *damaged* file must not give a different result. A *forged* file (changed values, with valid checksums) must be
refused or remain usable: whatever is done with it next ends in a result or a clean message.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

import cclfp
from cclfp.cli import main
from cclfp.data import load_dataset, verify
from cclfp.data.images import import_images
from cclfp.errors import InputError, RunError
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
from torture.damage import damage_bytes, forge_value
from torture.material import copy, put_arrays, put_images, put_mnist, put_store, record_lines

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
WITHOUT_CHECKSUMS = (".jpg", ".gif", ".bmp", ".tif")  # a damaged image may be read as a different one
PROTECTED = ("method", "benchmark", "scenario", "buffer", "seed", "configuration", *RESULT[:-1])


Forge = Callable[[Random, Path], tuple[str, bytes]]  # the kind of change, and the new content
Use = Callable[[Path, Path, Path], Any]  # uses a file, given a folder and the material; gives what it has read there


def prepare(write: Callable[[Path], None], use: Use, material: Path) -> None:
    """Write the material and the files to damage, which lie in its folder "originals", and use each of them."""
    (material / "originals").mkdir()
    write(material)
    expected = {}
    for path in sorted((material / "originals").iterdir()):
        place = material / f"used {path.name}"
        place.mkdir()
        expected[path.name] = use(place, material, path)
    (material / "expected.json").write_text(json.dumps(expected))


def run(use: Use, forge: Forge | None, case: Case) -> Verdict:
    """Use a damaged or forged file."""
    original = case.random.choice(sorted((case.material / "originals").iterdir()))
    is_forged = forge is not None and case.random.random() < 0.4
    change = forge if forge is not None and is_forged else damage_bytes
    what, content = change(case.random, original)
    case.tries[what] += 1
    path = case.folder / original.name
    path.write_bytes(content)
    try:
        found = json.loads(json.dumps(use(case.folder, case.material, path)))
    except (InputError, RunError):
        return Verdict.REFUSED
    expected = json.loads((case.material / "expected.json").read_text())[original.name]
    if found != expected and not is_forged and path.suffix not in WITHOUT_CHECKSUMS:
        raise Fault(Verdict.WRONG, f"{path.name}: {str(found)[:300]}, not {str(expected)[:300]}")
    return Verdict.SURVIVED


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


def write_learners(material: Path) -> None:
    for method in METHODS:
        learner = cclfp.make(
            method, psi=MLP(INPUTS, (8, 8)), num_classes=CLASSES, memory=12, tasks=[[0, 1], [2, 3], [4, 5]]
        )
        for task in range(2):
            for step in range(4):
                learner.observe(*batch(task, step), task=task)
            learner.end_task()
        learner.observe(*batch(2, 0), task=2)
        learner.save(material / "originals" / f"{method}.ckpt")


def batch(task: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(100 * task + step)
    return torch.randn(6, INPUTS, generator=g), torch.tensor([2 * task, 2 * task + 1] * 3)


def use_learner(folder: Path, material: Path, path: Path) -> str:
    """Load a learner and continue training."""
    learner = cclfp.load(path)
    state = digest(learner_state(learner))
    x, y = batch(2, 1)
    for _ in range(2):
        predicted = learner.predict(x)
        if not set(predicted.tolist()) <= set(range(CLASSES)):
            raise Fault(Verdict.WRONG, f"predicted {predicted.tolist()} of {CLASSES} classes")
        learner.observe(x, y, task=2)
    learner.end_task()
    learner.save(folder / "again.ckpt")
    cclfp.load(folder / "again.ckpt").predict(x)
    return state


# -- checkpoints ----------------------------------------------------------------------------------------------------


class Stop(Exception):
    """Simulates a SIGKILL."""


def job_in(folder: Path) -> Job:
    (configuration,) = configurations(["er"], "split-mnist", memory=20, backbone="mlp:width=8")
    return Job(configuration, 0, Execution("cpu", "eager", store=folder / "runs.sqlite", checkpoint_every=0.0))


def train(job: Job, on_event: OnEvent = ignore) -> list[Any]:
    """Train one run in this process, and give its result."""
    record = dict(run_jobs([job], on_event, Pool())[job.key])
    return [record[name] for name in RESULT]


def write_checkpoints(material: Path) -> None:
    put_mnist(material)
    os.environ["CCLFP_HOME"] = str(material / "home")

    def stop(event: Event) -> None:
        if isinstance(event, Step) and event.task > 3:
            raise Stop

    job = job_in(material)
    with contextlib.suppress(Stop):
        train(job, stop)
    checkpoint_path(job).rename(material / "originals" / "run.ckpt")


def use_checkpoint(folder: Path, material: Path, path: Path) -> list[Any]:
    os.environ["CCLFP_HOME"] = str(material / "home")
    job = job_in(folder)
    checkpoint_path(job).parent.mkdir()
    checkpoint_path(job).write_bytes(path.read_bytes())
    return train(job)


# -- run records and stores -----------------------------------------------------------------------------------------


def write_records(material: Path) -> None:
    for number, line in enumerate(record_lines()[::10]):
        (material / "originals" / f"{number}.jsonl").write_text(line, encoding="utf-8")


def use_records(folder: Path, material: Path, path: Path) -> list[Any]:
    """Import a file of records, or a store.

    No check covers a run's times, its environment and the inner accuracies of its matrix.
    """
    store = Store(folder / "runs.sqlite")
    import_runs([path], store)
    call("runs", "--store", store.path)
    call("runs", "--json", "--store", store.path)
    call("runs", "export", folder / "again.jsonl", "--store", store.path)
    return [_protected(dict(record)) for record in store.records()]


def forge_json(random: Random, original: Path) -> tuple[str, bytes]:
    if random.random() < 0.05:
        return "odd text", random.choice(ODD_TEXTS)
    how, value = forge_value(random, json.loads(original.read_bytes()))
    return how, json.dumps(value).encode()


def _protected(record: dict[str, Any]) -> list[Any]:
    """The values of a record that its key and its accuracies protect, rounded to five digits."""
    values = [record[name] for name in PROTECTED]
    return [round(value, 5) if isinstance(value, float) else value for value in values]


def write_stores(material: Path) -> None:
    put_store(material / "place", step=60)
    (material / "place" / "runs.sqlite").rename(material / "originals" / "stored.sqlite")


def use_store(folder: Path, material: Path, path: Path) -> list[Any]:
    found = [_protected(dict(record)) for record in Store(path).records()]
    call("runs", "--store", path)
    call("runs", "export", folder / "again.jsonl", "--store", path)
    return found


def write_presets_file(material: Path) -> None:
    several = json.loads(Path(cclfp.runs.settings.__file__).with_name("presets.json").read_bytes())[:8]
    (material / "originals" / "presets.json").write_text(json.dumps(several))


def use_presets(folder: Path, material: Path, path: Path) -> None:
    """Presets are text that users edit: accepted presets must have values that the methods accept."""
    found = read_presets(path)
    again = folder / "again.json"
    write_presets(with_preset(found, found[0]) if found else [], again)
    if read_presets(again) != found:
        raise Fault(Verdict.WRONG, "presets differ after they were written and read again")


# -- images and arrays ----------------------------------------------------------------------------------------------


def own_home(folder: Path) -> Path:
    """Use a CCLFP_HOME in this folder."""
    os.environ["CCLFP_HOME"] = str(folder / "home")
    return folder / "home"


def dataset_checksum(name: str) -> str:
    """A checksum of a dataset."""
    data = load_dataset(name)
    arrays = (data.train_images, data.train_labels, data.test_images, data.test_labels)
    return digest([*(torch.as_tensor(np.array(array)) for array in arrays), list(data.classes)])


def write_npz(material: Path) -> None:
    put_arrays(material / "originals")


def use_npz(folder: Path, material: Path, path: Path) -> str:
    own_home(folder)
    return dataset_checksum(import_images(path))


def forge_npz(random: Random, path: Path) -> tuple[str, bytes]:
    """A file in which one array has another header or content, with valid checksums."""
    with np.load(path) as arrays:
        members = {name: _npy(arrays[name]) for name in arrays.files}
    name = random.choice(list(members))
    header, body = members[name][:128], members[name][128:]
    shape, dtype = "(30, 6, 6)", "|u1"
    dtypes, others = (
        ["|V1000000000", "|O", "<f8", "<U9", "x"],
        [np.zeros((2, 2)), np.array("x"), np.zeros((3, 0), "u1")],
    )
    forgeries: dict[str, Callable[[], bytes]] = {
        "huge shape": lambda: _header(f"({10 ** random.randint(6, 30)}, 6, 6)", dtype) + body,
        "negative shape": lambda: _header("(-1, 6, 6)", dtype) + body,
        "odd dtype": lambda: _header(shape, random.choice(dtypes)) + body,
        "deep header": lambda: _header("(" * 5000, dtype) + body,
        "no header": lambda: body,
        "short content": lambda: header + body[: len(body) // 2],
        "another array": lambda: _npy(random.choice(others)),
        "text": lambda: b"ant,bee,cat\n" * 20,
    }
    how = random.choice(list(forgeries))
    members[name] = forgeries[how]()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
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


def write_arrays(material: Path) -> None:
    put_arrays(material)
    name = import_images(own_home(material).parent / "pets.npz")
    for path in (material / "home" / "data" / name / "arrays").iterdir():
        (material / "originals" / path.name).write_bytes(path.read_bytes())


def use_arrays(folder: Path, material: Path, path: Path) -> str:
    """Stored arrays: a run does not crash, and cclfp data verify finds every change."""
    home = copy(material / "home", own_home(folder))
    (arrays,) = (home / "data").glob("*/arrays")
    name = arrays.parent.name
    (arrays / path.name).write_bytes(path.read_bytes())
    with contextlib.suppress(InputError):  # for example a label without a class
        cclfp.run("finetune", name, seeds=1, tasks=3, backbone="mlp:width=8", engine="eager", store=home / "r.sqlite")
    verify(name)
    return dataset_checksum(name)


def write_images(material: Path) -> None:
    put_images(material)
    for path in (material / "photos").rglob("*.*"):
        (material / "originals" / f"{path.parent.name}-{path.name}").write_bytes(path.read_bytes())


def use_image(folder: Path, material: Path, path: Path) -> str:
    own_home(folder)
    photos = copy(material / "photos", folder / "photos")
    (photos / path.name.replace("-", "/")).write_bytes(path.read_bytes())
    return dataset_checksum(import_images(photos, size=8))


FILES: dict[str, tuple[Callable[[Path], None], Use, Forge | None, dict[str, Any]]] = {
    "learner files": (write_learners, use_learner, None, {"share": 2, "minimum": 1200}),
    "checkpoints": (write_checkpoints, use_checkpoint, None, {"share": 3, "minimum": 300, "batch": 20, "quick": 8}),
    "run records": (write_records, use_records, forge_json, {"share": 2, "minimum": 1000}),
    "stores": (write_stores, use_store, None, {"quick": 20}),
    "presets": (write_presets_file, use_presets, forge_json, {"share": 0.3}),
    "npz files": (write_npz, use_npz, forge_npz, {"share": 0.5}),
    "stored arrays": (write_arrays, use_arrays, None, {"share": 0.7, "minimum": 200, "batch": 20, "quick": 15}),
    "images": (write_images, use_image, None, {"minimum": 150, "batch": 20, "quick": 8}),
}
KINDS = [
    Kind(
        "files",
        name,
        functools.partial(run, use, forge),
        functools.partial(prepare, write, use),
        **{"batch": 50, "minimum": 400, "quick": 40, "limit": 60, **more},
    )
    for name, (write, use, forge, more) in FILES.items()
]
