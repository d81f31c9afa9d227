"""The datasets by name: the published ones and the user's own images."""

from __future__ import annotations

from cclfp.data.cifar import Cifar10, Cifar100
from cclfp.data.mnist import Mnist
from cclfp.data.own import own_dataset, own_datasets
from cclfp.data.source import Source
from cclfp.data.tiny_imagenet import TinyImageNet
from cclfp.errors import unknown

DATASETS: dict[str, Source] = {source.name: source for source in (Mnist(), Cifar10(), Cifar100(), TinyImageNet())}


def get_dataset(name: str) -> Source:
    """A dataset by name: one of DATASETS, or the user's own images with that name."""
    if name in DATASETS:
        return DATASETS[name]
    if name in own_datasets():
        return own_dataset(name)
    raise unknown("dataset", str(name), DATASETS, own_datasets())


def dataset_names() -> list[str]:
    """The names of all datasets: the published ones, then the user's own images."""
    return [*DATASETS, *own_datasets()]
