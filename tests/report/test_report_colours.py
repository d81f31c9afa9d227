"""The colours of the charts can be told apart, on light and dark pages, with and without colour-blindness."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
from charts import BENCH_STYLES

from cclfp.paper.numbers import LABELS
from cclfp.report.styles import DARK_COLOURS, LIGHT_COLOURS, METHOD_STYLES, OWN_STYLES, STYLES, TEST, TRAIN, Style


def matrix(text: str) -> np.ndarray:
    return np.array(text.split(), dtype=float).reshape(3, 3)


# How dichromats see linear RGB: Machado, Oliveira & Fernandes 2009, A Physiologically-based Model for Simulation of
# Color Vision Deficiency, table 1, severity 1.0.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": matrix("0.152286 1.052583 -0.204868 0.114503 0.786281 0.099216 -0.003882 -0.048116 1.051998"),
    "deuteranopia": matrix("0.367322 0.860646 -0.227968 0.280085 0.672501 0.047413 -0.011820 0.042940 0.968881"),
    "tritanopia": matrix("1.255528 -0.076749 -0.178779 -0.078411 0.930809 0.147602 0.004733 0.691367 0.303900"),
}
# From linear RGB to cones and from their cube roots to OKLab: Ottosson 2020, A perceptual color space for image
# processing.
TO_CONES = matrix(
    "0.4122214708 0.5363325363 0.0514459929 0.2119034982 0.6806995451 0.1073969566 "
    "0.0883024619 0.2817188376 0.6299787005"
)
TO_OKLAB = matrix(
    "0.2104542553 0.7936177850 -0.0040720468 1.9779984951 -2.4285922050 0.4505937099 "
    "0.0259040371 0.7827717662 -0.8086757660"
)
PAGES = {"light": LIGHT_COLOURS["paper"], "dark": DARK_COLOURS["paper"]}


def linear_rgb(colour: str) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """The contrast ratio of WCAG 2."""
    low, high = sorted(float(linear_rgb(colour) @ [0.2126, 0.7152, 0.0722]) + 0.05 for colour in (a, b))
    return high / low


def distance(a: str, b: str, vision: str) -> float:
    """In hundredths of OKLab's unit, in which two colours side by side can be told apart from about 2 on."""
    labs = [TO_OKLAB @ np.cbrt(TO_CONES @ np.clip(VISIONS[vision] @ linear_rgb(colour), 0, 1)) for colour in (a, b)]
    return 100 * float(np.linalg.norm(labs[0] - labs[1]))


def least_distance(styles: Iterable[Style], page: str, vision: str) -> float:
    return min(distance(getattr(a, page), getattr(b, page), vision) for a, b in itertools.combinations(styles, 2))


def test_distances() -> None:
    assert distance("#ffffff", "#000000", "normal") == pytest.approx(100, abs=0.1)
    red_green = [distance("#d02020", "#6f7800", vision) for vision in ("normal", "deuteranopia", "tritanopia")]
    assert red_green == pytest.approx([23.7, 1.7, 22.8], abs=0.1)
    assert contrast("#ffffff", "#000000") == pytest.approx(21)


@pytest.mark.parametrize("page", PAGES)
def test_colours_stand_out_from_the_page(page: str) -> None:
    for name, style in (STYLES | BENCH_STYLES).items():
        assert contrast(getattr(style, page), PAGES[page]) >= 3, name
    texts = LIGHT_COLOURS if page == "light" else DARK_COLOURS
    assert all(contrast(texts[name], PAGES[page]) >= 4.5 for name in ("ink", "faint"))


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("page", PAGES)
def test_colours_of_methods_are_apart(page: str, vision: str) -> None:
    assert least_distance(METHOD_STYLES, page, vision) >= (12 if vision == "normal" else 8)
    assert least_distance([*METHOD_STYLES, *OWN_STYLES], page, vision) >= 5
    assert least_distance([style for style in METHOD_STYLES if style.is_strong], page, vision) >= 15
    assert least_distance([TRAIN, TEST], page, vision) >= 15


def test_methods_can_be_told_apart_without_colours() -> None:
    assert [style.name for style in METHOD_STYLES] == list(LABELS)
    looks = {(style.dashes, style.mark) for style in (*METHOD_STYLES, *OWN_STYLES)}
    assert len(looks) == len(METHOD_STYLES) + len(OWN_STYLES)
    assert [style.dashes for style in METHOD_STYLES if style.is_strong] == ["", ""]
