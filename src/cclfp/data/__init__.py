"""Datasets: downloaded or imported, checked against published checksums, stored as arrays under ``CCLFP_HOME``."""

from __future__ import annotations

from cclfp.data.cache import Dataset, dataset_path, fetch, import_dataset, is_cached, load_dataset, verify
from cclfp.data.images import import_images
from cclfp.data.inventory import list_datasets, remove_dataset
from cclfp.data.own import own_datasets
from cclfp.data.sources import DATASETS, dataset_names, get_dataset

__all__ = [
    "DATASETS",
    "Dataset",
    "dataset_names",
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
