"""Datasets on their way to another machine: the arrays with their checksums, checked again where they arrive."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from cclfp.data.cache import fetch, store
from cclfp.data.own import OwnImages
from cclfp.data.source import Arrays, sha256_of
from cclfp.data.sources import DATASETS
from cclfp.data.stored import ABOUT, map_arrays, read_checksums, read_json
from cclfp.errors import DataError


@dataclasses.dataclass(frozen=True)
class Parcel:
    """A stored dataset; ``about`` describes a user's own images, which other machines know nothing of."""

    name: str
    arrays: Arrays
    checksums: dict[str, str]
    about: dict[str, Any] | None


def pack(name: str) -> Parcel:
    """The dataset as this machine stores it, with the checksums of the time when it was stored."""
    fetch(name)
    stored = read_checksums(name) or {}
    arrays = {array: np.ascontiguousarray(values) for array, values in map_arrays(name).items()}  # no memory maps
    checksums = {array: stored.get(array) or sha256_of(values) for array, values in arrays.items()}
    return Parcel(name, arrays, checksums, None if name in DATASETS else read_json(name, ABOUT))


def unpack(parcel: Parcel) -> None:
    """Store a dataset that has arrived, unless another process has stored it in the meantime.

    The arrays may be read-only. They are compared with their checksums, and with the published ones where there are
    any.
    """
    for array, values in parcel.arrays.items():
        if sha256_of(values) != parcel.checksums[array]:
            text = f"{parcel.name}: {array} does not match its checksum"
            raise DataError(f"{text}: it was damaged on the driver's machine or on its way from there")
    source = DATASETS[parcel.name] if parcel.about is None else OwnImages(parcel.about)
    more = {} if parcel.about is None else {ABOUT: parcel.about}
    store(source, parcel.arrays, more, replace=False)
