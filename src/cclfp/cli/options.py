"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cclfp.errors import InputError

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else on stdout.")]
StoreOption = Annotated[
    Path | None,
    typer.Option(help="The file that keeps run records. By default CCLFP_HOME/runs.sqlite.", show_default=False),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda|cuda:I,J",
        help="Where to train. All GPUs are used, unless some are named by number (cuda:0,2).",
    ),
]
OnOption = Annotated[
    str,
    typer.Option(
        metavar="local|ray|ray:ADDRESS",
        help="This machine, or a Ray cluster (pip install 'cclfp\\[ray]'). ray is the cluster that RAY_ADDRESS names, "
        "otherwise a private one on this machine.",
    ),
]
GpusPerCohortOption = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="The share of a GPU that runs trained together get, such as 0.5. By default a whole one.",
        show_default=False,
    ),
]
CheckpointsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Where checkpoints are kept; on a cluster, a folder that all nodes share. By default beside the store.",
        show_default=False,
    ),
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="Train only the I-th of N parts of what the store lacks, into shard-I-of-N.sqlite beside it. "
        "cclfp runs import shard-* puts the parts together.",
        show_default=False,
    ),
]
OtherCodeOption = Annotated[
    str,
    typer.Option(
        metavar="use|retrain",
        help="What to do with runs in the store that other code of cclfp made, such as an earlier version: show them "
        "with a mark, or train them again in their place.",
    ),
]
EngineOption = Annotated[
    str,
    typer.Option(
        metavar="ENGINE",
        help="How to train. eager: one run after the other in plain PyTorch; compiled: many runs as one compiled "
        "program (CPU); graph: many runs in one CUDA graph. The numbers differ in rounding. auto picks what finishes "
        "first, and says which.",
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        metavar="auto|float32|tf32|bf16", help="What psi is computed in. By default tf32 on CUDA, float32 on the CPU."
    ),
]
SeedsOption = Annotated[
    str | None,
    typer.Option(
        metavar="N or A,B,...",
        help="How many seeds (5 is the seeds 0 to 4), or which (0,3,7).",
        show_default="5",
    ),
]
SeedOption = Annotated[
    int | None, typer.Option(metavar="N", help="One particular seed, instead of --seeds.", show_default=False)
]
IncludeDivergedOption = Annotated[
    bool,
    typer.Option(
        "--include-diverged",
        help="Include runs that diverged in the means. By default a mean is of the others, and says how many diverged.",
    ),
]


ForceOption = Annotated[bool, typer.Option("--force", help="Replace what is there, even if cclfp did not write it.")]


def parse_seeds(seeds: str | None, seed: int | None = None) -> int | Sequence[int]:
    """``--seeds`` and ``--seed`` as a number of seeds or a list of them; five where neither is given."""
    if seed is not None:
        if seeds is not None:
            raise InputError(f"--seeds {seeds} and --seed {seed}: expected one of the two")
        return [seed]
    if seeds is None:
        return 5
    try:
        return [int(part) for part in seeds.split(",") if part.strip()] if "," in seeds else int(seeds)
    except ValueError as error:
        raise InputError(f"--seeds {seeds!r}: expected how many (5) or which (0,3,7)") from error


def parse_names(option: str, given: str | None) -> list[str]:
    """Names that are separated by commas; none where the option is not given."""
    names = [name.strip() for name in (given or "").split(",") if name.strip()]
    if given is not None and not names:
        raise InputError(f"{option} {given!r}: expected one name or several with commas, or no {option} for all")
    return names


def parse_settings(settings: Sequence[str]) -> dict[str, list[float | str]]:
    """``NAME=VALUE`` and ``NAME=A,B`` as the values of each name."""
    parsed: dict[str, list[float | str]] = {}
    for setting in settings:
        name, equals, values = setting.partition("=")
        if not equals or not name:
            raise InputError(f"{setting!r} is not a setting: expected NAME=VALUE, such as lr=0.1 or w=0.1,0.3")
        if name in parsed:
            raise InputError(f"{name} is set twice: give all its values at once, {name}=A,B")
        if name == "augment":  # the only one that is not a number
            parsed[name] = list(values.split(","))
            continue
        try:
            parsed[name] = [float(value) for value in values.split(",")]
        except ValueError as error:
            raise InputError(f"{setting!r}: expected a number, or several with commas, after {name}=") from error
    return parsed


def parse_classes(option: str, given: str | None) -> list[str] | None:
    """Class names that are separated by commas, quoted where they contain one; None where the option is not given."""
    if given is None:
        return None
    from cclfp.core.arguments import split_names, unquote

    names = [unquote(name) for name in split_names(given)]
    if not all(names):
        raise InputError(f"{option} {given!r}: expected class names with commas between them")
    return names
