"""Tiny ImageNet: 110,000 labelled JPEG files, in an archive or a folder. Its validation set is the test set here.

The checksums cover the files, not the pixels, because JPEG decoders may differ slightly.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping

import numpy as np

from cclfp.data.archives import Archive, ArchivedSource, Files
from cclfp.data.decode import decode
from cclfp.data.source import CLASSES, Arrays, ArraySpec, abbreviate
from cclfp.errors import DataError
from cclfp.events import OnEvent

# WordNet id, which is the folder's name -> name of the class, in the order of the dataset's file wnids.txt.
TINY_IMAGENET: dict[str, str] = CLASSES["tiny-imagenet"]
WNIDS = tuple(sorted(TINY_IMAGENET))  # in the order of the labels
TRAIN_PER_CLASS, TEST = 500, 10_000
ANNOTATIONS = "val/val_annotations.txt"
# Of all train/*/images/*.JPEG and val/images/*.JPEG, sorted by path: each one's path, a zero byte and its content.
SHA256 = "4ec81091d988ae70d6bf81fb28396b16ff663a2a563b48e0f1c60165d39e3fa2"


class TinyImageNet(ArchivedSource):
    name = "tiny-imagenet"
    title = "Tiny ImageNet (Stanford CS231n): 100,000 + 10,000 photographs, 64×64, 200 classes"
    classes = tuple(TINY_IMAGENET[wnid] for wnid in WNIDS)
    class_orders: Mapping[str, tuple[int, ...]] = {"wnids": tuple(WNIDS.index(wnid) for wnid in TINY_IMAGENET)}
    mean = (0.4802, 0.4481, 0.3975)
    std = (0.2764, 0.2689, 0.2816)
    archive = Archive(
        url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        md5="90528d7ca1a48142e341f4ef8d21d0de",
        size=248_100_043,
        folder="tiny-imagenet-200",
    )
    expected = "the archive tiny-imagenet-200.zip, or the folder tiny-imagenet-200 that is in it"
    arrays: Mapping[str, ArraySpec] = {
        "train_images": ArraySpec((100_000, 3, 64, 64), None),
        "train_labels": ArraySpec((100_000,), "ea210d0631a1703a399d3ce6b0385a74205edbc55b873e2ad7d7fff6dd1bd8e3"),
        "test_images": ArraySpec((10_000, 3, 64, 64), None),
        "test_labels": ArraySpec((10_000,), "a6d0aa8d4df540f2af8c5506c471ed46dafa4e874e00f46cc8000022336ccfd4"),
    }

    def required(self) -> list[str]:
        return [*_train_files(), *_test_files(), ANNOTATIONS]

    def decode(self, files: Files, origin: str, on_event: OnEvent) -> Arrays:
        _check_files(files, origin)
        labels = _test_labels(files.pop(ANNOTATIONS), f"{origin}: {ANNOTATIONS}")
        names = [*_train_files(), *_test_files()]
        count = len(names) - TEST
        train = np.empty(self.arrays["train_images"].shape, np.uint8)
        test = np.empty(self.arrays["test_images"].shape, np.uint8)
        # The content of each file is freed as soon as it is decoded.
        contents = ((name, files.pop(name)) for name in names)
        decoded = decode(contents, len(names), on_event, f"{self.name}: decoding", formats=("JPEG",))
        with contextlib.closing(decoded) as images:
            for row, (name, image) in enumerate(zip(names, images, strict=True)):
                part, place = (train, row) if row < count else (test, row - count)
                if image.pixels.shape[:2] != part.shape[2:]:
                    raise DataError(f"{origin}: {name} is {image.pixels.shape[1]}×{image.pixels.shape[0]}, not 64×64")
                part[place] = image.pixels.transpose(2, 0, 1)
        return {
            "train_images": train,
            "train_labels": np.repeat(np.arange(len(WNIDS), dtype=np.uint8), TRAIN_PER_CLASS),
            "test_images": test,
            "test_labels": labels,
        }


def _train_files() -> list[str]:
    return [f"train/{wnid}/images/{wnid}_{number}.JPEG" for wnid in WNIDS for number in range(TRAIN_PER_CLASS)]


def _test_files() -> list[str]:
    return [f"val/images/val_{number}.JPEG" for number in range(TEST)]


def _check_files(files: Files, origin: str) -> None:
    digest = hashlib.sha256()
    for name in sorted([*_train_files(), *_test_files()]):
        digest.update(name.encode() + b"\0" + files[name])
    if digest.hexdigest() != SHA256:
        raise DataError(
            f"{origin}: its images are not what was published: sha256 {digest.hexdigest()}, not {SHA256}. "
            "Nothing of it was kept"
        )


def _test_labels(annotations: bytes, origin: str) -> np.ndarray:
    """The labels from the annotations. Each line has a file, its WordNet id and the box around the object."""
    ids = {wnid: number for number, wnid in enumerate(WNIDS)}
    lines = (line.split("\t") for line in annotations.decode("latin1").splitlines())
    labels = {file: ids[wnid] for file, wnid, *_ in (line for line in lines if len(line) > 1) if wnid in ids}
    names = [name.removeprefix("val/images/") for name in _test_files()]
    if missing := [name for name in names if name not in labels]:
        raise DataError(f"{origin} has no known class for {abbreviate(missing)}")
    return np.array([labels[name] for name in names], np.uint8)
