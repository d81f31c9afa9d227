"""The paper's evaluation as data: its tables and figures, the numbers it published, and ours beside them."""

from cclfp.paper.compare import Change, Effects, effects
from cclfp.paper.numbers import (
    COMPONENTS,
    FIGURES,
    PANELS,
    TABLES,
    TIMING_SEED,
    VARIANTS,
    cells,
    columns,
    describe_conditions,
    gather_timings,
    largest_comparable_group,
    published,
    published_for,
    rows,
    run_time_cells,
)
from cclfp.runs.results import Published

__all__ = [
    "COMPONENTS",
    "FIGURES",
    "PANELS",
    "TABLES",
    "TIMING_SEED",
    "VARIANTS",
    "Change",
    "Effects",
    "Published",
    "cells",
    "columns",
    "describe_conditions",
    "effects",
    "gather_timings",
    "largest_comparable_group",
    "published",
    "published_for",
    "rows",
    "run_time_cells",
]
