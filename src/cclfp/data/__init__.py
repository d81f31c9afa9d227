"""Datasets: downloaded or imported, checked against published checksums, stored as arrays under ``CCLFP_HOME``."""

from __future__ import annotations

from cclfp.data.datasets import (
    Dataset,
    dataset_path,
    fetch,
    get_dataset,
    import_dataset,
    is_cached,
    list_datasets,
    load_dataset,
    own_datasets,
    remove_dataset,
    verify,
)
from cclfp.data.formats import DATASETS
from cclfp.data.images import import_images

__all__ = [
    "DATASETS",
    "Dataset",
    "dataset_path",
    "fetch",
    "get_dataset",
    "import_dataset",
    "import_images",
    "is_cached",
    "list_datasets",
    "load_dataset",
    "own_datasets",
    "remove_dataset",
    "verify",
]
