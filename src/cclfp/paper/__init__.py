"""The paper's evaluation as data: its tables and figures, the numbers it published, and ours beside them."""

from cclfp.paper.comparison import Change, Comparison, Effects, compare, effects, gather
from cclfp.paper.figures import (
    TIMING_SEED,
    Figure,
    FigurePanel,
    describe_conditions,
    figures,
    gather_timings,
    largest_comparable_group,
    run_time_cells,
)
from cclfp.paper.tables import (
    COMPONENTS,
    TABLES,
    VARIANTS,
    Cell,
    Published,
    cells,
    columns,
    published,
    published_for,
    rows,
)

__all__ = [
    "COMPONENTS",
    "TABLES",
    "TIMING_SEED",
    "VARIANTS",
    "Cell",
    "Change",
    "Comparison",
    "Effects",
    "Figure",
    "FigurePanel",
    "Published",
    "cells",
    "columns",
    "compare",
    "describe_conditions",
    "effects",
    "figures",
    "gather",
    "gather_timings",
    "largest_comparable_group",
    "published",
    "published_for",
    "rows",
    "run_time_cells",
]
