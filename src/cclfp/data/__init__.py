"""Datasets: got from a source, checked against the published sums, kept as uint8 arrays under ``CCLFP_HOME``."""

from __future__ import annotations

from cclfp.data.cache import Dataset, dataset_path, fetch, import_dataset, is_cached, load_dataset, verify
from cclfp.data.sources import DATASETS, get_dataset

__all__ = [
    "DATASETS",
    "Dataset",
    "dataset_path",
    "fetch",
    "get_dataset",
    "import_dataset",
    "is_cached",
    "load_dataset",
    "verify",
]
