"""How charts look: the colour, the dashes and the mark of each series, and the style sheet."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from importlib import resources


@dataclasses.dataclass(frozen=True)
class Style:
    """The look of a series: its colour on a light and on a dark page, its dashes and its mark.

    Every colour has a contrast of at least 3:1 with its page. ``tests/report/test_charts.py`` computes how far
    apart the colours are for readers with and without colour-blindness. Dashes and marks also tell the series apart.
    """

    name: str  # of a method, or "ours", "train" and the like
    light: str
    dark: str
    dashes: str
    mark: str

    @property
    def is_strong(self) -> bool:
        """Whether its curves are thicker and lie over the others: those of methods that readers compare most."""
        return self.name in EMPHASISED

    @property
    def css_class(self) -> str:
        """Its class in the style sheet: ``k-ccl-fp-plus``."""
        return "k-" + self.name.replace("+", "-plus").replace(",", "").replace(" ", "-")


EMPHASISED = ("er", "ccl-fp+")
# The paper's methods; all others get one of OWN_STYLES.
METHOD_STYLES = (
    Style("joint", "#1c1c1e", "#f4f4f6", "7 3", "plus"),
    Style("finetune", "#77777d", "#94949c", "2 2", "cross"),
    Style("si", "#6b2f01", "#ac5107", "6 2 2 2", "square"),
    Style("lwf", "#b379c0", "#815b74", "6 2 2 2", "down"),
    Style("er", "#0069a8", "#57b4ea", "", "circle"),
    Style("gem", "#16a56e", "#a9ff96", "", "square"),
    Style("a-gem", "#1a5249", "#9dcab1", "5 2", "up"),
    Style("icarl", "#942e79", "#ab68ba", "", "diamond"),
    Style("fdr", "#4c0c49", "#fec0f7", "6 2 2 2", "circle"),
    Style("hal", "#15197c", "#6783ec", "5 2", "diamond"),
    Style("ccl-fp", "#cf7b26", "#f3b01d", "4 2", "down"),
    Style("ccl-fp+", "#cc3311", "#ff7d60", "", "up"),
)
OURS = Style("ours", "#0b5c8a", "#6cb8e6", "", "circle")
TRAIN = Style("train", "#0b5c8a", "#6cb8e6", "", "square")
TEST = Style("test", "#cf7b26", "#f3b01d", "", "square")
OWN_STYLES = (
    Style("own-1", "#794fe9", "#685ef7", "", "down"),
    Style("own-2", "#4c701a", "#d4dcbf", "5 2", "square"),
    Style("own-3", "#d15fea", "#fa7ed5", "2 2", "diamond"),
    Style("own-4", "#95173e", "#c61e54", "6 2 2 2", "up"),
    Style("own-5", "#2b37c9", "#2266a4", "5 2", "circle"),
    Style("own-6", "#a75c51", "#d5565d", "", "plus"),
    Style("own-7", "#6e119b", "#a936c2", "5 2", "cross"),
    Style("own-8", "#3d3564", "#757892", "2 2", "square"),
)
STYLES = {style.name: style for style in (*METHOD_STYLES, OURS, TRAIN, TEST, *OWN_STYLES)}
LIGHT_COLOURS = {"ink": "#1c1c1e", "faint": "#5f5f66", "line": "#dcdce0", "paper": "#ffffff"}
DARK_COLOURS = {"ink": "#ececee", "faint": "#a4a5ad", "line": "#33353b", "paper": "#131417"}
CHARACTER = 6.2  # the approximate width of a character at 12 px, which is alike in these fonts


def style_sheet(styles: Iterable[Style], *, dark: bool = False) -> str:
    """The rules for a drawing with these series."""
    rules = resources.files(__package__).joinpath("templates", "chart.css").read_text(encoding="utf-8")
    for name, colour in (DARK_COLOURS if dark else LIGHT_COLOURS).items():
        rules = rules.replace(f"var(--{name})", colour)
    return rules + series_rules(styles, dark=dark)


def series_rules(styles: Iterable[Style], *, dark: bool = False) -> str:
    """The rules for the colours of these series."""
    return "".join(f".{style.css_class}{{color:{style.dark if dark else style.light}}}\n" for style in styles)
