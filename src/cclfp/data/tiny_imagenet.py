"""Tiny ImageNet: 110,000 labelled JPEG files, in an archive or a folder. Its validation set is the test set here.

The checksum covers the files, not the pixels, because JPEG decoders may differ slightly.
"""

from __future__ import annotations

import hashlib

import numpy as np

from cclfp.data.decode import decode
from cclfp.data.source import CLASSES, Arrays, ArraySpec, Files, Published
from cclfp.errors import DataError
from cclfp.events import OnEvent

# WordNet id, which is the folder's name -> name of the class, in the order of the dataset's file wnids.txt.
NAMES: dict[str, str] = CLASSES["tiny-imagenet"]
WNIDS = tuple(sorted(NAMES))  # in the order of the labels
TRAIN_PER_CLASS, TEST = 500, 10_000
ANNOTATIONS = "val/val_annotations.txt"
# Of all train/*/images/*.JPEG and val/images/*.JPEG, sorted by path: each one's path, a zero byte and its content.
SHA256 = "4ec81091d988ae70d6bf81fb28396b16ff663a2a563b48e0f1c60165d39e3fa2"


class TinyImageNet(Published):
    """The only dataset of its kind."""

    def required(self) -> list[str]:
        return [*_images(), ANNOTATIONS]

    def decode(self, files: Files, on_event: OnEvent) -> Arrays:
        digest = hashlib.sha256()
        for name in sorted(_images()):
            digest.update(name.encode() + b"\0" + files[name])
        if digest.hexdigest() != SHA256:
            raise DataError(f"{self.name}: its images are not what was published: sha256 {digest.hexdigest()}")
        labels = _test_labels(files.pop(ANNOTATIONS))
        train, test = (np.empty(self.arrays[f"{part}_images"].shape, np.uint8) for part in ("train", "test"))
        # The content of each file is freed as soon as it is decoded.
        contents = ((name, files.pop(name)) for name in _images())
        for row, image in decode(contents, len(files), on_event, f"{self.name}: decoding"):
            part, place = (train, row) if row < len(train) else (test, row - len(train))
            part[place] = image.pixels.transpose(2, 0, 1)
        return {
            "train_images": train,
            "train_labels": np.repeat(np.arange(len(WNIDS), dtype=np.uint8), TRAIN_PER_CLASS),
            "test_images": test,
            "test_labels": labels,
        }


def _images() -> list[str]:
    """The files of the images: first those for training, then those for testing."""
    train = [f"train/{wnid}/images/{wnid}_{number}.JPEG" for wnid in WNIDS for number in range(TRAIN_PER_CLASS)]
    return [*train, *(f"val/images/val_{number}.JPEG" for number in range(TEST))]


def _test_labels(annotations: bytes) -> np.ndarray:
    """The labels from the annotations. Each line has a file, its WordNet id and the box around the object."""
    lines = (line.split("\t") for line in annotations.decode("latin1").splitlines())
    try:
        wnids = {file: wnid for file, wnid, *_ in lines}
        return np.array([WNIDS.index(wnids[f"val_{number}.JPEG"]) for number in range(TEST)], np.uint8)
    except (KeyError, ValueError) as error:
        raise DataError(f"{ANNOTATIONS} does not name the class of each image: {error}") from error


TINY_IMAGENET = TinyImageNet(
    name="tiny-imagenet",
    title="Tiny ImageNet (Stanford CS231n): 100,000 + 10,000 photographs, 64×64, 200 classes",
    classes=tuple(NAMES[wnid] for wnid in WNIDS),
    class_orders={"wnids": tuple(WNIDS.index(wnid) for wnid in NAMES)},
    mean=(0.4802, 0.4481, 0.3975),
    std=(0.2764, 0.2689, 0.2816),
    mirrors=("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
    md5="90528d7ca1a48142e341f4ef8d21d0de",
    folder="tiny-imagenet-200",
    arrays={
        "train_images": ArraySpec((100_000, 3, 64, 64), None),
        "train_labels": ArraySpec((100_000,), "ea210d0631a1703a399d3ce6b0385a74205edbc55b873e2ad7d7fff6dd1bd8e3"),
        "test_images": ArraySpec((10_000, 3, 64, 64), None),
        "test_labels": ArraySpec((10_000,), "a6d0aa8d4df540f2af8c5506c471ed46dafa4e874e00f46cc8000022336ccfd4"),
    },
)
