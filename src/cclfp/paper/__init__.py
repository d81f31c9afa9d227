"""The paper's evaluation as data: its tables and figures, the numbers it published, and ours beside them."""

from cclfp.paper.numbers import TABLES, TIMING_SEED, cells, published, published_for, run_time_cells
from cclfp.runs.results import Published

__all__ = ["TABLES", "TIMING_SEED", "Published", "cells", "published", "published_for", "run_time_cells"]
