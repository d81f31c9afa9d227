"""What a run is trained with, and its form in files."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cclfp.engine.choice import DEVICES, ENGINES, MAX_THREADS, Engine
from cclfp.errors import DamagedError

GOOD = {"engine": "compiled", "precision": "float32", "threads": 2, "device": "cpu"}


@given(st.sampled_from(ENGINES), st.sampled_from(["float32", "tf32", "bf16"]), st.integers(1, MAX_THREADS))
def test_what_is_written_is_read(name: str, precision: str, threads: int) -> None:
    engine = Engine(name, precision, threads, "cuda")
    assert Engine.from_dict(engine.to_dict()) == engine


def test_its_form_in_files() -> None:
    assert Engine("eager", "float32", 1, "cpu").to_dict() == {**GOOD, "engine": "eager", "threads": 1}
    assert list(Engine("eager", "float32", 1, "cpu").to_dict()) == ["engine", "precision", "threads", "device"]
    assert Engine.from_dict({**GOOD, "together": 3}) == Engine("compiled", "float32", 2, "cpu")


def test_an_open_choice_is_filled_in() -> None:
    engine = Engine("auto", "float32", 1, "cpu")
    assert engine.is_open
    assert engine.named("eager") == Engine("eager", "float32", 1, "cpu")
    assert not engine.named("eager").is_open


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine": "auto"}, "engine is 'auto', expected one of eager, compiled, graph"),
        ({"engine": 3}, "engine is 3, expected a string"),
        ({"precision": "auto"}, "precision is 'auto'"),
        ({"precision": "float16"}, "expected one of float32, tf32, bf16"),
        ({"device": "tpu"}, "device is 'tpu', expected one of cpu, cuda"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": True}, "threads is True, expected a whole number"),
        ({"threads": MAX_THREADS + 1}, "threads is 4097"),
        ({"precision": "bf16"}, "engine compiled in bf16 is not for the cpu"),
        ({"engine": "graph"}, "engine graph in float32 is not for the cpu"),
    ],
)
def test_nonsense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DamagedError, match=message):
        Engine.from_dict({**GOOD, **change})


@pytest.mark.parametrize("values", [None, [], "eager", {}, *({k: v for k, v in GOOD.items() if k != n} for n in GOOD)])
def test_what_is_not_whole_is_refused(values: Any) -> None:
    with pytest.raises(DamagedError, match="engine"):
        Engine.from_dict(values)


def test_every_device_can_be_read() -> None:
    for device in DEVICES:
        assert Engine.from_dict({**GOOD, "device": device}).device == device
