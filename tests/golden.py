"""The golden corpus: proves that a change of the code changed nothing that a user, a file or a number can show.

    python tests/golden.py write DIR                # at the reference: all values, and files for others to read
    python tests/golden.py compare DIR              # at the changed code: each difference; exit code 1 if any
    python tests/golden.py compare DIR --only keys,commands --allow 'help/*'
    python tests/golden.py compare DIR --with DIR2  # two folders that were written: nothing is run

Sections: records, keys, commands, report, formats. A section has parts, each a process of its own, two at a time. A
part writes DIR/PART.json: the name of each value, and its text. Files that the reference wrote (learners, a store, JSON
Lines, presets, searches) are in DIR/artefacts: whatever code is compared reads them. A tensor is shown as its type,
shape, checksum and norm, so that one sees whether a difference is rounding. Floats are written out in full.

This file imports what is public, and little else: ``find`` has the names of what may move.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import difflib
import fnmatch
import hashlib
import importlib
import io
import json
import os
import queue
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).parents[1]
# Parts of the slowest first. "artefacts" is made once, by the reference, before all others.
SECTIONS = {
    "records": ("compiled", "domain", "class", "task", "others", "observe", "stacked"),
    "commands": ("answers", "refusals", "help"),
    "report": ("report",),
    "formats": ("formats",),
    "keys": ("keys",),
}
ENVIRONMENT = {
    **{"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
    **{"COLUMNS": "80", "LINES": "40", "TERM": "dumb", "NO_COLOR": "1", "LC_ALL": "C.UTF-8", "TZ": "UTC"},
    **{"PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore"},
}
DROPPED = ("CCLFP_HOME", "RAY_ADDRESS", "FORCE_COLOR", "PYTHONSTARTUP", "TORCHINDUCTOR_CACHE_DIR")
TIMES = ("seconds", "train_seconds", "test_seconds", "finished_at", "environment")  # fields that vary between two runs
BENCHMARKS = (
    "split-mnist",
    "permuted-mnist",
    "rotated-mnist",
    "split-cifar10",
    "split-cifar100",
    "split-tiny-imagenet",
)
PROCESSES = 2
MOST_SHOWN, MOST_VALUES = 40, 20  # lines of a text's difference; values of a part whose difference is shown
FIXED = {"engine": "eager", "precision": "float32", "threads": 1, "together": 1, "device": "cpu", "cclfp": "0.1.0"}
FIXED |= {"torch": "2.0", "source": "0123456789abcdef", "commit": "0" * 40, "device_name": "One", "platform": "Linux"}
HALF = '''
import dataclasses
from cclfp.methods import Hyperparameters, setting
from cclfp.methods.er import ER

@dataclasses.dataclass(frozen=True)
class HalfHyper(Hyperparameters):
    """Hyperparameters."""
    half: float = setting(0.5, "does nothing", low=0, high=1, search=(0.25, 0.5))

class Half(ER):
    """ER by another name."""
    name = "half"
    Hyper = HalfHyper
'''
NET = "from cclfp.nets import MLP\n\ndef make(shape):\n    return MLP(shape[0] * shape[1] * shape[2])\n"


class Stop(Exception):
    """Stops a run from one of its events."""


def find(*places: str) -> Any:
    """The first that exists of some places, ``module`` or ``module:name``. Add the new place of what has moved."""
    for place in places:
        module, _, name = place.partition(":")
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(module), name) if name else importlib.import_module(module)
    raise ImportError(f"none of {', '.join(places)}: where is it now? Add the place in tests/golden.py")


# -- values as texts ---------------------------------------------------------------------------------------------------


def show(value: Any) -> Any:
    """A value as JSON that is the same for the same value: mappings sorted, arrays as checksums, floats in full."""
    import torch

    if isinstance(value, torch.Tensor):
        t = value.detach().cpu().contiguous()
        checksum = hashlib.sha256(t.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
        norm = float(t[t.isfinite()].double().norm())
        return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)} {checksum} norm {norm:.9g}"
    if isinstance(value, Mapping):
        return {str(name): show(part) for name, part in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, list | tuple | torch.Size):
        return [show(part) for part in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


class Values:
    """The values of a part: their names, and texts."""

    def __init__(self, part: str) -> None:
        self.part, self.texts, self.errors = part, dict[str, str](), 0

    def add(self, name: str, value: Any) -> None:
        text = value if isinstance(value, str) else json.dumps(show(value), indent=1, ensure_ascii=False)
        here, code = str(Path.cwd().parent), str(REPOSITORY)
        # As long as what it replaces, since texts may be wrapped.
        self.texts[name] = text.replace(here, "#" * len(here)).replace(code, "REPOSITORY")

    @contextlib.contextmanager
    def trying(self, name: str) -> Iterator[None]:
        """An error is a value, so that the others are compared nevertheless."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self.errors += 1
            self.add(f"{name}/ERROR", f"{type(error).__name__}: {error}")
            print(f"{self.part}/{name}: {type(error).__name__}: {error}", file=sys.stderr)


# -- what there is to work with, in the current folder -----------------------------------------------------------------


def write_dataset(name: str, classes: int, shape: tuple[int, int, int], train: int, test: int) -> None:
    """A small dataset in the place of a published one, as tests/conftest.py has it."""
    rng = np.random.default_rng(0)
    prototypes = rng.integers(0, 256, (classes, *shape))
    folder = Path(os.environ["CCLFP_HOME"], "data", name, "arrays")
    folder.mkdir(parents=True)
    for part, size in (("train", train), ("test", test)):
        labels = np.arange(size) % classes
        noise = rng.integers(0, 256, (size, *shape))
        np.save(folder / f"{part}_images.npy", ((prototypes[labels] + noise) // 2).astype(np.uint8))
        np.save(folder / f"{part}_labels.npy", labels.astype(np.uint8))


def write_datasets(mnist: int = 1500) -> None:
    write_dataset("mnist", 10, (1, 28, 28), mnist, 200)
    write_dataset("cifar10", 10, (3, 32, 32), 100, 50)
    write_dataset("cifar100", 100, (3, 32, 32), 300, 100)
    write_dataset("tiny-imagenet", 200, (3, 64, 64), 400, 200)


def write_own() -> str:
    """Images and code of a user; returns the name of the images as a benchmark."""
    from PIL import Image

    cclfp = find("cclfp")

    rng = np.random.default_rng(0)
    names, arrays = np.array(["cat", "dog", "fish", "owl"]), dict[str, Any]()
    for part, count in (("train", 40), ("test", 10)):
        labels = np.repeat(np.arange(4), count)
        images = rng.integers(0, 60, (len(labels), 8, 8)) + 120 * (np.arange(8) // 2 == labels[:, None])[:, :, None]
        arrays |= {f"{part}_images": images.astype(np.uint8), f"{part}_labels": names[labels]}
    np.savez("pets.npz", **arrays)
    for c, name in enumerate(("cat", "dog", "yak")):
        Path("photos", name).mkdir(parents=True)
        for i, suffix in enumerate(("png", "bmp", "gif", "png", "tif", "png")):
            pixels = ((80 * c + rng.integers(0, 80, (12, 12, 3))) % 256).astype(np.uint8)
            Image.fromarray(pixels).save(Path("photos", name, f"{i}.{suffix}"))
    Path("half.py").write_text(HALF)
    Path("net.py").write_text(NET)
    return str(cclfp.data.import_images("pets.npz"))


def write_bad(artefacts: Path) -> None:
    """Files that are refused."""
    Path("broken.py").write_text("def (:\n")
    Path("raises.py").write_text("raise ValueError('no')\n")
    Path("other.py").write_text("Half = 3\n\ndef make(shape):\n    return shape\n")
    Path("empty.jsonl").write_text("")
    Path("text.txt").write_text("hello\n")
    Path("text.npz").write_text("hello\n")
    np.savez("few.npz", train_images=np.zeros((4, 2, 2), np.uint8))
    images, labels = np.zeros((4, 2, 2), np.uint8), np.zeros(4, np.uint8)
    np.savez("one.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    Path("spoilt").mkdir()
    shutil.copytree("photos", "spoilt", dirs_exist_ok=True)
    Path("spoilt/cat/0.png").write_bytes(b"no image")
    Path("none").mkdir()
    learner = (artefacts / "learners" / "er-class.ckpt").read_bytes()
    Path("cut.ckpt").write_bytes(learner[: len(learner) // 2])
    Path("flipped.ckpt").write_bytes(learner[:2000] + bytes([learner[2000] ^ 1]) + learner[2001:])
    Path("noise.sqlite").write_bytes(b"SQLite format 3\0" + bytes(200))
    line = (artefacts / "own.jsonl").read_text().splitlines()[0]
    record, number = json.loads(line), 0
    changes: list[dict[str, Any]] = [{"key": "0" * 64}, {"seed": -1}, {"seed": 77}, {"average_accuracy": 1.0}]
    changes += [{"accuracy_matrix": []}, {"accuracy_matrix": [[101.0]]}, {"strange": 1}, {"seconds": -1}, {"buffer": 3}]
    changes += [{"finished_at": "today"}, {"environment": {"engine": "steam"}}, {"confusion": [[1]]}, {"diverged": 99}]
    for name, value in (("method", "er2"), ("benchmark", "x"), ("scenario", "y"), ("buffer", 0), ("batch", 0)):
        changes += [{"configuration": {**record["configuration"], name: value}}]
    for number, change in enumerate(changes):
        Path(f"bad{number:02}.jsonl").write_text(json.dumps({**record, **change}) + "\n")
    for name in ("method", "configuration", "train_seconds"):
        Path(f"lacks-{name}.jsonl").write_text(json.dumps({n: v for n, v in record.items() if n != name}) + "\n")
    Path("nan.jsonl").write_text(line.replace(str(record["average_accuracy"]), "NaN", 1) + "\n")
    Path("differs.jsonl").write_text(line + "\n" + json.dumps({**record, "finished_at": "2020-01-01T00:00:00+00:00"}))
    for number, text in enumerate(("{}", "[1]", '[{"method": "er"}]', "nonsense")):
        Path(f"presets{number}.json").write_text(text)


class Screen(io.TextIOWrapper):
    """What a command writes to, in UTF-8; a terminal or none."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), "utf-8")
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    def text(self) -> str:
        self.flush()
        return str(self.buffer.getvalue().decode())  # type: ignore[attr-defined]


def call(line: str, columns: int = 80, terminal: bool = False) -> str:
    """What ``cclfp LINE`` prints, and its exit code; called in this process."""
    main = find("cclfp.cli:main")

    out, err, code = Screen(terminal), Screen(False), 0
    os.environ.update(COLUMNS=str(columns), TERM="xterm" if terminal else "dumb")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    sys.argv = ["cclfp", *shlex.split(line)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return f"exit code {code}\n--- stdout\n{out.text()}--- stderr\n{err.text()}"


def without_times(text: str) -> str:
    """The output of a command that trained, without what varies: seconds, and lines that come every ten of them."""
    text = re.sub(r'"((?:train_|test_)?seconds)": (\{[^}]*\}|[\d.e-]+)', r'"\1": TIME', text)
    text = re.sub(r"^.*(: task \d+/\d+,? step |, \d+%$|/s, \d+ s left$).*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\d+(\.\d+)? s\b", "TIME s", text)
    return re.sub(r" +\d+\.\d+ │$", " TIME │", text, flags=re.MULTILINE)


# -- records: what is trained ------------------------------------------------------------------------------------------


def options(**more: Any) -> dict[str, Any]:
    """How runs are trained, unless ``more`` says otherwise."""
    return {"seeds": 1, "engine": "eager", "device": "cpu", "checkpoint_every": 0.0, **more}


def record_values(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in TIMES}


def learner_values(learner: Any, x: Any, task: int | None = None) -> dict[str, Any]:
    """All that a learner knows, and what it predicts."""
    inner = getattr(learner, "trainer", learner)  # until 4fb7fee; the learner itself where it has no trainer
    f, memory = learner.f, learner.memory
    return {
        "psi": learner.psi.state_dict(),
        "f": None if f is None else f.state_dict(),
        "state": inner.state,
        "memory": None if memory is None else list(memory.examples()),
        "counts": [learner.steps, learner.tasks_done, learner.num_classes, learner.seed],
        "about": [repr(learner), learner.classes, dataclasses.asdict(learner.hyper)],
        "logits": learner.logits(x, task),
        "features": learner.features(x),
        "module": learner.as_module(task)(x),
    }


def file_values(path: Path) -> dict[str, Any]:
    """What a learner's file holds, by its names."""
    import torch

    return {name: value for name, value in torch.load(path, weights_only=True).items() if name != "cclfp"}


def add_all(values: Values, name: str, several: Mapping[str, Any]) -> None:
    for part, value in several.items():
        values.add(f"{name}/{part}", value)


def scenario_part(values: Values) -> None:
    """Each method in one scenario: a run, its learner's file, and the same stopped in its third task and continued."""
    import torch

    cclfp = find("cclfp")
    METHODS = find("cclfp.methods:METHODS")
    Step = find("cclfp.runs.events:Step")

    scenario = values.part
    write_datasets(300 if scenario == "domain" else 1500)
    benchmark = "rotated-mnist" if scenario == "domain" else "split-mnist"
    x = torch.randint(0, 256, (6, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    for method, kind in METHODS.items():
        if scenario not in kind.scenarios():
            continue
        with values.trying(method):
            where = {"scenario": scenario, **options(store="whole.sqlite", save="whole")}
            (result,) = cclfp.run(method, benchmark, **where)
            whole = record_values(result.runs[0])
            add_all(values, f"{method}/record", whole)
            values.add(f"{method}/result", {n: v for n, v in result.to_dict().items() if n not in ("seconds", "runs")})
            (file,) = Path("whole").glob(f"{method}_*")
            values.add(f"{method}/name of the file", file.name)
            add_all(values, f"{method}/file", file_values(file))
            learner = cclfp.load(file)
            add_all(values, f"{method}/learner", learner_values(learner, x, 1 if scenario == "task" else None))
            seen: list[Any] = []

            def stop(event: Any, seen: list[Any] = seen) -> None:
                seen += [event] if isinstance(event, Step) else []
                if seen and seen[-1].task == 3:
                    raise Stop

            def listen(event: Any, seen: list[Any] = seen) -> None:
                seen += [event] if isinstance(event, Step) else []

            where |= options(store="stopped.sqlite", save="stopped")
            with contextlib.suppress(Stop):
                cclfp.run(method, benchmark, on_event=stop, **where)
            values.add(f"{method}/stopped", repr(seen[-1:]))
            seen.clear()
            (result,) = cclfp.run(method, benchmark, on_event=listen, **where)
            values.add(f"{method}/continued", repr(seen[:1]))
            values.add(f"{method}/continued record equal", record_values(result.runs[0]) == whole)
            continued = file_values(Path("stopped", file.name))
            values.add(f"{method}/continued file equal", show(continued) == show(file_values(file)))


def others_part(values: Values) -> None:
    """Other benchmarks, backbones, settings, own images and methods; and runs in several processes."""
    cclfp = find("cclfp")

    write_datasets(300)
    own = write_own()
    small = {"backbone": "resnet18:width=8", "memory": 20}
    runs: list[tuple[str, str, dict[str, Any]]] = [
        *((method, "split-cifar10", small) for method in ("er", "ccl-fp+", "gem", "hal", "icarl", "si")),
        ("er", "split-tiny-imagenet", {**small, "augment": "off"}),
        ("er", "split-cifar100", {**small, "tasks": 10, "scenario": "task", "augment": "on"}),
        ("ccl-fp", "permuted-mnist", {"seeds": [3]}),
        ("a-gem", "split-mnist", {"class_order": "random", "seeds": [1, 2], "batch": 7, "epochs": 2, "reference": 5}),
        ("fdr", "split-mnist", {"class_order": "0,1,2/3,4,5,6/9,8,7", "validation": True, "replay": 4, "memory": 33}),
        ("er", "split-mnist", {"max_classes": 14, "lr": [0.05, 0.1], "seeds": 2}),
        ("finetune", "split-mnist", {"lr": 1e30}),
        ("half.py:Half", own, {"tasks": 2, "backbone": "net.py:make", "memory": 10, "half": 0.25}),
        ("ccl-fp+", own, {"tasks": 2, "memory": 10, "backbone": "mlp"}),
    ]
    for number, (method, benchmark, how) in enumerate(runs):
        with values.trying(f"{method} {benchmark} {number}"):
            folder = f"learners{number}"
            for result in cclfp.run(method, benchmark, **options(**how, store="runs.sqlite", save=folder)):
                for record in result.runs:
                    name = f"{method} {benchmark} {number} {result.configuration.hyperparameters} {record['seed']}"
                    add_all(values, name, record_values(record))
            for file in sorted(Path(folder).iterdir()):
                add_all(values, f"{method} {benchmark} {number} {file.name}", file_values(file))
    with values.trying("in processes"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        for result in cclfp.run(["er", "si"], "split-mnist", **options(seeds=2, store="several.sqlite")):
            for record in result.runs:
                add_all(values, f"in processes {record['method']} {record['seed']}", record_values(record))


def toy_psi(outputs: int = 16) -> Any:
    """A psi with BatchNorm and dropout, the same every time."""
    import torch
    from torch import nn

    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Flatten(), nn.Linear(3 * 6 * 6, outputs), nn.BatchNorm1d(outputs), nn.ReLU(), nn.Dropout(0.1)]
        return nn.Sequential(*layers)


def toy_batches(scenario: str, steps: int = 8) -> list[list[tuple[Any, Any, int]]]:
    """Batches of images for three tasks, of 2 to 13 examples."""
    import torch

    g, tasks = torch.Generator().manual_seed(2), []
    for task in range(3):
        batches = []
        for step in range(steps):
            count = 2 + (7 * step + 5) % 12
            y = torch.randint(0, 6 if scenario == "domain" else 2, (count,), generator=g)
            y = y if scenario == "domain" else y + 2 * task
            x = torch.randint(0, 100, (count, 3, 6, 6), generator=g) + 20 * y.view(-1, 1, 1, 1)
            batches.append((x.to(torch.uint8), y, task))
        tasks.append(batches)
    return tasks


def toy_learner(method: str, scenario: str) -> Any:
    cclfp = find("cclfp")
    CropFlip = find("cclfp.transforms:CropFlip")
    Normalise = find("cclfp.transforms:Normalise")

    tasks = [list(range(6))] * 3 if scenario == "domain" else [[0, 1], [2, 3], [4, 5]]
    look = {"transform": Normalise([0.3] * 3, [0.25] * 3), "augment": CropFlip(1)}
    return cclfp.make(method, psi=toy_psi(), num_classes=6, memory=30, seed=3, scenario=scenario, tasks=tasks, **look)


def toy_loop(method: str, scenario: str, said: list[Any]) -> Any:
    """A learner that was trained online, with refused batches in between and its third task unfinished."""
    learner = toy_learner(method, scenario)
    for position, batches in enumerate(toy_batches(scenario)):
        for step, (x, y, task) in enumerate(batches):
            said.append(learner.observe(x, y, task))
            if step == 3:
                for wrong in (
                    (x, y + 99, task),
                    (x[:, :2], y, task),
                    (x.float() * float("nan"), y, task),
                    (x, y[:0], 0),
                ):
                    try:
                        said.append(learner.observe(*wrong))
                    except ValueError as error:
                        said.append(f"{type(error).__name__}: {error}")
                learner.logits(x, task)
        if position < 2:
            learner.end_task()
    return learner


def each_method() -> Iterator[tuple[str, str]]:
    METHODS = find("cclfp.methods:METHODS")

    yield from ((method, scenario) for method, kind in METHODS.items() for scenario in kind.scenarios())


def go_on(learner: Any, scenario: str) -> list[Any]:
    """What a learner says when it ends its task and is trained further."""
    learner.end_task()
    return [learner.observe(*batch) for batch in toy_batches(scenario, 3)[1]] + [learner.end_task()]


def observe_part(values: Values) -> None:
    """Each method and scenario in a loop of one's own."""
    import torch
    from torch import nn

    cclfp = find("cclfp")

    x = toy_batches("class")[2][1][0]
    for method, scenario in each_method():
        name = f"{method} {scenario}"
        with values.trying(name):
            said: list[Any] = []
            learner = toy_loop(method, scenario, said)
            values.add(f"{name}/said", said)
            add_all(values, f"{name}/learner", learner_values(learner, x, 2))
            values.add(f"{name}/probabilities", [learner.predict_proba(x, 1), learner.predict(x, 0)])
            learner.save(f"{name}.ckpt")
            again = cclfp.load(f"{name}.ckpt", psi=toy_psi())
            add_all(values, f"{name}/file", file_values(Path(f"{name}.ckpt")))
            values.add(f"{name}/goes on", go_on(learner, scenario))
            values.add(f"{name}/loaded goes on", go_on(again, scenario))
            add_all(values, f"{name}/at the end", learner_values(again, x, 2))
    with values.trying("other uses"):
        plain, x = {"psi": nn.Flatten(), "num_classes": 4, "memory": 5}, x.float()
        grown = cclfp.make("er", **plain, classes=["a", "b"], scenario="task")
        said = [grown.observe(x[:2], torch.tensor([0, 1]), grown.add_task(["a", "b"])), grown.add_task(["c", "a"])]
        said += [grown.observe(x[:2], [2, 0], 1), grown.predict(x, 1), grown.classes, repr(grown)]
        for act in (
            lambda: grown.add_task(["d", "e", "f"]),
            lambda: grown.predict(x),
            lambda: cclfp.make("er", **plain, lr=1e38).observe(x.float() * 1e30, [0] * len(x)),
            lambda: cclfp.make("er", **plain).end_task(),
            lambda: cclfp.make("er", **plain).as_module(),
            lambda: cclfp.make("er", **plain, lr=-1),
            lambda: cclfp.make("er", **plain, wd=1),
            lambda: cclfp.make("err", **plain),
            lambda: cclfp.make("gem", **plain, scenario="domains"),
            lambda: cclfp.make("er", **{**plain, "memory": 0}),
        ):
            try:
                said.append(act())
            except ValueError as error:
                said.append(f"{type(error).__name__}: {error}")
        values.add("other uses", said)


def stacked_part(values: Values) -> None:
    """Stacked replicas: on the toy stream of the contract, and of ResNet18 with the kernels' functions in PyTorch."""
    import torch

    cclfp = find("cclfp")
    METHODS = find("cclfp.methods:METHODS")
    ResNet18 = find("cclfp.nets:ResNet18")
    testing = find("cclfp.testing")

    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1)).double()
    for method, scenario in each_method():
        with values.trying(f"{method} {scenario}"):
            case = testing.Case(METHODS[method], scenario, {})
            replicas = [case.replica(seed, testing.stackable_psi()) for seed in (0, 1)]
            values.add(f"{method} {scenario}/notes", testing.train_replicas(replicas, "stacked"))
            for seed, one in enumerate(replicas):
                values.add(f"{method} {scenario}/{seed} accuracies", one.matrix)
                add_all(values, f"{method} {scenario}/{seed}", learner_values(one.learner, x, 1))
    Replica, like = type(replicas[0]), testing.toy_stream("class")
    g = torch.Generator().manual_seed(0)
    y = torch.arange(36) % 6
    images = torch.rand(36, 3, 16, 16, generator=g).double() + y.view(-1, 1, 1, 1) / 6
    rows = [(y // 2 == task).nonzero().flatten() for task in range(3)]
    train = type(like.train)(images, y, y // 2)
    stream = dataclasses.replace(like, train=train, train_rows=rows, test=[train.rows(r) for r in rows], transform=None)
    tasks = {"num_classes": 6, "memory": 12, "tasks": stream.classes, "lr": 0.01}
    with kernels_in_pytorch() as calls:
        for method in ("er", "ccl-fp+", "a-gem", "gem", "si", "lwf", "fdr", "icarl", "hal"):
            with values.trying(f"kernels {method}"):
                calls.clear()
                more = {"steps": 2} if method == "hal" else {}
                replicas = []
                for seed in range(2):
                    psi = ResNet18(width=4, seed=seed).double()
                    replicas.append(Replica(cclfp.make(method, psi=psi, seed=seed, **tasks, **more), stream, batch=10))
                values.add(f"kernels {method}/notes", testing.train_replicas(replicas, "stacked", tasks=2))
                values.add(f"kernels {method}/uses them", bool(calls))
                for seed, one in enumerate(replicas):
                    values.add(f"kernels {method}/{seed} psi", one.learner.psi.state_dict())
                    values.add(f"kernels {method}/{seed} f", one.learner.f.state_dict())


@contextlib.contextmanager
def kernels_in_pytorch() -> Iterator[list[int]]:
    """The kernels' place taken by plain_kernels.py (tests/engine) in float64; yields a list that grows with each use.

    It does what the fixture of tests/nets/test_tangents.py does: where that changes, this has to follow.
    """
    import torch

    sys.path[:0] = [str(REPOSITORY / "tests" / folder) for folder in ("engine", "nets")]  # nets: at the reference
    module = find("cclfp.engine.kernels", "cclfp.nets.stacking.layout")
    plain: Any = importlib.import_module("plain_kernels")
    if module.__name__ == "cclfp.engine.kernels":
        for name in ("convolution", "norm", "others"):
            sys.modules[f"cclfp.engine.kernels.triton_{name}"] = plain
    else:  # at the reference
        plain = plain.kernels
        find("cclfp.nets.stacking").kernels = plain
    Layout, uses = module.Layout, list[int]()
    layout_of, convolve = Layout.of, plain.convolve

    def of(psi: Any, mode: Any, dtype: Any) -> Any:
        layout = layout_of(copy.deepcopy(psi).float(), mode, torch.bfloat16)
        return None if layout is None else dataclasses.replace(layout, dtype=torch.float64)

    def counted(*arguments: Any, **more: Any) -> Any:
        uses.append(1)
        return convolve(*arguments, **more)

    plain.convolve = counted
    module.WIDTH, Layout.of, Layout.takes = 4, of, lambda self, x: True
    yield uses


def compiled_part(values: Values) -> None:
    """Two cohorts that are large enough to be compiled."""
    cclfp = find("cclfp")
    Note = find("cclfp.runs.events:Note")

    write_datasets()
    for method, scenario in (("ccl-fp+", "class"), ("si", "task")):
        with values.trying(f"{method} {scenario}"):
            notes: list[str] = []

            def listen(event: Any, notes: list[str] = notes) -> None:
                notes += [without_times(event.text)] if isinstance(event, Note) else []

            how = options(engine="compiled", seeds=26, store="runs.sqlite", save="learners", on_event=listen)
            (result,) = cclfp.run(method, "split-mnist", scenario=scenario, **how)
            values.add(f"{method} {scenario}/notes", notes)
            values.add(f"{method} {scenario}/engines", sorted({run["environment"]["engine"] for run in result.runs}))
            for run in result.runs:
                values.add(f"{method} {scenario}/{run['seed']}", record_values(run))
            for file in sorted(Path("learners").glob(f"{method}_*"))[:4]:
                add_all(values, f"{method} {scenario}/{file.name}", file_values(file))


# -- keys: what a run is -----------------------------------------------------------------------------------------------


def keys_part(values: Values) -> None:
    """The keys, labels and costs of runs, as the event Planned has them before anything is trained; and presets."""
    cclfp = find("cclfp")
    METHODS = find("cclfp.methods:METHODS")
    Planned = find("cclfp.runs.events:Planned")

    write_datasets()
    own = write_own()

    def planned(name: str, start: Callable[..., Any], *arguments: Any, **how: Any) -> None:
        found: list[Any] = []

        def stop(event: Any) -> None:
            if isinstance(event, Planned):
                found.append(event)
                raise Stop

        with values.trying(name):
            try:
                start(*arguments, **{"store": "none.sqlite", "device": "cpu", **how}, on_event=stop)
            except cclfp.InputError as error:
                values.add(name, str(error))
            except Stop:
                costs = found[0].costs or {}
                values.add(name, [f"{key} {label} {costs.get(key)}" for key, label in found[0].labels.items()])

    for table in ("accuracy", "buffer", "ablation", "all"):
        planned(f"study {table}", cclfp.study, table)
    mine = {"benchmarks": [own, "split-mnist"], "methods": ["er", "half.py:Half", "joint"], "memory": [20, 50]}
    planned("study mine", cclfp.study, "mine", **mine, tasks=2, backbone="mlp")
    benchmarks = [benchmark["name"] for benchmark in json.loads(out_of("list benchmarks --json"))["benchmarks"]]
    for method in (*METHODS, "half.py:Half"):
        for benchmark in benchmarks:
            more = {"tasks": 2} if benchmark == own else {}
            for scenario in ("class", "task", "domain"):
                planned(f"{method} {benchmark} {scenario}", cclfp.run, method, benchmark, scenario=scenario, **more)
    for number, how in enumerate[dict[str, Any]]((
        {"lr": [0.1, 0.2], "w": 0.3, "seeds": [5, 2]}, {"memory": 500, "batch": 1, "replay": 3, "epochs": 4},
        {"tasks": 3}, {"class_order": "random"}, {"class_order": "9,8,7,6,5,4,3,2,1,0"}, {"class_order": "labels"},
        {"class_order": [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9]]}, {"backbone": "mlp"}, {"backbone": "resnet18"},
        {"backbone": "resnet18:width=16"}, {"backbone": "net.py:make"}, {"validation": True}, {"max_classes": 12},
        {"seeds": 20}, {"shard": "2/3", "seeds": 20}, {"settings": {"alpha": [0, 0.5], "beta": 0}},
    )):  # fmt: skip
        planned(f"settings {number}", cclfp.run, ["er", "ccl-fp+", "a-gem"], "split-mnist", **how)
    tiny = "split-tiny-imagenet"
    for benchmark, order in ((tiny, "labels"), (tiny, "wnids"), (own, "owl,cat/dog,fish")):
        planned(f"order {benchmark} {order}", cclfp.run, "gem", benchmark, class_order=order)
    for augment in ("on", "off", ["on", "off"]):
        planned(f"augment {augment}", cclfp.run, ["er", "si"], "split-cifar10", augment=augment)
    (file,) = (REPOSITORY / "src").rglob("presets.json")
    values.add("presets.json", file.read_text("utf-8"))


# -- commands: what is printed -----------------------------------------------------------------------------------------


def out_of(line: str) -> str:
    return call(line).partition("--- stdout\n")[2].partition("--- stderr\n")[0]


def help_part(values: Values) -> None:
    """Every help text, at two widths."""
    todo = [""]
    while todo:
        command = todo.pop(0)
        for columns in (80, 200):
            values.add(f"{command or 'cclfp'} --help at {columns}", call(f"{command} --help", columns))
        inside = call(f"{command} --help").partition("Commands")[2]
        found = re.findall(r"^[│ ] *([a-z-]+)  ", inside, flags=re.MULTILINE)
        todo += [f"{command} {name}".strip() for name in found if not command.endswith(name)]
    for line in ("", "--version", "-h", "runs export -h", "data"):
        values.add(f"cclfp {line}", call(line))


# What is asked, of ``own``, images of the user's, and of the stores paper (results/*.jsonl), tuning and own.
ANSWERS = """
list methods; list benchmarks; list datasets; data list; data path; data path mnist; data path {own}; data fetch mnist
data verify; data verify {own}; show {own}; show {own} --tasks 2 --seed 1 --class-order random; show half.py:Half
show split-mnist --tasks 2; show split-cifar10 --class-order random --seed 3; show split-mnist --images tasks.png
show split-tiny-imagenet --class-order labels; show split-cifar10 --class-order dog,cat/ship,truck,frog/0,1,2,4,7
runs --store own; runs list --store own --method er; runs list --store own --benchmark {own}; runs --store none.sqlite
runs list --store own --method half.py:Half; runs list --store paper --method si --benchmark rotated-mnist
runs check --store own; runs check --store paper; runs export x.jsonl --store own --method ccl-fp+
runs import {artefacts}/own.jsonl --store new.sqlite; runs delete --store copy.sqlite --method joint --yes
runs delete --store copy.sqlite --seed 1 --benchmark split-mnist --yes; runs delete --store copy.sqlite --bad --yes
study all --dry-run --store none.sqlite; study all --dry-run --store paper; study runtime --dry-run --store none.sqlite
study accuracy --benchmark split-mnist,permuted-mnist,rotated-mnist --store paper
study accuracy --benchmark split-mnist --method er,ccl-fp+ --scenario task --seeds 3 --store paper
study buffer --benchmark rotated-mnist --store paper; study ablation --benchmark split-mnist --store paper
study all --method er,si --benchmark split-mnist,rotated-mnist --store paper --shard 1/2 --seeds 2
study accuracy --store paper --benchmark split-cifar10 --method er,joint,finetune --include-diverged
study mine --benchmark {own} --method er,ccl-fp+,joint --tasks 2 --backbone mlp --memory 20 --seeds 3 --store own
study mine --benchmark {own} --method er,half.py:Half --tasks 2 --backbone mlp --memory 20,30 --store own --dry-run
run er,ccl-fp+,joint,finetune split-mnist --store paper; run er,gem rotated-mnist --seeds 0,3 --store paper
run er,ccl-fp+ split-mnist --scenario task --seed 1 --store paper; run er split-mnist --shard 2/3 --store paper
run er,ccl-fp+,half.py:Half,joint --images pets.npz --tasks 2 --backbone mlp --memory 20 --seeds 3 --store own
run er {own} lr=0.03,0.1 --tasks 2 --backbone mlp --memory 20 --seeds 3 --store own
run finetune split-mnist lr=1e30 --seeds 2 --store own
run finetune split-mnist lr=1e30 --seeds 2 --store own --include-diverged
tune ccl-fp split-mnist --scenario task --store tuning; tune er rotated-mnist --store tuning
tune half.py:Half {own} --tasks 2 --backbone mlp --memory 20 --store own
predict own.ckpt photos; predict own.ckpt photos/cat/0.png --csv; predict own.ckpt spoilt --skip-bad
"""
# What trains here: its times are blanked.
LIVE = """
run er,finetune split-mnist --seeds 2 --device cpu --engine eager --store live.sqlite
run er split-mnist --seed 0 --save live --memory 30 --store live.sqlite --max-classes 12 --engine eager
run er,si --images photos --classes cat,dog --tasks 2 --seed 0 --backbone mlp --store live.sqlite --engine eager
tune er split-mnist lr=0.01,0.1 --memory 20 --seeds 1 --store live.sqlite --engine eager
study mine --benchmark split-mnist --method er,lwf --seeds 2 --memory 20 --store live.sqlite --engine eager
study accuracy --benchmark split-mnist --method finetune --scenario class --seeds 2 --store live2.sqlite --engine eager
observe copy.ckpt --images photos --classes cat,dog --batch 3 --epochs 2; data remove {own} --yes
"""


def commands_in(text: str, **names: Any) -> list[str]:
    """The command lines of a text, with the names of stores replaced by their files."""
    lines = [line.strip().format(**names) for line in re.split(r"[;\n]", text) if line.strip()]
    return [re.sub(r"--store (\w+)(?= |$)", r"--store \1.sqlite", line) for line in lines]


def prepare(artefacts: Path, *stores: str) -> dict[str, Any]:
    """All that commands are asked about; the names for ``commands_in``."""
    write_datasets()
    own = write_own()
    write_bad(artefacts)
    for name in stores:
        source = REPOSITORY / "results" / name.replace("paper", "")
        if name == "own":
            shutil.copytree(artefacts / "own", ".", dirs_exist_ok=True)
        else:
            call(f"runs import {shlex.join(map(str, sorted(source.glob('*.jsonl'))))} --store {name}.sqlite")
    shutil.copy(artefacts / "own" / "own.sqlite", "copy.sqlite")
    for name in ("own", "copy"):
        shutil.copy(artefacts / "own.ckpt", f"{name}.ckpt")
    shutil.copytree(artefacts, "artefacts")
    return {"own": own, "artefacts": "artefacts"}


def answers_part(values: Values, artefacts: Path) -> None:
    """Every command with and without --json, and some on a terminal."""
    METHODS = find("cclfp.methods:METHODS")

    names = prepare(artefacts, "own", "paper", "tuning")
    lines = [*(f"show {name}" for name in (*METHODS, *BENCHMARKS)), *commands_in(ANSWERS, **names)]
    for line in lines:
        keeps = shutil.copy("copy.sqlite", "kept.sqlite") if "copy.sqlite" in line else None
        for more in ["", " --json"] if "--csv" not in line else [""]:
            with values.trying(line + more):
                values.add(line + more, call(line + more))
                for made in ("new.sqlite", *([] if more else ["copy.sqlite"] * bool(keeps))):
                    Path(made).unlink(missing_ok=True)
                if keeps and not more:
                    shutil.copy("kept.sqlite", "copy.sqlite")
    values.add("x.jsonl", Path("x.jsonl").read_text())
    values.add("tasks.png", hashlib.sha256(Path("tasks.png").read_bytes()).hexdigest())
    for line in [line for line in lines if re.match("(list|show|runs|run|study|predict|tune|data) ", line)]:
        if "copy.sqlite" in line:
            continue
        for columns in (60, 100):
            with values.trying(f"{line} at {columns}"):
                values.add(f"{line} on a terminal of {columns}", call(line, columns, terminal=True))
    for line in commands_in(LIVE, **names):
        for more in ("", " --json"):
            with values.trying(line + more):
                values.add(line + more, without_times(call(line + more)))


# What is refused: a command, and what follows it.
REFUSALS = """
:: report --out x | nonsense | --nonsense | rum er | run | show | list | tune | study | report | runs nonsense |
  data nonsense | predict
list :: method | x y | methods --jsn
show :: err | ccl-fp --tasks 2 | er --images x.png | split-mnist --images x.jpg | split-mnist --images no/x.png
show split-mnist :: --seed -1 | --seed x | --tasks 0 | --tasks 11 | --class-order 0,1 |
  --class-order 0,0,1,2,3,4,5,6,7,8
show :: none.py:Half | half.py:Full | half.py | broken.py:Half | raises.py:Half | other.py:Half | text.txt:Half |
  {own} --tasks 9
run :: err split-mnist | er | er split-mist | er,err split-mnist | , split-mnist | er split-mnist --nonsense |
  er lr=0.1
run er split-mnist :: lr=x | lr= | =1 | lr | wd=1 | lr=0.1 lr=0.2 | lr=-1 | lr=inf | lr=nan | augment=1 | augment=on |
  batch=0
run er split-mnist :: batch=1.5 | replay=-1 | epochs=0 | w=1 | --seeds x | --seeds 0 | --seeds -1 | --seeds 1,1 |
  --seeds 99999
run er split-mnist :: --seed -1 | --seed x | --seed 1 --seeds 2 | --seeds , | --memory 0 | --memory x | --memory -5 |
  --memory 1.5
run er split-mnist :: --scenario domain | --scenario clas | --tasks 0 | --tasks 11 | --tasks x | --class-order x |
  --class-order 0,1
run er split-mnist :: --class-order 0,1/2 | --class-order "" | --backbone cnn |
  --backbone resnet18:width=0
run er split-mnist :: --backbone none.py:make | --backbone net.py:mak | --backbone other.py:make |
  --backbone broken.py:make
run er split-mnist :: --device gpu | --device cuda | --device cuda:0 | --threads 0 | --threads x | --threads 99999 |
  --engine fast
run er split-mnist :: --engine graph | --precision bf16 | --precision half | --checkpoint-every -1 |
  --checkpoint-every x | --on slurm
run er split-mnist :: --on ray:http://x | --gpus-per-cohort 0 | --gpus-per-cohort 2 | --shard 0/2 | --shard 3/2 |
  --shard x | --shard 1
run er split-mnist :: --store text.txt | --store noise.sqlite | --save text.txt | --max-classes 9 |
  --max-classes x
run er split-mnist :: --images pets.npz | --image-size 8 | --split-seed 1 | --classes a | --skip-bad | --auto 0 |
  --auto x | --auto -1
run a-gem split-mnist reference=0 :: | --auto 1 --tasks 3 --scenario domain
run er rotated-mnist :: --tasks 3 | --class-order random | --scenario class
run er --tasks 2 --images :: none | text.txt | text.npz | few.npz | one.npz | spoilt | half.py |
  pets.npz --image-size 8
run er --images photos :: --image-size 0 | --image-size x | --split-seed -1 | --classes cat | --classes cat,cow |
  --tasks 9 | --classes cat,
run er {own} :: | --tasks 5 | --class-order cat,dog | --class-order cat,dog,fish,cow |
  --tasks 2 augment=on --backbone mlp batch=x
run other.py:Half split-mnist :: | --seeds 1
tune :: err split-mnist | er | er split-mist | er split-mnist --write text.txt | er split-mnist --seeds 0 |
  er split-mnist lr=x
tune er split-mnist :: --budget 0 | --budget x | --halving 0 | --halving x | --budget 1 --halving 2 | --scenario x |
  w=1 | lr=0.1 lr=1
tune er split-mnist :: --write presets0.json | --write presets1.json | --write presets2.json | --write presets3.json |
  --engine x
tune :: half.py:Half {own} --write x.json | er split-mnist --tasks 2 --write x.json | joint {own} --tasks 2 half=1
study :: x | all --benchmark x | all --method x | all --scenario x | all --method , | all --seeds x |
  runtime --seeds 3
study :: runtime --shard 1/2 | all --tasks 2 | all --memory 3 | mine | mine --benchmark split-mnist |
  mine --method er | all --auto 3
study mine --benchmark split-mnist --method er :: --memory x | --memory 0 | --memory , | --auto 0 |
  --auto 1 --dry-run | --scenario x
study mine --method er :: --benchmark x | --images none | --benchmark split-mnist --image-size 3
study buffer --method finetune :: --scenario task | --dry-run
report :: --out text.txt --store own | --out x --store none | --out x --store own --seeds x |
  --out x --store own --seeds 0
runs :: --store none.txt --json delete x | check --store no | check --store text.txt | check --store noise |
  list --method err
runs :: list --benchmark x --store own | list --method err --store own | --store noise | list --store text.txt |
  delete
runs delete :: --yes | x | x --yes | --yes --store own zz | --yes --store own --method err |
  --yes --store own --seed 77 | --store own --bad
runs export :: | x.jsonl --store no | x.jsonl --store own --method gem | no/x/y.jsonl --store noise |
  text.txt/x --store own
runs import :: | none.jsonl | empty.jsonl | text.txt | nan.jsonl | differs.jsonl | lacks-method.jsonl |
  lacks-configuration.jsonl
runs import :: lacks-train_seconds.jsonl | noise.sqlite | pets.npz | {artefacts}/own.jsonl bad03.jsonl
data :: fetch x | verify x | verify mnist | verify cifar10 | path x | import x y | import mnist none |
  import mnist text.txt | remove
data :: remove mnist | remove x | remove x --yes | import mnist none.txt | import cifar10 photos |
  import tiny-imagenet text.txt
predict :: none photos | own.ckpt | own.ckpt none | own.ckpt text.txt | own.ckpt spoilt | own.ckpt photos --task 5 |
  own.ckpt none/
predict own.ckpt photos :: --json --csv | --task x | --task -1 | --device x | --device cuda | --method half.py:Half |
  --backbone other.py:make
predict :: text.txt photos | cut.ckpt photos | flipped.ckpt photos | {artefacts}/learners/er-class.ckpt photos |
  pets.npz photos
observe :: own.ckpt | own.ckpt --images none | own.ckpt --images photos --batch 0 |
  cut.ckpt --images photos
observe own.ckpt --images photos :: --epochs 0 | --classes cow | --threads 0 | --device x | --batch x |
  --classes cat,dog --epochs -1
"""


def refusals_part(values: Values, artefacts: Path) -> None:
    """What is refused, with its message and exit code."""
    names = prepare(artefacts, "own")
    lines = []
    for text in filter(None, REFUSALS.replace("|\n", "|").splitlines()):
        command, _, endings = text.partition("::")
        lines += [f"{command.strip()} {ending.strip()}".strip() for ending in endings.split("|")]
    lines += [f"runs import {file} --store x.sqlite" for file in sorted(Path().glob("bad*.jsonl"))]
    for line in commands_in("\n".join(lines), **names):
        with values.trying(line):
            answer = call(line)
            values.add(line, answer)
            if answer.startswith("exit code 0"):
                print(f"not refused: {line}", file=sys.stderr)


# -- report, formats ---------------------------------------------------------------------------------------------------


def report_part(values: Values, artefacts: Path) -> None:
    """The files of reports, except for those that are drawn from the SVGs; and RESULTS.md."""
    prepare(artefacts, "own", "paper")
    call(f"runs import {REPOSITORY / 'results' / 'mnist.jsonl'} --store part.sqlite")
    for name, line in {
        "paper": "--store paper.sqlite",
        "own": "--store own.sqlite",
        "part": "--store part.sqlite --seeds 2 --include-diverged --json",
    }.items():
        said = re.sub(r"(\.(?:pdf|png)) +[\d,]+ kB", r"\1", call(f"report --out {name} {line}"))
        values.add(f"{name}/said", said)
        for file in sorted(file for file in Path(name).rglob("*") if file.is_file()):
            is_text = file.suffix not in (".pdf", ".png")
            values.add(str(file), file.read_text("utf-8") if is_text else "is there")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    command = [sys.executable, str(REPOSITORY / "results" / "render.py"), "--to", "R.md"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    values.add("RESULTS.md", Path("R.md").read_text("utf-8"))


def formats_part(values: Values, artefacts: Path) -> None:
    """Files that the reference wrote are read."""
    cclfp = find("cclfp")

    names = prepare(artefacts, "own")
    x = toy_batches("class")[2][1][0]
    for method, scenario in each_method():
        name = f"learner {method} {scenario}"
        with values.trying(name):
            learner = cclfp.load(artefacts / "learners" / f"{method}-{scenario}.ckpt", psi=toy_psi())
            add_all(values, name, learner_values(learner, x, 2))
            values.add(f"{name}/goes on", go_on(learner, scenario))
            learner.save("again.ckpt")
            add_all(values, f"{name}/saved again", file_values(Path("again.ckpt")))
    mine = f"study mine --benchmark {names['own']} --method half.py:Half --tasks 2 --backbone mlp --memory 20"
    for name, lines in {
        "store 3": ["runs check --store own.sqlite", "runs list --json --store own.sqlite"],
        "json lines": [
            "runs import artefacts/own.jsonl --store lines.sqlite --json",
            "runs --store lines.sqlite --json",
        ],
        "a store into another": ["runs import own.sqlite --store other.sqlite", "runs --store other.sqlite --json"],
        "there already": ["runs import own.sqlite lines.sqlite --store other.sqlite"],
        "search": [f"{mine} --seeds 1 --dry-run --json --store own.sqlite"],
        "presets": ["tune si split-mnist --scenario class --write presets.json --store tuning.sqlite"],
    }.items():
        if name == "presets":
            shutil.copy(artefacts / "presets.json", "presets.json")
            call(f"runs import {REPOSITORY / 'results' / 'tuning' / 'mnist.jsonl'} --store tuning.sqlite")
        values.add(name, "\n".join(map(call, lines)))
    values.add("presets.json", Path("presets.json").read_text())
    call("runs export lines.jsonl --store lines.sqlite")
    values.add("lines.jsonl", Path("lines.jsonl").read_text())
    for folder in ("earlier", "tuning"):
        for file in sorted((REPOSITORY / "results" / folder).glob("*.jsonl")):
            values.add(f"{folder} {file.name}", call(f"runs import {file} --store {folder}.sqlite"))
        call(f"runs export {folder}.jsonl --store {folder}.sqlite")
        values.add(f"{folder} exported", hashlib.sha256(Path(f"{folder}.jsonl").read_bytes()).hexdigest())


def make_artefacts(values: Values, artefacts: Path) -> None:
    """Files as this code writes them: learners, a store, JSON Lines, presets and searches."""
    cclfp = find("cclfp")

    write_datasets()
    own = write_own()
    shutil.rmtree(artefacts, ignore_errors=True)  # of an attempt that failed
    (artefacts / "learners").mkdir(parents=True)
    (artefacts / "own").mkdir()
    for method, scenario in each_method():
        toy_loop(method, scenario, []).save(artefacts / "learners" / f"{method}-{scenario}.ckpt")
    store = {"store": "made.sqlite", "device": "cpu", "engine": "eager"}
    where = {"tasks": 2, "backbone": "mlp", "memory": 20, **store}
    methods = ["er", "ccl-fp+", "half.py:Half", "joint"]
    cclfp.run(methods, own, seeds=3, **where)
    cclfp.run("er", own, seeds=3, lr=[0.03, 0.1], **where)
    cclfp.run("er", own, seeds=1, **where, max_classes=6, save="learners")
    cclfp.run("er", "split-mnist", seeds=2, **store, class_order="random", epochs=2)
    cclfp.run("er", "split-mnist", seeds=1, **store, tasks=2, validation=True)
    cclfp.run("finetune", "split-mnist", seeds=2, **store, lr=1e30)
    cclfp.tune("half.py:Half", own, **where)
    call("runs export made.jsonl --store made.sqlite")
    records = [json.loads(line) for line in Path("made.jsonl").read_text().splitlines()]
    for number, record in enumerate(sorted(records, key=lambda record: str(record["key"]))):
        when = {"finished_at": f"2026-01-01T00:{number // 60:02}:{number % 60:02}+00:00", "environment": FIXED}
        record |= {"train_seconds": 2.0 + number, "test_seconds": 1.0, "seconds": 3.0 + number, **when}
    records.sort(key=lambda record: str(record["finished_at"]))
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (artefacts / "own.jsonl").write_text(text.replace(str(Path.cwd()), "/home/me"))  # the folder of half.py
    call(f"runs import {artefacts / 'own.jsonl'} --store {artefacts / 'own' / 'own.sqlite'}")
    for search in sorted(Path("made.sqlite.searches").iterdir()):
        content = {**json.loads(search.read_text()), "finished_at": "2026-01-01T00:00:00+00:00"}
        kept = artefacts / "own" / "own.sqlite.searches" / search.name
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(content, indent=1) + "\n")
    (learner,) = Path("learners").iterdir()
    shutil.copy(learner, artefacts / "own.ckpt")
    call(f"runs import {REPOSITORY / 'results' / 'tuning' / 'mnist.jsonl'} --store tuning.sqlite")
    for method in ("er", "si"):
        call(f"tune {method} split-mnist --scenario class --write {artefacts / 'presets.json'} --store tuning.sqlite")
    assert len(list(artefacts.iterdir())) == 5, f"artefacts are missing: {list(artefacts.iterdir())}"


# -- all of it ---------------------------------------------------------------------------------------------------------


PARTS: dict[str, Callable[..., None]] = {
    **dict.fromkeys(("class", "task", "domain"), scenario_part),
    **{"others": others_part, "observe": observe_part, "stacked": stacked_part, "compiled": compiled_part},
    **{"keys": keys_part, "help": help_part, "answers": answers_part, "refusals": refusals_part},
    **{"report": report_part, "formats": formats_part, "artefacts": make_artefacts},
}
NEED_ARTEFACTS = ("answers", "refusals", "report", "formats", "artefacts")


def run_part(part: str, to: Path, artefacts: Path) -> int:
    """Runs in a process of its own, in an empty folder."""
    import torch

    cclfp = find("cclfp")

    assert Path(cclfp.__file__).is_relative_to(REPOSITORY), f"another cclfp is imported: {cclfp.__file__}"
    torch.set_num_threads(1)
    values = Values(part)
    PARTS[part](values, *([artefacts] if part in NEED_ARTEFACTS else []))
    to.write_text(json.dumps(values.texts, indent=1, ensure_ascii=False), "utf-8")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"{sum(one.ru_utime + one.ru_stime for one in used):.0f} s on the core")
    return 3 if values.errors else 0


CORES: queue.SimpleQueue[int] = queue.SimpleQueue()  # those that are free: what runs on one core trains in one process


def start(part: str, to: Path, artefacts: Path) -> bool:
    """Run a part on a core of its own, and say how long it took; whether it ended well."""
    core = CORES.get()
    began, place = time.monotonic(), Path(tempfile.mkdtemp(prefix="golden-", dir="/tmp"))
    environment = {name: value for name, value in os.environ.items() if name not in DROPPED} | ENVIRONMENT
    environment |= {"CCLFP_HOME": str(place / "home"), "XDG_CACHE_HOME": str(place / "cache"), "TMPDIR": str(place)}
    environment["PYTHONPATH"] = str(REPOSITORY / "src")
    (place / "work").mkdir()
    command = [
        "taskset",
        "-c",
        str(core),
        sys.executable,
        __file__,
        "part",
        part,
        str(to / f"{part}.json"),
        str(artefacts),
    ]
    how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run(command, cwd=place / "work", env=environment, **how)
    CORES.put(core)
    shutil.rmtree(place, ignore_errors=True)
    ended = "" if done.returncode == 0 else f": exit code {done.returncode}"
    said = f"{part}: {time.monotonic() - began:.0f} s, {done.stdout.strip()}{ended}"
    print(said, *done.stderr.splitlines()[-30:], sep="\n  ", flush=True)
    return done.returncode == 0


def run_all(parts: Sequence[str], to: Path, artefacts: Path) -> bool:
    """Run parts, two at a time; whether all ended well."""
    to.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(PROCESSES) as pool:
        return all(list(pool.map(lambda part: start(part, to, artefacts), parts)))


def readable(text: str) -> list[str]:
    """The lines of a text; long ones, of JSON or HTML, in parts."""
    return [
        part for line in text.splitlines() for part in (re.split(r"(?<=[,;>]) ?", line) if len(line) > 250 else [line])
    ]


def compare(old: Path, new: Path, parts: Sequence[str], allowed: Sequence[str]) -> int:
    """Print each difference; how many there are that are not allowed."""
    total = 0
    for part in parts:
        before, after = (json.loads(file.read_text("utf-8")) if file.exists() else {} for file in (
            old / f"{part}.json", new / f"{part}.json"))  # fmt: skip
        differing = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        names = [n for n in differing if not any(fnmatch.fnmatch(f"{part}/{n}", pattern) for pattern in allowed)]
        for name in names[:MOST_VALUES]:
            print(f"\n{part}/{name}" + " (new)" * (name not in before) + " (gone)" * (name not in after))
            texts = [readable(texts.get(name, "")) for texts in (before, after)]
            lines = list(difflib.unified_diff(texts[0], texts[1], "reference", "now", lineterm="", n=1))
            print(*(f"  {line[:300]}" for line in lines[:MOST_SHOWN]), sep="\n")
            print(f"  ... {len(lines) - MOST_SHOWN} lines more" * (len(lines) > MOST_SHOWN))
        print(*(f"{part}/{name}" for name in names[MOST_VALUES:]), sep="\n")
        print(f"{part}: {len(before)} values, {len(names)} differ, {len(differing) - len(names)} more are allowed to")
        total += len(names)
    return total


def main() -> int:
    if sys.argv[1:2] == ["part"]:
        return run_part(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("write", "compare"))
    parser.add_argument("folder", type=lambda text: Path(text).resolve())
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections or parts, with commas between them")
    parser.add_argument("--allow", action="append", default=[], metavar="PATTERN", help="values that may differ")
    parser.add_argument("--with", dest="other", type=Path, help="another folder that was written: nothing is run")
    given = parser.parse_args()
    for core in sorted(os.sched_getaffinity(0))[:PROCESSES]:
        CORES.put(core)
    only, artefacts = given.only.split(","), given.folder / "artefacts"
    parts = [part for section in SECTIONS for part in SECTIONS[section] if section in only or part in only]
    if wrong := [name for name in only if name not in (*SECTIONS, *parts)]:
        parser.error(f"{wrong[0]}: expected some of {SECTIONS}")
    if given.do == "write":
        well = (given.folder / "artefacts.json").exists() or start("artefacts", given.folder, artefacts)
        return 0 if well and run_all(parts, given.folder, artefacts) else 1
    with tempfile.TemporaryDirectory() as folder:
        new = given.other or Path(folder)
        well = given.other is not None or run_all(parts, new, artefacts)
        count = compare(given.folder, new, parts, given.allow)
    print(f"\n{count} differences" + ("" if well else ", and a part failed"))
    return 1 if count or not well else 0


if __name__ == "__main__":
    sys.exit(main())
