"""Run the commands of docs/tutorial.md: python examples/tutorial.py FOLDER [--write]

The commands run one after the other in FOLDER, as a reader would type them, and take about a quarter of an hour. Their
progress is shown; their outputs and times are printed. With --write they are put into the page.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
PAGE = EXAMPLES.parent / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```console\n\$ (?P<command>(?:.*\\\n)*.*)\n(?P<output>(?:.*\n)*?)```$", flags=re.MULTILINE)
MOST_LINES = 24  # of an output that are shown


def find_commands(page):
    """The commands of a page, in order."""
    return [block["command"] for block in BLOCK.finditer(page)]


def run(command, folder):
    """Run a command in a folder; what it prints, and how many seconds it takes."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    here = {**os.environ, "PATH": path, "EXAMPLES": str(EXAMPLES), "CCLFP_HOME": str(folder / "home")}
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=here,
        stdout=subprocess.PIPE,
        check=True,
    )
    return done.stdout.decode().replace(str(folder), "~/fashion"), time.monotonic() - began


def shorten(output):
    """An output without the middle of its lines, where there are many."""
    lines = [line.rstrip() for line in output.splitlines()]
    if len(lines) > MOST_LINES:
        lines[MOST_LINES - 2 : -1] = ["..."]
    return "".join(f"{line}\n" for line in lines)


def show(command, output, seconds):
    """A command with its output, as the page shows it."""
    return f"$ {command}\n{shorten(output)}# {max(seconds, 1):.0f} s\n"


def fill_in(page, shown):
    """The page with these commands and outputs in its blocks."""
    several = iter(shown)
    return BLOCK.sub(lambda block: f"```console\n{next(several)}```", page)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a new or an empty folder")
    parser.add_argument("--write", action="store_true", help="put the outputs and times into the page")
    arguments = parser.parse_args()
    folder, page, shown = arguments.folder.resolve(), PAGE.read_text(encoding="utf-8"), []
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty: the times would not be those of a new user")
    for command in find_commands(page):
        shown.append(show(command, *run(command, folder)))
        print(shown[-1], flush=True)
    if arguments.write:
        PAGE.write_text(fill_in(page, shown), encoding="utf-8")


if __name__ == "__main__":
    main()
