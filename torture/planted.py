"""Code planted in data files. None of it may run; if it does, it creates a marker file."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cclfp
from cclfp.data import load_dataset
from cclfp.data.images import import_images
from cclfp.errors import InputError, RunError
from cclfp.runs.checkpoints import FORMAT, checkpoint_path
from cclfp.runs.configuration import USUAL, Configuration
from cclfp.runs.settings import read_presets
from cclfp.runs.store import Store, import_runs
from torture.campaign import Case, Fault, Kind, Verdict
from torture.damage import SCRIPT
from torture.files import CLASSES, INPUTS, call, job_in, own_home, train
from torture.material import put_arrays, put_images, put_mnist, record_lines


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def _module(case: Case) -> Path:
    """A Python file that creates the marker when it is run."""
    path = case.folder / "evil.py"
    text = f"import pathlib\npathlib.Path({str(case.folder / 'marker')!r}).touch()\nclass Evil: pass\n"
    path.write_text(text)
    return path


def _pickles(case: Case, form: str, state: dict[str, Any]) -> bytes:
    """A pickle with a planted object, in one of the forms that torch.load reads."""
    value = {**state, case.random.choice(["psi", "planted"]): Touch(case.folder / "marker")}
    buffer = io.BytesIO()
    if form == "plain":
        return pickle.dumps(value)
    if form == "torch":
        torch.save(value, buffer)
    elif form == "legacy":
        torch.save(value, buffer, _use_new_zipfile_serialization=False)
    else:  # replace the pickle in a valid archive
        torch.save(state, buffer)
        with zipfile.ZipFile(buffer) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, pickle.dumps(value) if name.endswith("data.pkl") else content)
    return buffer.getvalue()


def learner(case: Case, form: str) -> None:
    path = case.folder / "learner.ckpt"
    made = cclfp.make("er", psi=cclfp.nets.MLP(INPUTS, (4,)), num_classes=CLASSES)
    made.observe(torch.randn(4, INPUTS), torch.arange(4))
    made.save(path)
    path.write_bytes(_pickles(case, form, torch.load(path, weights_only=True)))
    cclfp.load(path)


def named_learner(case: Case, field: str) -> None:
    """A learner file that names a Python file as its method, backbone or transform."""
    path = case.folder / "learner.ckpt"
    cclfp.make("er", psi=cclfp.nets.MLP(INPUTS, (4,)), num_classes=CLASSES).save(path)
    reference = f"{_module(case)}:Evil"
    state = torch.load(path, weights_only=True)
    torch.save({**state, field: reference if field == "method" else {"name": reference}}, path)
    cclfp.load(path)


def checkpoint(case: Case, form: str) -> None:
    put_mnist(case.folder)
    own_home(case.folder)
    job = job_in(case.folder)
    path = checkpoint_path(job)
    path.parent.mkdir()
    path.write_bytes(_pickles(case, form, {"format": FORMAT}))
    train(job)


def npz(case: Case, form: str) -> None:
    own_home(case.folder)
    put_arrays(case.folder)
    path = case.folder / "pets.npz"
    with np.load(path) as file:
        arrays = dict(file)
    planted = np.array([Touch(case.folder / "marker")] * len(arrays["train_labels"]), dtype=object)
    if form == "array":
        np.savez(path, allow_pickle=True, **{**arrays, "train_labels": planted})
    else:
        path.write_bytes(pickle.dumps(planted))
    import_images(path)


def stored_array(case: Case, form: str) -> None:
    home = own_home(case.folder)
    put_arrays(case.folder)
    name = import_images(case.folder / "pets.npz")
    planted = np.array([Touch(case.folder / "marker")] * 30, dtype=object)
    np.save(home / "data" / name / "arrays" / "train_labels.npy", planted, allow_pickle=True)
    load_dataset(name)


def preset(case: Case, form: str) -> None:
    path = case.folder / "presets.json"
    values = {"benchmark": "split-mnist", "scenario": "class", "hyperparameters": {}, "augment": False, "chosen": ""}
    path.write_text(json.dumps([{"method": f"{_module(case)}:Evil", **values}]))
    read_presets(path)


def record(case: Case, field: str) -> None:
    """A record that names a Python file, with a valid checksum, as its method or backbone."""
    module = _module(case)
    checksum = hashlib.sha256(module.read_bytes()).hexdigest()
    reference = {"file": str(module), "object": "Evil", "sha256": checksum}
    _import(case, lambda values: values["configuration"].update({field: reference}))
    call("runs", "--store", case.folder / "runs.sqlite")
    call("report", "--out", case.folder / "report", "--store", case.folder / "runs.sqlite")


def page(case: Case, form: str) -> None:
    """HTML in the texts of a record, which the report must escape."""
    texts = ("device_name", "platform", "commit", "cclfp", "torch", "source")
    _import(case, lambda values: values["environment"].update(dict.fromkeys(texts, f"{SCRIPT}'\"{SCRIPT}")))
    call("report", "--out", case.folder / "report", "--store", case.folder / "runs.sqlite")
    for path in (case.folder / "report").rglob("*.[hs][tv][mg]*"):
        if SCRIPT in path.read_text(encoding="utf-8"):
            raise Fault(Verdict.EXECUTED, f"{path.name} has the planted script unescaped")


def _import(case: Case, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(record_lines()[0])
    change(values)
    values["key"] = Configuration.from_dict({**USUAL, **values["configuration"]}).key(values["seed"])
    path = case.folder / "records.jsonl"
    path.write_text(json.dumps(values) + "\n")
    import_runs([path], Store(case.folder / "runs.sqlite"))


def postscript(case: Case, suffix: str) -> None:
    """PostScript with the name of an image: Pillow could start Ghostscript, here a program that creates the marker."""
    own_home(case.folder)
    put_images(case.folder)
    program = case.folder / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {case.folder / 'marker'}\n")
    program.chmod(0o755)
    os.environ["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    (case.folder / "photos" / "ant" / f"0.{suffix}").write_bytes(content)
    import_images(case.folder / "photos", size=8)


FORMS = ("plain", "torch", "legacy", "replaced")
PLANTS: list[tuple[str, Callable[[Case, str], None], str]] = [
    *(("pickle in a learner file", learner, form) for form in FORMS),
    *(("pickle in a checkpoint", checkpoint, form) for form in FORMS),
    *(
        ("Python file named by a learner file", named_learner, f)
        for f in ("method", "backbone", "transform", "augment")
    ),
    *(("pickle in an npz", npz, form) for form in ("array", "plain")),
    ("pickle in a stored array", stored_array, ""),
    ("Python file named by presets", preset, ""),
    *(("Python file named by a record", record, field) for field in ("method_file", "backbone")),
    ("HTML in a record", page, ""),
    *(("PostScript as an image", postscript, suffix) for suffix in ("png", "jpg", "gif", "bmp", "tif")),
]


def run(case: Case) -> Verdict:
    name, plant, form = PLANTS[case.number % len(PLANTS)]
    case.tries[name] += 1
    verdict = Verdict.SURVIVED
    try:
        plant(case, form)
    except (InputError, RunError):
        verdict = Verdict.REFUSED
    if (case.folder / "marker").exists():
        raise Fault(Verdict.EXECUTED, f"{name} ({form}) was executed")
    return verdict


KINDS = [
    Kind(
        "planted",
        "code in data",
        run,
        share=0.5,
        minimum=len(PLANTS),
        quick=len(PLANTS),
        most=3 * len(PLANTS),
        batch=10,
    )
]
