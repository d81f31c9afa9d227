"""How the charts look: a colour, dashes and a mark per series, and the style sheet of the drawings."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Style:
    """The look of a series: its colour on a light and on a dark page, its dashes and its mark.

    Every colour has a contrast of at least 3:1 with its page. Dashes and marks also tell the series apart, for readers
    who cannot distinguish the colours.
    """

    light: str
    dark: str
    dashes: str
    mark: str


STYLES = {
    "joint": Style("#222222", "#eeeeee", "7 3", "plus"),
    "finetune": Style("#6f6f6f", "#a3a3a3", "2 2", "cross"),
    "si": Style("#7d6b00", "#cdbb45", "6 2 2 2", "square"),
    "lwf": Style("#5a48b5", "#a99cf2", "6 2 2 2", "down"),
    "er": Style("#0069a8", "#57b4ea", "", "circle"),
    "gem": Style("#117733", "#55c27c", "", "square"),
    "a-gem": Style("#008c87", "#46cfc3", "5 2", "up"),
    "icarl": Style("#882255", "#d67fae", "", "diamond"),
    "fdr": Style("#b0489f", "#e08fd4", "6 2 2 2", "circle"),
    "hal": Style("#9a5a12", "#d9a066", "5 2", "diamond"),
    "ccl-fp": Style("#d06a00", "#ffb066", "4 2", "down"),
    "ccl-fp+": Style("#cc3311", "#ff7d60", "", "up"),
    "ours": Style("#0b5c8a", "#6cb8e6", "", "circle"),
    "train": Style("#0b5c8a", "#6cb8e6", "", "square"),
    "test": Style("#d06a00", "#ffb066", "", "square"),
}
# For methods of users, and for a method's rows with other settings
OWN_STYLES = {
    "own-1": Style("#0a7d5a", "#3fcf9f", "", "down"),
    "own-2": Style("#7a3fe0", "#bf9bff", "5 2", "square"),
    "own-3": Style("#b8005c", "#ff7eb6", "2 2", "diamond"),
    "own-4": Style("#2f5fc4", "#8db4ff", "6 2 2 2", "up"),
    "own-5": Style("#8f5902", "#e0b050", "5 2", "circle"),
    "own-6": Style("#3f4a5a", "#b8c4d6", "", "plus"),
    "own-7": Style("#a3301b", "#ff9d85", "5 2", "cross"),
    "own-8": Style("#4a6b00", "#b4d455", "2 2", "square"),
}
ALL_STYLES = STYLES | OWN_STYLES
# The path of each mark: centre x, y; radius r; diameter d; left l, right e, top t and bottom b.
MARKS = {
    "circle": "M{l} {y}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0z",
    "square": "M{l} {t}h{d}v{d}h-{d}z",
    "diamond": "M{x} {t}L{e} {y}L{x} {b}L{l} {y}z",
    "up": "M{x} {t}L{e} {b}H{l}z",
    "down": "M{x} {b}L{e} {t}H{l}z",
    "plus": "M{x} {t}V{b}M{l} {y}H{e}",
    "cross": "M{l} {t}L{e} {b}M{e} {t}L{l} {b}",
}
THIN_MARKS = ("plus", "cross")  # drawn as lines, without an area to fill
PRINT_COLOURS = {"ink": "#1c1c1e", "faint": "#5f5f66", "line": "#dcdce0", "paper": "#ffffff"}
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
RULES = """\
svg.chart text{{font-family:{font};font-size:12px;fill:{faint}}}
svg.chart .title{{font-size:13px;font-weight:600;fill:{ink}}}
svg.chart .label{{fill:{ink}}}
svg.chart .missing{{font-style:italic}}
svg.chart .value{{fill:{ink};stroke:{paper};stroke-width:3px;paint-order:stroke}}
svg.chart .end{{text-anchor:end}}
svg.chart .mid{{text-anchor:middle}}
svg.chart .grid{{stroke:{line};stroke-width:1;fill:none}}
svg.chart .axis{{stroke:{faint};stroke-width:1;fill:none}}
svg.chart .curve{{fill:none;stroke:currentColor;stroke-width:1.5;stroke-linejoin:round}}
svg.chart .k-ccl-fp-plus.curve{{stroke-width:2.4}}
svg.chart .paper.curve{{stroke-dasharray:1.5 3;stroke-width:1.2}}
svg.chart .mark{{fill:currentColor;stroke:{paper};stroke-width:0.8}}
svg.chart .paper.mark{{fill:{paper};stroke:currentColor;stroke-width:1.4}}
svg.chart .thin.mark{{fill:none;stroke:currentColor;stroke-width:1.8}}
svg.chart .whisker{{stroke:currentColor;stroke-width:1.2;fill:none}}
svg.chart .ink.whisker{{stroke:{ink}}}
svg.chart .bar{{fill:currentColor}}
"""


def style_sheet(colours: dict[str, str], font: str = FONT) -> str:
    """The style sheet of the drawings, with these colours for text, lines and page."""
    return RULES.format(font=font, **colours)


def colour_rules(styles: dict[str, Style], *, dark: bool = False) -> str:
    """A style sheet that gives each series its colour, one rule per line."""
    return "".join(
        f".{css_class(key)}{{color:{style.dark if dark else style.light}}}\n" for key, style in styles.items()
    )


def css_class(key: str) -> str:
    """The class of a series.

    >>> css_class("ccl-fp+"), css_class("er, bf16")
    ('k-ccl-fp-plus', 'k-er-bf16')
    """
    return "k-" + key.replace("+", "-plus").replace(", ", "-")
