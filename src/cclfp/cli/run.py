"""``cclfp run``: train methods on a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cclfp.cli.auto import run_tuned
from cclfp.cli.options import (
    CheckpointsOption,
    DeviceOption,
    EngineOption,
    GpusPerCohortOption,
    IncludeDivergedOption,
    JsonOption,
    OnOption,
    OtherCodeOption,
    PrecisionOption,
    SeedOption,
    SeedsOption,
    ShardOption,
    StoreOption,
    parse_classes,
    parse_seeds,
    parse_settings,
)
from cclfp.cli.output import print_json
from cclfp.cli.place_options import (
    BackboneOption,
    ClassesOption,
    ClassOrderOption,
    ImageSizeOption,
    ImagesOption,
    MemoryOption,
    SkipBadOption,
    SplitSeedOption,
    TasksOption,
)
from cclfp.cli.printing import print_chosen, print_results, print_shard, result_to_dict, tuned_to_dict

if TYPE_CHECKING:
    from cclfp.paper.search import Tuned


def run(
    method: Annotated[
        str,
        typer.Argument(
            metavar="METHOD", help="A method, or several with commas (cclfp list methods; FILE.py:NAME is your own)."
        ),
    ],
    benchmark: Annotated[
        str | None,
        typer.Argument(
            metavar="BENCHMARK",
            help="A benchmark (cclfp list benchmarks), unless --images is given.",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE",
            help="Hyperparameters (cclfp show METHOD), batch=10, replay=10, epochs=1, augment=on|off (crop and mirror "
            "training images at random). Several values with commas train a grid. What is not set comes from the "
            "presets.",
            show_default=False,
        ),
    ] = None,
    images: ImagesOption = None,
    tasks: TasksOption = None,
    image_size: ImageSizeOption = None,
    split_seed: SplitSeedOption = None,
    classes: ClassesOption = None,
    skip_bad: SkipBadOption = False,
    backbone: BackboneOption = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            metavar="class|task|domain",
            help="Which classes a prediction may choose from: those seen so far, its task's, or all. "
            "By default the first that cclfp list benchmarks names.",
            show_default=False,
        ),
    ] = None,
    seeds: SeedsOption = None,
    seed: SeedOption = None,
    memory: MemoryOption = 200,
    validation: Annotated[
        bool,
        typer.Option(
            "--validation",
            help="Hold a tenth of the training images out and test on them, not on the test set: to choose "
            "hyperparameters.",
        ),
    ] = False,
    auto: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES",
            help="First search lr, augment and each method's own settings on held-out training images, for so many "
            "minutes per method. NAME=A,B are then the values to search. The search is stored: the same command "
            "chooses the same.",
            show_default=False,
        ),
    ] = None,
    max_classes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Make room for N classes in all, so that cclfp observe can teach a saved learner new ones.",
            show_default=False,
        ),
    ] = None,
    class_order: ClassOrderOption = None,
    device: DeviceOption = "auto",
    threads: Annotated[int, typer.Option(help="CPU threads per run; runs are trained side by side on the cores.")] = 1,
    engine: EngineOption = "auto",
    precision: PrecisionOption = "auto",
    store: StoreOption = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write each trained learner there, for cclfp.load.", show_default=False),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Train again what the store has, all of it even if this command was stopped before."
        ),
    ] = False,
    other_code: OtherCodeOption = "use",
    checkpoint_every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Least time between two checkpoints; they come at a task's end.")
    ] = 30.0,
    on: OnOption = "local",
    gpus_per_cohort: GpusPerCohortOption = None,
    checkpoints: CheckpointsOption = None,
    shard: ShardOption = None,
    include_diverged: IncludeDivergedOption = False,
    json: JsonOption = False,
) -> None:
    """Train methods on a benchmark over several seeds and print one table beside the paper's numbers.

    A finished run is kept in the store and not trained again; an interrupted one continues from its last checkpoint.

    [bold]Examples[/bold]

    cclfp run ccl-fp+ split-mnist

    cclfp run er,ccl-fp+ rotated-mnist --seeds 0,3,7 --json

    cclfp run ccl-fp split-mnist w=0.1,0.3,0.5 lr=0.03 --scenario task --memory 500

    cclfp run ccl-fp+ --images photos/ --tasks 5

    cclfp run er,ccl-fp+ --images photos/ --tasks 5 --auto 10
    """
    if benchmark is not None and "=" in benchmark:  # it is the first setting
        settings, benchmark = [benchmark, *(settings or [])], None
    names = [name.strip() for name in method.split(",") if name.strip()]
    values = parse_settings(settings or [])
    chosen_seeds = parse_seeds(seeds, seed)

    from cclfp.cli.progress import progress
    from cclfp.runs.execution import Execution
    from cclfp.runs.problem import Problem
    from cclfp.runs.run import run

    execution = Execution.from_dict(
        {
            "device": device,
            "threads": threads,
            "engine": engine,
            "precision": precision,
            "store": store,
            "other_code": other_code,
            "save": save,
            "fresh": fresh,
            "checkpoint_every": checkpoint_every,
            "checkpoints": checkpoints,
            "on": on,
            "gpus_per_cohort": gpus_per_cohort,
            "shard": shard,
        }
    )
    problem = Problem(
        benchmark=benchmark,
        images=images,
        image_size=image_size,
        split_seed=split_seed,
        classes=parse_classes("--classes", classes),
        skip_bad=skip_bad,
        tasks=tasks,
        class_order=class_order,
        backbone=backbone,
        scenario=scenario,
        memory=memory,
        validation=validation,
        max_classes=max_classes,
    )
    searches: list[Tuned] = []
    with progress() as shown:
        options: dict[str, Any] = {"seeds": chosen_seeds, "execution": execution, "on_event": shown.update}
        if auto is None:
            results = run(names, problem=problem, settings=values, **options)
        else:
            found = run_tuned(auto, names, problem, values, **options)
            results, searches = [result for result, _ in found], [tuned for _, tuned in found]
            values = {}
    if shard is not None:
        print_shard(execution, [run for result in results for run in result.runs], json)
    elif json:
        listed = [result_to_dict(result, include_diverged) for result in results]
        chosen = {"auto": [tuned_to_dict(tuned) for tuned in searches]} if auto is not None else {}
        print_json({"configurations": listed, **chosen})
    else:
        print_results(results, [name for name, several in values.items() if len(several) > 1], include_diverged)
        print_chosen(searches)
        if save is not None:
            typer.echo(f"learners saved in {save}")
