"""Names in a text, separated by commas; quotes keep a comma or a slash inside a name."""

from __future__ import annotations

from cclfp.errors import InputError


def split_names(text: str, separator: str = ",") -> list[str]:
    """The parts of a text between separators, with spaces around them removed; separators in quotes do not count.

    >>> split_names('cat, "black, white",dog')
    ['cat', '"black, white"', 'dog']
    """
    parts = [""]
    for number, piece in enumerate(text.split('"')):
        is_quoted = number % 2 == 1
        first, *rest = [piece] if is_quoted else piece.split(separator)
        parts[-1] += f'"{first}"' if is_quoted else first
        parts += rest
    if is_quoted:
        raise InputError(f"{text[:60]!r}: a quotation mark has no partner")
    return [part.strip() for part in parts]


def unquote(name: str) -> str:
    """A name without the quotes around it; two quotes inside stand for one.

    >>> unquote('"black, white"'), unquote('"5"" pipe"'), unquote("cat")
    ('black, white', '5" pipe', 'cat')
    """
    is_quoted = len(name) > 1 and name[0] == name[-1] == '"'
    return name[1:-1].replace('""', '"') if is_quoted else name


def quote(name: str) -> str:
    """A name as :func:`split_names` and :func:`unquote` read it.

    >>> quote("black, white"), quote("cat")
    ('"black, white"', 'cat')
    """
    needs_quotes = name != name.strip() or any(c in name for c in ',/"')
    return '"' + name.replace('"', '""') + '"' if needs_quotes else name
