"""Benchmarks as streams: ordered lists of tasks, each with its classes, training examples and test examples."""

from __future__ import annotations

from cclfp.streams.benchmarks import AUGMENTATION, BENCHMARKS, Benchmark, get_benchmark
from cclfp.streams.tasks import Stream

__all__ = ["AUGMENTATION", "BENCHMARKS", "Benchmark", "Stream", "get_benchmark"]
