"""Converts drawn figures to PDF and PNG, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable

PNG_SCALE = 2.0


def convert(drawn: str, answer: Callable[[dict[str, bytes]], None]) -> None:
    import vl_convert

    answer({"pdf": vl_convert.svg_to_pdf(drawn), "png": vl_convert.svg_to_png(drawn, scale=PNG_SCALE)})
