"""Fashion-MNIST as images for cclfp: python examples/fashion_mnist.py FOLDER [--each N]

FOLDER has the four published files, such as train-images-idx3-ubyte.gz. The current folder gets

fashion.npz   all images, 60,000 for training and 10,000 for testing, with the names of their classes; with --each N
              only the first N training images of each class
more/         1,000 training images of each of the last two classes, as PNG files in a folder per class
new/          one test image of each class, as PNG files
"""

import argparse
import gzip
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ["t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot"]
MORE = 1000  # images of each class in more/


def read(path, header):
    """The bytes of a file after its header."""
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def load(folder, part):
    """The images and the class names of one part: train or t10k."""
    images = read(folder / f"{part}-images-idx3-ubyte.gz", header=16).reshape(-1, 28, 28)
    return images, np.array(CLASSES)[read(folder / f"{part}-labels-idx1-ubyte.gz", header=8)]


def save_images(images, folder):
    """Write images as PNG files: 0.png, 1.png, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number}.png")


def first(names, each):
    """The places of the first images of each class."""
    return np.sort(np.concatenate([np.flatnonzero(names == name)[:each] for name in CLASSES]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the folder of the four published files")
    parser.add_argument("--each", type=int, default=None, metavar="N", help="only so many training images per class")
    arguments = parser.parse_args()
    train, train_names = load(arguments.folder, "train")
    test, test_names = load(arguments.folder, "t10k")
    rows = first(train_names, arguments.each)
    train, train_names = train[rows], train_names[rows]
    np.savez("fashion.npz", train_images=train, train_labels=train_names, test_images=test, test_labels=test_names)
    for name in CLASSES[-2:]:
        save_images(train[train_names == name][:MORE], Path("more", name))
    Path("new").mkdir(exist_ok=True)
    for name in CLASSES:
        Image.fromarray(test[test_names == name][0]).save(Path("new", f"{name}.png"))
    print(f"fashion.npz: {len(train):,} training and {len(test):,} test images of {len(CLASSES)} classes")


if __name__ == "__main__":
    main()
