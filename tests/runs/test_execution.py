"""How runs are trained: what an execution takes, and options that are misspelt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cclfp
from cclfp.errors import InputError
from cclfp.runs.execution import Execution
from cclfp.runs.store import default_store


def test_it_takes_strings_none_and_numpy(tmp_path: Path) -> None:
    made: Any = {"store": str(tmp_path / "a.sqlite"), "save": str(tmp_path), "threads": np.int64(1)}
    execution = Execution(**made | {"checkpoint_every": np.float32(3)})
    assert (execution.store, execution.save) == (tmp_path / "a.sqlite", tmp_path)
    assert type(execution.threads) is int
    nothing: Any = None
    assert Execution(store=nothing).store == default_store()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"engine": None}, "unknown engine 'None'"),
        ({"engine": "graph", "device": "cpu"}, "engine graph is for device cuda"),
        ({"device": "tpu"}, "device 'tpu'"),
        ({"precision": "bf16", "device": "cpu"}, "precision bf16 needs a CUDA device"),
        ({"threads": 0}, "threads=0: expected a whole number, 1 or more"),
        ({"threads": 10_000}, "threads=10000: this process may use"),
        ({"fresh": "no"}, "fresh='no': expected True or False"),
        ({"other_code": "keep"}, "unknown other_code 'keep'"),
        ({"checkpoint_every": -1}, "checkpoint_every=-1: expected a number of seconds"),
        ({"checkpoint_every": float("nan")}, "checkpoint_every=nan: expected a number of seconds"),
        *(
            ({"shard": wrong}, f"shard='{wrong}': expected I/N with I from 1 to N")
            for wrong in ("", "1", "0/3", "4/3", "1/0", "-1/3", "1/2/3", "a/b", "1.0/2", "1/999999999")
        ),
    ],
)
def test_wrong_values_are_refused_at_once(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Execution(**wrong)


def test_a_misspelt_option_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown setting of er 'engin'. Did you mean 'engine'"):
        cclfp.run("er", "split-mnist", engin="eager")
    with pytest.raises(InputError, match="unknown setting of er 'engine'.*Known: lr, batch, replay, epochs, augment$"):
        cclfp.run("er", "split-mnist", settings={"engine": "eager"})  # as the command gives NAME=VALUE
    with pytest.raises(InputError, match="unknown option 'engin'. Did you mean 'engine'"):
        cclfp.study("accuracy", engin="eager")
    with pytest.raises(InputError, match="unknown setting of er 'engin'. Did you mean 'engine'"):
        cclfp.tune("er", "split-mnist", engin="eager")
    with pytest.raises(InputError, match="give engine as part of execution, not beside it"):
        cclfp.run("er", "split-mnist", engine="eager", execution=Execution())
    wrong: Any = {"engine": "eager"}
    with pytest.raises(InputError, match=r"expected a cclfp\.Execution"):
        cclfp.run("er", "split-mnist", execution=wrong)


@pytest.mark.usefixtures("small_mnist")
def test_a_study_from_python(tmp_path: Path) -> None:
    options: Any = {"engine": "eager", "store": tmp_path / "runs.sqlite"}
    found = cclfp.study("accuracy", benchmarks="split-mnist", methods=["finetune"], seeds=1, **options)
    assert [(r.configuration.method, r.column[1], len(r.runs)) for r in found] == [
        ("finetune", "class", 1),
        ("finetune", "task", 1),
    ]
    assert all(r.mean is not None and r.published and r.difference == r.mean - r.published.mean for r in found)
    with pytest.raises(InputError, match="run times are not compared"):
        cclfp.study("runtime")
