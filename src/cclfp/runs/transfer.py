"""Run records from files: JSON Lines and other stores, so that runs made on one machine join the store of another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cclfp.core.files import check_output, real_file, write_atomic
from cclfp.errors import InputError
from cclfp.runs.record import Record, difference, from_line, to_line
from cclfp.runs.store import Store, is_database, refuse_conflicts


def export(records: Sequence[Record], path: Path, *, force: bool = False, inputs: Iterable[Path] = ()) -> None:
    """Write the records as JSON, one per line. ``inputs`` are the files that they come from."""
    check_output(path, has_records, force=force, inputs=inputs)
    lines = [to_line(record) for record in records]
    try:
        write_atomic(path, lambda file: file.writelines(lines))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}") from error


def has_records(head: bytes) -> bool:
    """Whether a file begins as :func:`export` begins one."""
    return head.startswith(b'{"key": "') and b'", "method": "' in head


def import_runs(paths: Sequence[Path], store: Store | Path) -> tuple[int, list[str]]:
    """Add the records of the files to the store: how many were added, and the places of those refused as duplicates.

    The files are JSON Lines or stores. A duplicate is word for word what the store has already, or another line before
    it. Nothing of the files is added where a line is no record, or differs from the record that the store or another
    line has of the same run. A store given by its path is made only when the files have been found good.
    """
    first: dict[str, tuple[str, Record]] = {}
    repeated: set[str] = set()
    places: list[str] = []
    conflicts: list[str] = []
    for place, record in (found for path in paths for found in read(path)):
        places.append(place)
        where, known = first.setdefault(record["key"], (place, record))
        if known != record:
            conflicts.append(f"{place}: {difference(record, known, where)}")
        elif where != place:
            repeated.add(place)
    if conflicts:
        raise refuse_conflicts(conflicts)
    store = Store(store) if isinstance(store, Path) else store
    repeated |= set(store.merge(list(first.values())))
    return len(places) - len(repeated), [place for place in places if place in repeated]


def read(path: Path) -> Iterator[tuple[str, Record]]:
    """The records of a file, each with its place: the file and the line, or the key in a store."""
    file, number = real_file(path), 0
    try:
        if is_database(file):
            for record in Store(path, read_only=True).records():
                yield f"{path}, key {record['key'][:8]}", record
            return
        with file.open(encoding="utf-8", newline="\n") as lines:  # no line ends at a U+2028 in a name
            for number, line in enumerate(lines, start=1):
                place = f"{path}, line {number}"
                try:
                    record = from_line(line)
                except InputError as error:
                    raise InputError(f"{place}: {error}") from error
                yield place, record
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not number:
        raise InputError(f"{path} is empty: expected a run record on every line, as cclfp runs export writes them")
