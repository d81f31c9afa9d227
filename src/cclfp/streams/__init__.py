"""Benchmarks as streams: an ordered list of tasks, each with training and test examples and its classes."""

from __future__ import annotations

from cclfp.streams.benchmarks import BENCHMARKS, Benchmark, get_benchmark
from cclfp.streams.stream import Stream

__all__ = ["BENCHMARKS", "Benchmark", "Stream", "get_benchmark"]
