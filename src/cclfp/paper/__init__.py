"""The paper's evaluation as data: its tables and figures, the numbers it published, and ours beside them."""

from cclfp.paper.comparison import Change, Comparison, Effects, compare, effects, gather
from cclfp.paper.figures import (
    TIMING_SEED,
    Figure,
    Panel,
    comparable,
    conditions,
    figures,
    gather_timings,
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
    "Panel",
    "Published",
    "cells",
    "columns",
    "comparable",
    "compare",
    "conditions",
    "effects",
    "figures",
    "gather",
    "gather_timings",
    "published",
    "published_for",
    "rows",
    "run_time_cells",
]
