"""The paper's evaluation as data: its tables and figures, the numbers it published, and ours beside them."""

from cclfp.study.comparison import Change, Comparison, Effects, compare, effects, gather
from cclfp.study.figures import (
    TIMING_SEED,
    Figure,
    Panel,
    comparable,
    conditions,
    figures,
    gather_timings,
    run_time_cells,
)
from cclfp.study.tables import COMPONENTS, TABLES, VARIANTS, Cell, Published, cells, columns, published, rows

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
    "rows",
    "run_time_cells",
]
