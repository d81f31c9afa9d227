"""Images of a user's own: from folders and .npz files to runs, and what is refused."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from PIL import Image
from samples import CLASSES, arrays, imported, npz, photos, picture, refused
from training import texts

import cclfp
from cclfp.data import import_images, load_dataset, own_datasets, verify
from cclfp.data.folders import choose_classes, read_images
from cclfp.errors import DataError, InputError
from cclfp.events import Event, ignore
from cclfp.paper import published_for
from cclfp.runs.settings import configurations, find_preset
from cclfp.streams import BENCHMARKS, get_benchmark

# -- folders ------------------------------------------------------------------------------------------------------


def test_a_folder_of_class_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, events = photos(tmp_path / "My photos.v2"), list[Event]()
    name = import_images(folder, on_event=events.append)
    assert name.startswith("my-photos-v2-")
    assert own_datasets() == [name]
    assert texts(events) == [f"{name}: 4 classes, 32 training and 8 test images, split with seed 0"]
    verify(name)
    data = load_dataset(name)
    assert data.classes == CLASSES
    assert data.train_images.shape == (32, 3, 10, 12)
    assert data.train_labels.bincount().tolist() == [8] * 4
    assert data.test_labels.bincount().tolist() == [2] * 4
    ours = {
        (int(y), x.numpy().tobytes())
        for images, labels in ((data.train_images, data.train_labels), (data.test_images, data.test_labels))
        for x, y in zip(images, labels, strict=True)
    }
    theirs = {(c, np.asarray(picture(100 * c + i)).transpose(2, 0, 1).tobytes()) for c in range(4) for i in range(10)}
    assert ours == theirs
    monkeypatch.chdir(folder)
    assert import_images(".", on_event=events.append) == name
    assert "has not changed since it was imported" in texts(events)[-1]


@pytest.mark.slow
def test_others_get_another_name(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    name = import_images(folder)
    assert import_images(photos(tmp_path / "elsewhere" / "photos"), split_seed=0) == name  # the default
    other = import_images(folder, split_seed=1)
    assert not np.array_equal(load_dataset(name).test_images.numpy(), load_dataset(other).test_images.numpy())
    names = {name, other, import_images(folder, size=8)}
    picture(999).save(folder / "cat" / "0.png")
    names.add(import_images(folder))
    assert len(names) == 4
    assert sorted(names) == own_datasets()


@pytest.mark.parametrize("test", ["test", "val"])
def test_train_and_test_folders_are_taken_as_they_are(test: str, tmp_path: Path) -> None:
    photos(tmp_path / "data" / "train", each=3)
    photos(tmp_path / "data" / test, each=1)
    data = imported(tmp_path / "data")
    assert (len(data.train_labels), len(data.test_labels)) == (12, 4)
    refused(tmp_path / "data", "a split seed does not apply to it", split_seed=1)
    (tmp_path / "data" / "other").mkdir()
    refused(tmp_path / "data", f"data has other, .*{test}.*: expected class folders, or only train and test")


def test_other_formats_folders_and_files(tmp_path: Path) -> None:
    folder, events = photos(tmp_path / "photos", each=3, mode="L"), list[Event]()
    assert imported(folder).train_images.shape == (8, 1, 10, 12)  # all are grey
    (folder / "cat" / "more").mkdir()
    picture(7).save(folder / "cat" / "more" / "a.BMP")
    picture(8).save(folder / "dog" / "b.jpeg")
    picture(9, mode="RGBA").save(folder / "dog" / "c.webp")
    (folder / "cat" / "notes.txt").write_text("hello")
    picture(9).save(folder / "beside.png")
    (folder / "cat" / ".DS_Store").write_text("")
    name = import_images(folder, on_event=events.append)
    data = load_dataset(name)
    assert len(data.train_labels) + len(data.test_labels) == 15
    assert data.train_images.shape[1:] == (3, 10, 12)
    assert "photos: left out beside.png, cat/notes.txt" in texts(events)
    for ignored in ("__MACOSX", ".cache", "cat/.thumbnails", "cat/__MACOSX"):
        (folder / ignored).mkdir()
        picture(1).save(folder / ignored / "1.png")
    assert import_images(folder, on_event=events.append) == name
    assert "photos: left out .cache, __MACOSX, beside.png and 3 more" in texts(events)


def test_classes_that_are_the_same_by_mistake_are_told(tmp_path: Path) -> None:
    folder, events = photos(tmp_path / "photos", each=2), list[Event]()
    names = ("Ox", "caf\u00e9", "cafe\u0301")  # e with an accent, in one character and in two
    for name in names:
        (folder / name).mkdir()
        for number in (1, 2):
            picture(number).save(folder / name / f"{number}.png")
    (folder / "all").symlink_to("..")
    same = "these classes differ only by case or Unicode form"
    import_images(folder, on_event=events.append)
    assert f"photos: {same}: Ox and ox, cafe\u0301 and caf\u00e9" in texts(events)
    assert "photos: the class all is a link to the whole folder" in texts(events)
    import_images(npz(tmp_path / "mine.npz", **arrays(labels=["cat", "Cat", "dog", "ox"])), on_event=events.append)
    assert f"mine.npz: {same}: Cat and cat" in texts(events)


def test_sizes(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    picture(7, (40, 20)).save(folder / "ox" / "3.png")
    refused(folder, r"different sizes \(Bird/0.png is 12×10, ox/3.png is 40×20\).*--image-size")
    assert imported(folder, size=8).train_images.shape == (32, 3, 8, 8)


def test_classes_that_are_numbers_are_in_their_order_and_chosen_by_name(tmp_path: Path, cli: Cli) -> None:
    for c in (10, 2, 1):
        (tmp_path / "numbers" / str(c)).mkdir(parents=True)
        for i in range(2):
            picture(10 * c + i).save(tmp_path / "numbers" / str(c) / f"{i}.png")
    assert imported(tmp_path / "numbers").classes == ("1", "2", "10")
    name = import_images(npz(tmp_path / "mine.npz", **arrays(labels=[1, 2, 3, 10])))  # numbers of other classes
    assert load_dataset(name).classes == ("1", "2", "3", "10")
    tasks = cli("show", name, "--class-order", "10,2/1,3", "--json").json["tasks"]
    assert tasks == [["10", "2"], ["1", "3"]]
    benchmark = get_benchmark(name)
    order, sizes = benchmark.split_into(None, "10,2/1,3")
    assert (order, sizes) == ((3, 1, 0, 2), (2, 2))
    assert benchmark.stream("class", 0, order, sizes).classes == [[3, 1], [0, 2]]
    assert benchmark.split_into(2, [3, 1, 0, 2]) == ((3, 1, 0, 2), (2, 2))  # numbers that are no text are ids
    for bad in ((2,), (3, 3), (0, 4), ()):
        with pytest.raises(InputError, match="each of the 4 classes once, and how many of them each task has"):
            benchmark.stream("class", 0, sizes=bad)


@pytest.mark.slow
def test_folders_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    refused(tmp_path / "empty", "expected folders of images, one per class, and found none")
    refused(tmp_path / "nowhere", "nowhere does not exist: expected a folder of class folders, or an .npz file")
    (tmp_path / "a.txt").write_text("")
    refused(tmp_path / "a.txt", "expected a folder of class folders, or an .npz file")
    folder = photos(tmp_path / "photos", each=2)
    refused(folder, "image size=0", size=0)
    refused(folder, "split seed=-1", split_seed=-1)
    for file in (folder / "ox").iterdir():
        file.write_bytes(b"not a picture")
    refused(folder, "no train images of ox and no test images of ox", skip_bad=True)
    for file in folder.glob("*/*.png"):
        file.write_bytes(b"not a picture")
    refused(folder, "no train images of Bird, cat, dog and 1 more", skip_bad=True)
    (folder / "emu").mkdir()
    picture(1).save(folder / "emu" / "1.png")
    refused(folder, "emu has 1 image: expected at least two")
    photos(tmp_path / "data" / "train", each=2)
    test = photos(tmp_path / "data" / "test", each=2)
    for file in (test / "dog").iterdir():
        file.unlink()
    (test / "cat").rename(test / "lynx")
    refused(tmp_path / "data", "no train images of lynx and no test images of cat, dog; --classes A,B,... takes only")
    refused(photos(tmp_path / "one"), "at least two classes, and found only cat", classes=["cat"])
    for option in ({"size": 3}, {"split_seed": 3}):
        refused(npz(tmp_path / "good.npz"), "is an .npz: size and split seed do not apply to it", **option)


def test_images_that_cannot_be_read_are_left_out_or_listed_at_once(tmp_path: Path) -> None:
    folder, events = photos(tmp_path / "photos"), list[Event]()
    clean = import_images(folder)
    unreadable, undecodable = ["cat/a.png", "cat/b.png", "dog/c.png"], ["cat/4.png", "dog/1.png"]
    (folder / "cat" / "a.png").symlink_to("nothing.png")
    (folder / "cat" / "b.png").symlink_to("b.png")
    os.mkfifo(folder / "dog" / "c.png")

    def listed(text: str, count: int) -> list[str]:
        title, *lines = text.splitlines()
        assert f"{count} images" in title
        return [line.split()[0] for line in lines]

    with pytest.raises(DataError, match=r"photos: 3 images cannot be decoded \(--skip-bad leaves") as raised:
        import_images(folder)
    assert listed(str(raised.value), 3) == unreadable
    assert import_images(folder, skip_bad=True, on_event=events.append) == clean  # they are not there
    files = [folder / name for name in ("dog/c.png", "cat/0.png", "cat/a.png")]
    with pytest.raises(DataError, match="not a regular file"):
        read_images(files, (3, 10, 12), ignore)
    images, places = read_images(files, (3, 10, 12), ignore, skip_bad=True)
    assert (images.shape, places) == ((1, 3, 10, 12), [1])
    for name in undecodable:
        (folder / name).write_bytes(b"not a picture")
    data = imported(folder, skip_bad=True, on_event=events.append)
    assert len(data.train_labels) + len(data.test_labels) == 38
    notes = [line for line in texts(events) if "left out" in line]
    assert [listed(notes[0], 3), listed(notes[-1], 2)] == [unreadable, undecodable]


def test_a_subset_of_the_classes(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    name = import_images(folder, classes=["dog", "cat"])
    data = load_dataset(name)
    assert data.classes == ("cat", "dog")
    assert (len(data.train_labels), len(data.test_labels)) == (16, 4)
    assert name not in (import_images(folder), import_images(folder, classes=["dog", "ox"]))
    assert name == import_images(folder, classes=["cat", "dog"])
    refused(folder, "unknown class of photos 'dogs'. Did you mean 'dog'?", classes=["cat", "dogs"])
    many = [f"class {number}" for number in range(1000)]
    with pytest.raises(InputError, match="unknown class of many 'clas 999'. Did you mean 'class 999'") as raised:
        choose_classes("many", many, ["clas 999"], lambda event: None)
    assert len(str(raised.value)) < 500  # not all of them
    path, given = npz(tmp_path / "mine.npz"), arrays()
    name = import_images(path, classes=["9", "5"])
    data = load_dataset(name)
    assert data.classes == ("5", "9")
    assert name != import_images(path)
    kept = np.isin(given["train_labels"], [5, 9])
    assert np.array_equal(data.train_images.numpy().transpose(0, 2, 3, 1), given["train_images"][kept])
    assert data.train_labels.tolist() == [0, 1] * 10


# -- in use -------------------------------------------------------------------------------------------------------


def test_run_on_own_images(cli: Cli, tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", size=(16, 16))
    options = ("--tasks", "2", "--seeds", "1", "--backbone", "mlp", "augment=on", "lr=0.05")
    answer = cli("run", "er", "--images", folder, *options)
    assert answer.code == 0
    assert re.search(r"photos-.*, class-incremental", answer.out.splitlines()[0])
    assert "split with seed 0" in answer.err
    (name,) = own_datasets()
    order = "ox,dog/Bird,cat"
    answer = cli("run", "er", name, "--class-order", order, "--seeds", "1", "--backbone", "mlp", "--json")
    (configuration,) = answer.json["configurations"]
    assert configuration["benchmark"] == name
    assert (configuration["class_order"], configuration["tasks"]) == ([3, 2, 0, 1], [2, 2])
    assert (configuration["hyperparameters"]["lr"], configuration["augment"]) == (0.03, False)
    assert len(configuration["runs"][0]["accuracy_matrix"]) == 3
    assert "how many tasks? photos-" in cli("run", "er", "--images", folder).err
    assert name in cli("list", "benchmarks").out
    assert "verified" in cli("data", "verify", name).out


def test_the_python_call_is_as_short(tmp_path: Path) -> None:
    file = npz(tmp_path / "mine.npz", **arrays((10, 10, 3)))
    (result,) = cclfp.run("er", images=file, tasks=2, backbone="resnet18:width=2", seeds=1)
    assert result.configuration.tasks == (2, 2)
    assert published_for(result.configuration) is None
    with pytest.raises(InputError, match="a benchmark .* or images of your own, one of the two"):
        cclfp.run("er", "split-mnist", images=tmp_path / "mine.npz", tasks=2)
    with pytest.raises(InputError, match="image_size can be given with images of your own only: give images too"):
        cclfp.run("er", "split-mnist", image_size=3)
    for odd in (5, b"photos", ""):
        with pytest.raises(InputError, match="--images .*: expected a folder of class folders"):
            cclfp.run("er", images=odd, tasks=2)
    with pytest.raises(InputError, match=r"resnet18 takes images of 9×9 pixels or more, not 3×8×8: try mlp"):
        cclfp.run("er", images=npz(tmp_path / "small.npz"), tasks=2, seeds=1)


def test_show_and_similar_names(cli: Cli, tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    (folder / "cat").rename(folder / "cat, [red]tabby")
    name, far = import_images(folder), import_images(npz(tmp_path / "scans.npz"))
    for command in ("run er", "show", "data path", "runs --benchmark"):
        error = cli(*command.split(), "photo-1").err
        assert f"Did you mean '{name}'?" in error
        assert far not in error
    assert "Bird, cat, [red]tabby, dog, ox" in cli("show", name).out
    groups = [["Bird", "cat, [red]tabby"], ["dog", "ox"]]
    assert cli("show", name, "--tasks", "2", "--json").json["tasks"] == groups
    drawn = ("--images", tmp_path / "mine.png")
    assert cli("show", name, "--class-order", 'Bird,"cat, [red]tabby"/dog,ox', *drawn, "--json").json["tasks"] == groups
    with Image.open(tmp_path / "mine.png") as page:
        assert min(page.size) > 300
    answer = cli("show", name, "--images", tmp_path / "new" / "tasks.png")
    assert answer.code == 2
    assert "new does not exist" in answer.err
    assert not (tmp_path / "new").exists()


# -- defaults -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "backbone", "augment"),
    [
        ((32, 40, 3), None, True),
        ((32, 32, 3), "own.py:make", True),
        ((32, 32, 3), "resnet18:width=16", True),
        ((32, 32, 3), "mlp", False),
        ((32, 32, 1), None, False),
        ((31, 40, 3), None, False),
        ((28, 28), "mlp", False),
    ],
)
def test_crops_and_flips_are_on_only_where_they_help(
    shape: tuple[int, ...], backbone: str | None, augment: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    convolution = "nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.Flatten())"
    (tmp_path / "own.py").write_text(f"from torch import nn\ndef make(shape): return {convolution}\n")
    monkeypatch.chdir(tmp_path)
    name = import_images(npz(tmp_path / "mine.npz", **arrays(shape)))
    (chosen,) = configurations(["er"], name, tasks=2, backbone=backbone)
    assert chosen.augment is augment
    assert chosen.hyperparameters == {"lr": 0.03}
    for given in (True, False):
        (chosen,) = configurations(["er"], name, tasks=2, backbone=backbone, settings={"augment": [given]})
        assert chosen.augment is given


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_published_benchmarks_keep_their_defaults(benchmark: str) -> None:
    (chosen,) = configurations(["finetune"], benchmark, backbone="mlp")
    preset = find_preset("finetune", benchmark, chosen.scenario)
    assert chosen.augment == (preset.augment if preset is not None else "cifar" in benchmark)
