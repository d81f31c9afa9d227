"""Tables as texts: Markdown, and LaTeX that can be pasted into a paper, from templates; and as CSV."""

from __future__ import annotations

import csv
import functools
import io
import sys
from collections.abc import Sequence
from typing import Any

import jinja2

from cclfp import metrics
from cclfp.paper import compare
from cclfp.report import tables
from cclfp.report.tables import OWN, UNTUNED, Table, verdict_of
from cclfp.runs.code import OTHER_CODE
from cclfp.runs.results import Result


def render(template: str, **values: Any) -> str:
    """The text of a template, which calls the modules of the report."""
    modules = {"compare": compare, "metrics": metrics, "tables": tables, "text": sys.modules[__name__]}
    return _environment(template.rpartition(".")[2]).get_template(template).render(modules | values)


def render_line(template: str, **values: Any) -> str:
    """The text of a template without its line breaks."""
    return " ".join(render(template, **values).split())


@functools.cache
def _environment(kind: str) -> jinja2.Environment:
    """The templates of this kind of file. In HTML values are escaped, unless one is marked as safe."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=kind == "html",
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    if kind != "tex":
        return environment
    # In LaTeX, which is full of braces, << >> and <% %>.
    return environment.overlay("<%", "%>", "<<", ">>", "<#", "#>")


# Markdown -------------------------------------------------------------------------------------------------------------

OWN_COLUMNS = ("method", "average accuracy", "to the best", "p", "forgetting", "seconds per run", "seeds")


def own_texts(result: Result) -> list[str]:
    """A row of one's own, in the order of ``OWN_COLUMNS``."""
    forgetting = metrics.plus_minus(**result.mean_std("forgetting"))
    seconds = metrics.number(result.mean_std("seconds")["mean"], 1)
    comparison = [compare.show_difference(result.standing), compare.show_p(result.standing.p)]
    return [result.label, result.text() + tables.marks(result), *comparison, forgetting, seconds, str(len(result.runs))]


# CSV ------------------------------------------------------------------------------------------------------------------


def to_csv(several: Sequence[Table]) -> str:
    """One line per number."""
    lines = [_fields(table, result) for table in several for result in table.results]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(lines[0])
    for line in lines:
        writer.writerow([f"{value:.4f}" if isinstance(value, float) else value for value in line.values()])
    return text.getvalue()


def _fields(table: Table, result: Result) -> dict[str, Any]:
    """The values of a line by column, which are others for the paper's tables than for one's own."""
    c, standing, is_papers = result.configuration, result.standing, table.name != OWN
    published_mean, published_std = result.published or (None, None)
    beside_papers = {
        "published_mean": published_mean,
        "published_std": published_std,
        "difference": result.difference,
        "verdict": verdict_of(result),
        "best": "yes" if standing.best else "no",
    }
    among_own = {
        "forgetting": result.mean_std("forgetting")["mean"],
        "seconds": result.mean_std("seconds")["mean"],
        "difference": standing.difference,
        "p": standing.p,
        "standing": standing.verdict,
    }
    return {
        "table": table.name if is_papers else table.title,
        "row": result.label,
        **{name: getattr(c, name) for name in ("method", "benchmark", "scenario", "buffer")},
        "mean": result.mean,
        "std": result.std,
        "seeds": len(result.runs),
        **(beside_papers if is_papers else among_own),
        "accuracies": " ".join(f"{seed}:{accuracy:.4f}" for seed, accuracy in result.accuracies.items()),
        **({"chosen": tables.describe_choice(result)} if is_papers else {}),
        "command": result.command(table.seeds),
        "diverged": " ".join(map(str, result.diverged)),
        "other_code": " ".join(map(str, result.other_code)),
    }


# LaTeX ----------------------------------------------------------------------------------------------------------------

REPLACEMENTS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: "\\" + character for character in "&%$#_{}"},
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    UNTUNED: r"$\dagger$",
    OTHER_CODE: r"$\ddagger$",
}


def escape_latex(text: str) -> str:
    r"""Text with its special characters as LaTeX commands.

    >>> print(escape_latex("50% of_x, α"))
    50\% of\_x, $\alpha$
    """
    return "".join(REPLACEMENTS.get(character, character) for character in text)
