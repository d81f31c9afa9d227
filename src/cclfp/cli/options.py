"""How a function becomes a command, what options commands have, and how their texts are read."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import typer

from cclfp.cli.output import Answer, print_answer, unwrap
from cclfp.core.arguments import split_names, unquote
from cclfp.errors import InputError, visible
from cclfp.runs.execution import Execution
from cclfp.runs.problem import Problem

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Answer | None])
KEYWORD = inspect.Parameter.KEYWORD_ONLY

app = typer.Typer(
    name="cclfp",
    help="Continual learning with CCL-FP, CCL-FP+ and the methods they are compared with.",
    epilog="Start with: cclfp run ccl-fp+ split-mnist",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def option(default: Any, help: str, metavar: str | None = None, shown: str | None = None) -> Any:
    """An option with a value, as the default of a parameter; ``shown`` is what it means to leave it out."""
    return typer.Option(default, help=help, metavar=metavar, show_default=shown or default is not None)


def flag(name: str, help: str) -> Any:
    """An option that is given or not."""
    return typer.Option(False, name, help=help)


def argument(default: Any, help: str, metavar: str) -> Any:
    """An argument; ``...`` for one without a default."""
    return typer.Argument(default, help=help, metavar=metavar, show_default=False)


KINDS: dict[str, Any] = {"problem": Problem, "execution": Execution}
FIELDS = Problem.__dataclass_fields__ | Execution.__dataclass_fields__
STORE = option(None, FIELDS["store"].metadata["help"])
SEEDS = option(None, "How many seeds (5 is the seeds 0 to 4), or which (0,3,7).", "N or A,B,...", shown="5")
SEED = option(None, "One particular seed, instead of --seeds.", "N")
INCLUDE_DIVERGED = flag(
    "--include-diverged",
    "Include runs that diverged in the means. By default a mean is of the others, and says how many diverged.",
)
FORCE = flag("--force", "Replace what is there, even if cclfp did not write it.")
YES = flag("--yes", "Do not ask.")
JSON = flag("--json", "Print one JSON document and nothing else on stdout.")

# What the command run has, and study and tune do not.
RUN_ONLY = ("validation", "max_classes", "threads", "save", "force", "fresh", "checkpoint_every")


def command(
    group: typer.Typer, name: str | None = None, leave_out: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Make a function a command of a group: its answer is printed, with ``--json`` as one document.

    Each field of its parameters ``problem`` and ``execution`` is an option, but for those that it leaves out. The
    benchmark of a problem is an argument; with images of one's own there is none, and the argument in its place is the
    first of the settings. A function that has a parameter ``json`` of its own is told.
    """

    def decorate(function: Command) -> Command:
        own = inspect.signature(function, eval_str=True).parameters
        fields = {name: list(_options(kind, leave_out)) for name, kind in KINDS.items() if name in own}
        parameters = [one for name, p in own.items() for one in fields.get(name, [p])]
        if "json" not in own:
            parameters.append(inspect.Parameter("json", KEYWORD, default=JSON, annotation=bool))

        @functools.wraps(function)
        def run(**given: Any) -> None:
            as_json = given["json"] if "json" in own else given.pop("json")
            if "=" in (given.get("benchmark") or "") and "settings" in given:
                given["settings"] = [given["benchmark"], *(given["settings"] or [])]
                given["benchmark"] = None
            if "problem" in fields:
                given["classes"] = parse_names("--classes", given["classes"]) or None
            if "store" in own and given["store"] is None:
                from cclfp.runs.store import default_store

                given["store"] = default_store()
            for name, options in fields.items():
                given[name] = KINDS[name](**{one.name: given.pop(one.name) for one in options})
            answer = function(**given)
            if answer is None:
                return
            print_answer(answer, as_json)
            if answer.error is not None:
                raise answer.error
            raise typer.Exit(answer.code)

        run.__signature__ = inspect.Signature([p.replace(kind=KEYWORD) for p in parameters])  # type: ignore[attr-defined]
        group.command(name, help=unwrap(inspect.getdoc(function) or ""))(run)
        return function

    return decorate


def _options(kind: Any, leave_out: Collection[str]) -> Iterator[inspect.Parameter]:
    """The fields of a dataclass as typer has options: text where the values are of several types."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.name in leave_out:
            continue
        made = option(field.default, field.metadata["help"].replace("[", "\\["), field.metadata["metavar"])
        made.param_decls = (f"--{field.name.replace('_', '-')}",)  # a flag has no opposite
        if field.name == "benchmark":
            made = argument(None, **field.metadata)
        plain = next((one for one in (bool, int, float, Path) if hints[field.name] in (one, one | None)), str)
        hint: Any = (plain | None) if field.default is None else plain
        yield inspect.Parameter(field.name, KEYWORD, default=made, annotation=hint)


# How texts are read ---------------------------------------------------------------------------------------------------


def parse_list(
    option: str, given: str, kind: Callable[[str], T], expected: str = "one name or several with commas"
) -> list[T]:
    """Names or numbers with commas between them, in quotes where they contain one."""
    parts = split_names(given)
    try:
        values = [kind(unquote(part)) for part in (parts if parts[-1] else parts[:-1])]  # 7, is a list of one
    except ValueError:
        values = []
    if not values or not all(parts[:-1]):
        raise InputError(f"{option} {given!r}: expected {expected}")
    return values


def parse_names(option: str, given: str | None) -> list[str]:
    """Names with commas between them; none where the option is not given."""
    return [] if given is None else parse_list(option, given, str)


def parse_seeds(seeds: str | None, seed: int | None = None) -> int | list[int]:
    """``--seeds`` and ``--seed`` as a number of seeds or a list of them; five where neither is given."""
    if seed is not None and seeds is not None:
        raise InputError(f"--seeds {seeds} and --seed {seed}: expected one of the two")
    if seeds is None:
        return 5 if seed is None else [seed]
    numbers = parse_list("--seeds", seeds, int, "how many (5) or which (0,3,7)")
    return numbers if "," in seeds else numbers[0]


def parse_settings(settings: Sequence[str] | None) -> dict[str, list[float | str]]:
    """``NAME=VALUE`` and ``NAME=A,B`` as the values of each name."""
    parsed: dict[str, list[float | str]] = {}
    for setting in settings or ():
        name, equals, values = setting.partition("=")
        if not (name and equals):
            raise InputError(f"{setting!r} is not a setting: expected NAME=VALUE, such as lr=0.1 or w=0.1,0.3")
        if name in parsed:
            raise InputError(f"{name} is set twice: give all its values at once, {name}=A,B")
        kind: Any = str if name == "augment" else float
        parsed[name] = parse_list(name, values, kind, "a number, or several with commas")
    return parsed


def ask(question: str, yes: bool, json: bool) -> None:
    """Go on if the user says so, or ``--yes`` is given; refuse where nobody can be asked."""
    if yes:
        return
    if json or not sys.stdin.isatty():
        raise InputError("this command asks first, and there is no terminal to ask on: add --yes")
    if not typer.confirm(visible(question), err=True):
        print("nothing was deleted")
        raise typer.Exit(1)
