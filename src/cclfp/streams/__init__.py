"""Benchmarks as streams: an ordered list of tasks, each with training and test examples and its classes."""

from __future__ import annotations

from cclfp.streams.benchmarks import AUGMENTATION, BENCHMARKS, Benchmark, get_benchmark
from cclfp.streams.stream import Stream

__all__ = ["AUGMENTATION", "BENCHMARKS", "Benchmark", "Stream", "get_benchmark"]
