"""Tasks and classes that a learner was not made for: they take the free rows of its classifier."""

from __future__ import annotations

from collections.abc import Sequence

from cclfp.core.arguments import check_names, check_whole
from cclfp.errors import InputError
from cclfp.learner.trainer import Trainer


def add_task(trainer: Trainer, classes: Sequence[int | str]) -> int:
    """Declare one more task of these classes, by name or number, and return its id. Nothing changes if it is refused.

    Where tasks are not declared, its classes count as seen once they are observed.
    """
    if isinstance(classes, str) or not classes:
        raise InputError(f"classes={classes!r}: expected at least one class of the task, by name or number")
    names = add_names(trainer, [c for c in classes if isinstance(c, str)])
    rows = {name: row for row, name in enumerate(names or ())}
    numbers = [rows[c] if isinstance(c, str) else check_whole("class", c, at_least=0) for c in classes]
    if max(numbers) >= trainer.settings.num_classes:
        raise InputError(f"class {max(numbers)} is out of range: classes are 0 to {trainer.settings.num_classes - 1}")
    task = len(trainer.classes.classes_of)
    if trainer.classes.declared:
        trainer.classes = trainer.classes.with_task(numbers)
    trainer.class_names = names
    return task


def add_names(trainer: Trainer, names: Sequence[str]) -> tuple[str, ...] | None:
    """The names of the learner's classes followed by those of these that are new. The learner stays as it is."""
    known = trainer.class_names
    if not names:
        return known
    if known is None:
        raise InputError("this learner has no class names, so a class cannot be given by name: give its number")
    new = [name for name in dict.fromkeys(names) if name not in known]
    free = trainer.settings.num_classes - len(known)
    if len(new) > free:
        raise InputError(
            f"there is no room for the new class{'es' if len(new) > 1 else ''} {', '.join(new)}: the learner has "
            f"{len(known)} classes and room for {free} more; cclfp run --max-classes reserves room"
        )
    return check_names([*known, *new], trainer.settings.num_classes)
