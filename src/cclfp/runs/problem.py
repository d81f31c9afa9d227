"""What is learned: a benchmark, the paper's or a user's own images, and how its stream and its learner are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cclfp.runs.fields import option

MEMORY = 200  # examples that the replay memory holds by default, as in the paper


@dataclasses.dataclass(frozen=True)
class Problem:
    """All that a run depends on, except the method, its settings and the seed: a benchmark or images, and the rest."""

    benchmark: str | None = option(None, "A benchmark (cclfp list benchmarks), unless --images is given.", "BENCHMARK")
    images: Path | None = option(
        None,
        "Images of your own in place of a benchmark: a folder of class folders, or arrays train_images, train_labels, "
        "test_images, test_labels.",
        "FOLDER|FILE.npz",
    )
    image_size: int | None = option(None, "Make all of --images this large, square.", "PIXELS")
    split_seed: int | None = option(
        None, "Draws which fifth of each class folder of --images becomes the test set; 0 by default."
    )
    classes: Sequence[str] | None = option(
        None, 'Only these classes of --images; "A,B" is one with a comma.', "A,B,..."
    )
    skip_bad: bool = option(False, "Leave out the --images that cannot be decoded, and list them.")
    tasks: int | None = option(None, "How many tasks the classes are split into.")
    class_order: str | Sequence[Any] | None = option(
        None,
        "The order classes come in, by name or number; A,B/C,D says which classes each task has. Quotes keep a comma "
        "or a slash inside a name. By default the first that cclfp show BENCHMARK names.",
        "A,B,...|random",
    )
    backbone: str | None = option(
        None,
        "The network: mlp, resnet18, or resnet18:width=16, a narrow one; a function of your own, in a file that stands "
        "alone, takes an image's shape and gives a module. By default the benchmark's.",
        "NAME|FILE.py:NAME",
    )
    scenario: str | None = option(
        None,
        "Which classes a prediction may choose from: those seen so far, its task's, or all. By default the first that "
        "cclfp list benchmarks names.",
        "class|task|domain",
    )
    memory: int = option(MEMORY, "How many examples the memory holds.")
    validation: bool = option(
        False,
        "Hold a tenth of the training images out and test on them, not on the test set: to choose hyperparameters.",
    )
    max_classes: int | None = option(
        None, "Make room for N classes in all, so that cclfp observe can teach a saved learner new ones.", "N"
    )

    @property
    def name(self) -> str:
        """The benchmark and the scenario."""
        return f"{self.benchmark} ({self.scenario})"
