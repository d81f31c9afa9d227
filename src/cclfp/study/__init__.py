"""The paper's evaluation as data: its tables and figures, the numbers it published, and ours beside them."""

from cclfp.study.comparison import Comparison, compare, gather
from cclfp.study.figures import Figure, Panel, figures
from cclfp.study.tables import TABLES, VARIANTS, Cell, Published, cells, columns, published, rows

__all__ = [
    "TABLES",
    "VARIANTS",
    "Cell",
    "Comparison",
    "Figure",
    "Panel",
    "Published",
    "cells",
    "columns",
    "compare",
    "figures",
    "gather",
    "published",
    "rows",
]
