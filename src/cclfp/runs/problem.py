"""What is learned: a benchmark, the paper's or a user's own images, and how its stream and its learner are made.

Its fields, and those of :class:`Execution`, are options of the commands and keywords of the functions. The help stands
at the field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cclfp.errors import InputError

MEMORY = 200  # examples that the replay memory holds by default, as in the paper

T = TypeVar("T")


def option(default: Any, help: str, metavar: str | None = None) -> Any:
    """A field with the help and the metavar that the command shows."""
    return dataclasses.field(default=default, metadata={"help": help, "metavar": metavar})


def documented(kind: type[T]) -> type[T]:
    """The dataclass with the help of its fields in its docstring."""
    fields = [f"    {field.name}: {field.metadata['help']}\n" for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    kind.__doc__ = f"{kind.__doc__}\n\n{''.join(fields)}"
    return kind


def field_names(kind: type) -> list[str]:
    """The names of a dataclass's fields."""
    return [field.name for field in dataclasses.fields(kind)]


def from_keywords(kind: type[T], given: T | None, keywords: Mapping[str, Any]) -> tuple[T, dict[str, Any]]:
    """An instance of a dataclass, ``given`` or made of the keywords that are its fields, and the other keywords."""
    fields = {name: value for name, value in keywords.items() if name in field_names(kind)}
    argument = kind.__name__.lower()
    if given is not None and not isinstance(given, kind):
        raise InputError(f"{argument}={given!r}: expected a cclfp.{kind.__name__}")
    if given is not None and (beside := [name for name, value in fields.items() if value is not None]):
        raise InputError(f"give {', '.join(beside)} as part of {argument}, not beside it")
    others = {name: value for name, value in keywords.items() if name not in fields}
    return kind(**fields) if given is None else given, others


@documented
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
