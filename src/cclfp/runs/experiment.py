"""Train methods on a benchmark over seeds and settings: what ``cclfp run`` does, from Python."""

from __future__ import annotations

import dataclasses
import functools
import numbers
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from cclfp.core.checks import check_whole
from cclfp.core.machine import cores
from cclfp.data import EventListener, fetch, import_images
from cclfp.engine.precision import pick_precision
from cclfp.errors import InputError, unknown
from cclfp.methods import get_method
from cclfp.runs.configuration import Configuration, configurations
from cclfp.runs.environment import pick_device
from cclfp.runs.job import Job, JobReport, clean_up, finished, remove_left_overs
from cclfp.runs.pool import do_all
from cclfp.runs.seeds import Seeds
from cclfp.runs.store import Record, Store, default_store
from cclfp.streams import get_benchmark

ABOUT_ALL = -1  # in place of a run's number, for a report about no run in particular
ENGINES = ("auto", "eager", "compiled", "graph")
MOST_SEEDS = 10_000
RUN_ON_CUDA = 4 << 30  # bytes of a graphics card's memory that one run may need
Setting = float | str
MEASURES = ("average_accuracy", "forgetting", "backward_transfer", "forward_transfer", "seconds")


@dataclasses.dataclass(frozen=True)
class Result:
    """One configuration over its seeds."""

    configuration: Configuration
    runs: list[Record]

    def seeds(self, include_diverged: bool = False) -> Seeds:
        """Its runs as numbers."""
        return Seeds(self.runs, include_diverged)

    def mean_std(self, measure: str, *, include_diverged: bool = False) -> dict[str, float | None]:
        """Mean and standard deviation over seeds of ``"average_accuracy"``, ``"forgetting"``, ``"seconds"``, ...

        Runs that diverged are left out unless ``include_diverged``.
        """
        return self.seeds(include_diverged).mean_std(measure)

    @property
    def diverged(self) -> list[int]:
        """The seeds whose runs diverged: their weights were not finite after a task."""
        return self.seeds().diverged

    def to_dict(self, *, include_diverged: bool = False) -> dict[str, Any]:
        """As ``cclfp run --json`` prints it, which adds the published number."""
        per_run = ("seed", *MEASURES, "accuracy_matrix", "diverged")
        seeds = self.seeds(include_diverged)
        return {
            **self.configuration.to_dict(),
            **{measure: seeds.mean_std(measure) for measure in MEASURES},
            "diverged": seeds.diverged,
            "runs": [{name: run[name] for name in per_run if name in run} for run in self.runs],
        }


def run(
    methods: str | Sequence[str],
    benchmark: str | None = None,
    *,
    images: str | Path | None = None,
    image_size: int | None = None,
    split_seed: int | None = None,
    scenario: str | None = None,
    tasks: int | None = None,
    class_order: str | Sequence[Any] | None = None,
    backbone: str | None = None,
    validation: bool = False,
    seeds: int | Sequence[int] = 5,
    buffer: int = 200,
    device: str = "auto",
    threads: int = 1,
    engine: str = "auto",
    precision: str = "auto",
    store: str | Path | None = None,
    save: str | Path | None = None,
    fresh: bool = False,
    checkpoint_every: float = 30.0,
    report: JobReport = lambda number, event: None,
    settings: Mapping[str, Setting | Sequence[Setting]] | None = None,
    **more_settings: Setting | Sequence[Setting],
) -> list[Result]:
    """Train methods on a benchmark, one run a seed and combination of settings, spread over the cores.

    Finished runs come from the store instead of being trained again (unless ``fresh``), interrupted ones go on from
    their last checkpoint. Settings are hyperparameters, ``batch``, ``replay``, ``epochs`` and ``augment`` ("on" or
    "off"), given as keywords or in ``settings``; a list of values makes a grid. Each run computes on ``threads``
    threads. ``engine`` is how: ``"eager"`` trains one run after the other in plain PyTorch, and on the CPU gives the
    same numbers to the last bit whatever runs beside it; ``"compiled"`` trains many as one compiled program, several
    times faster, with numbers that differ in rounding; ``"graph"`` does the same on a graphics card; ``"auto"`` picks
    what finishes first. ``precision`` is what a graphics card computes in: ``"tf32"`` (by default), ``"bf16"`` or
    ``"float32"``.

    Instead of a benchmark, ``images`` is a folder of class folders or an ``.npz`` of your own, as
    :func:`cclfp.data.import_images` takes it (with ``image_size`` and ``split_seed``), split into ``tasks`` tasks.
    ``class_order`` is the order classes come in, by name or number, "random", or a list of each task's classes.
    ``backbone`` is ``"mlp"``, ``"resnet18"``, ``"resnet18:width=16"`` or ``"FILE.py:factory"``, a function that takes
    the shape of an image and gives any ``nn.Module`` that maps images to features. With ``validation`` a tenth of the
    training examples is held out and tested on instead of the test set: choose hyperparameters so.

    ``report`` is called with a run's number (-1: about all of them) and an event, a dictionary whose ``"event"`` is
    ``"jobs"`` (with ``names`` and ``store``), ``"stored"`` or ``"done"`` (with the ``record``), ``"note"`` (with a
    ``text``), ``"data"`` (a dataset is got: ``what``, ``done`` of ``total`` and their ``unit``) or ``"step"`` (with
    ``task``, ``tasks``, ``step``, ``steps`` and the ``accuracy`` so far).

    >>> results = run("er", "split-mnist", seeds=1, lr=[0.03, 0.1])  # doctest: +SKIP
    >>> [result.mean_std("average_accuracy")["mean"] for result in results]  # doctest: +SKIP
    """
    grid = {name: check_values(name, values) for name, values in {**(settings or {}), **more_settings}.items()}
    names = check_names(methods)
    for name in names:
        get_method(name)  # before images are read
    listener = EventListener(functools.partial(report, ABOUT_ALL))
    if (benchmark is None) == (images is None):
        raise InputError("expected a benchmark (cclfp list benchmarks) or images of your own, one of the two")
    if images is None and (image_size is not None or split_seed is not None):
        raise InputError("an image size and a split seed are for images of your own: give images too")
    if images is not None:
        benchmark = import_images(images, size=image_size, split_seed=split_seed, listener=listener)
    assert benchmark is not None
    chosen = configurations(
        names,
        benchmark,
        scenario,
        buffer=buffer,
        class_order=class_order,
        tasks=tasks,
        backbone=backbone,
        validation=validation,
        settings=grid,
    )
    jobs = make_jobs(
        chosen,
        seeds,
        device=device,
        threads=threads,
        engine=engine,
        precision=precision,
        store=store,
        save=save,
        fresh=fresh,
        checkpoint_every=checkpoint_every,
    )
    varied = [name for name, values in grid.items() if len(values) > 1]
    report(ABOUT_ALL, {"event": "jobs", "names": [job.label(varied) for job in jobs], "store": str(jobs[0].store)})
    records = do_jobs(jobs, report)
    per_configuration = len(jobs) // len(chosen)
    return [
        Result(configuration, records[i * per_configuration : (i + 1) * per_configuration])
        for i, configuration in enumerate(chosen)
    ]


def make_jobs(
    chosen: Sequence[Configuration],
    seeds: int | Sequence[int],
    *,
    device: str = "auto",
    threads: int = 1,
    engine: str = "auto",
    precision: str = "auto",
    store: str | Path | None = None,
    save: str | Path | None = None,
    fresh: bool = False,
    checkpoint_every: float = 30.0,
) -> list[Job]:
    """A job for every configuration and seed, as :func:`run` takes the other arguments."""
    pick_device(device)
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    for name, where in (("compiled", "cpu"), ("graph", "cuda")):
        if engine == name and pick_device(device) != where:
            raise InputError(
                f"engine {name} is for device {where}, not {pick_device(device)}: auto picks what there is"
            )
    pick_precision(precision, pick_device(device))
    threads = check_whole("threads", threads, at_least=1)
    if threads > cores():
        raise InputError(f"threads={threads}: this process may use {cores()} cores")
    if len(check_values("checkpoint_every", checkpoint_every)) != 1 or not checkpoint_every >= 0:
        raise InputError(f"checkpoint_every={checkpoint_every}: expected a number of seconds, 0 or more")
    folder = None if save is None else check_folder(Path(save))
    return [
        Job(
            configuration=configuration,
            seed=seed,
            store=default_store() if store is None else Path(store),
            device=device,
            threads=threads,
            engine=engine,
            precision=precision,
            fresh=fresh,
            save=None if folder is None else folder / learner_file(configuration, seed),
            checkpoint_every=checkpoint_every,
        )
        for configuration in chosen
        for seed in check_seeds(seeds)
    ]


def do_jobs(jobs: Sequence[Job], report: JobReport) -> list[Record]:
    """Take from the store what it has, get the datasets that the other jobs need and do those."""
    store = Store(jobs[0].store)
    records: dict[int, Record] = {}
    for number, job in enumerate(jobs):
        if (record := finished(job, store)) is not None:
            records[number] = record
            clean_up(job, store)
            report(number, {"event": "stored", "record": record})
        elif not job.fresh and store.find(job.key) is not None:
            report(number, {"event": "note", "text": "its learner was not saved: training again to save it"})
    missing = [number for number in range(len(jobs)) if number not in records]
    remove_left_overs(store)
    if missing:
        for dataset in dict.fromkeys(get_benchmark(jobs[n].configuration.benchmark).dataset for n in missing):
            fetch(dataset, EventListener(functools.partial(report, ABOUT_ALL)))
        workers = _workers(jobs[0])
        try:
            done = do_all([jobs[n] for n in missing], workers, lambda i, event: report(missing[i], event))
        finally:
            remove_left_overs(store)  # of workers that were killed
        records |= dict(zip(missing, done, strict=True))
    return [records[number] for number in range(len(jobs))]


def _workers(job: Job) -> int:
    """How many runs go side by side: as the cores allow, and on a graphics card its memory.

    A run on a card needs more than one core to keep it busy: on 16 of them and an H200, 12 runs of ResNet18 made 304
    steps a second together, and 20 made 222.
    """
    workers = max(1, cores() // job.threads)
    if pick_device(job.device) == "cuda" and job.engine != "eager":
        return 1
    if pick_device(job.device) == "cuda":
        free, _ = torch.cuda.mem_get_info()
        workers = max(1, min(workers // 2, free // RUN_ON_CUDA))
    return workers


def check_names(methods: str | Iterable[str]) -> list[str]:
    given: list[object] = [methods] if isinstance(methods, str | type) else list(methods)
    names = [name for name in given if isinstance(name, str)]
    if len(names) < len(given):
        raise InputError(
            f"run takes methods by name, or as FILE.py:NAME so that its processes can load them, not {given!r}; "
            "cclfp.make and cclfp.testing take a class"
        )
    return names


def check_values(name: str, values: object) -> list[float]:
    """One number, or several that make a grid; for augment "on" and "off" too, which come back as bools."""
    several = [values] if isinstance(values, numbers.Real | str) else values
    if not isinstance(several, Iterable):
        raise InputError(f"{name}={values!r}: expected a number or several")
    several = list(several)
    if name == "augment":
        switches = {"on": True, "true": True, "off": False, "false": False}
        if wrong := [v for v in several if str(v).casefold() not in switches]:
            raise InputError(f"augment={wrong[0]}: expected on or off")
        return [switches[str(v).casefold()] for v in several]
    if not all(isinstance(v, numbers.Real) for v in several):
        raise InputError(f"{name}={values!r}: expected a number or several")
    return [float(v) for v in several]


def check_folder(folder: Path) -> Path:
    """A folder that can be written to, made where there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise InputError(f"learners cannot be saved in {folder}: {error}") from error


def learner_file(configuration: Configuration, seed: int) -> str:
    c = configuration
    return f"{c.method}_{c.benchmark}_{c.scenario}_seed{seed}_{c.key(seed)[:8]}.ckpt"


def check_seeds(seeds: int | Iterable[int]) -> list[int]:
    """5 -> 0, 1, 2, 3, 4; a sequence is taken as it is."""
    if isinstance(seeds, Iterable):
        chosen = [check_whole("seed", seed, at_least=0) for seed in seeds]
    else:
        chosen = list(range(min(check_whole("seeds", seeds, at_least=1), MOST_SEEDS + 1)))
    if not 1 <= len(chosen) <= MOST_SEEDS or len(set(chosen)) < len(chosen):
        raise InputError(f"seeds={seeds!r}: expected 1 to {MOST_SEEDS:,} of them, all different")
    return chosen
