"""The datasets by name."""

from __future__ import annotations

from cclfp.data.cifar import Cifar10, Cifar100
from cclfp.data.mnist import Mnist
from cclfp.data.own import own_dataset, own_datasets
from cclfp.data.source import Source
from cclfp.data.tiny_imagenet import TinyImageNet
from cclfp.errors import unknown

DATASETS: dict[str, Source] = {source.name: source for source in (Mnist(), Cifar10(), Cifar100(), TinyImageNet())}


def get_dataset(name: str) -> Source:
    """A dataset by name: one of DATASETS, or the images of a user's own that are kept under that name."""
    if name in DATASETS:
        return DATASETS[name]
    if name in own_datasets():
        return own_dataset(name)
    raise unknown("dataset", str(name), dataset_names())


def dataset_names() -> list[str]:
    """All there are: the published ones, then the images of a user's own."""
    return [*DATASETS, *own_datasets()]
