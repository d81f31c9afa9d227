"""Write RESULTS.md and its charts from the files of bench/measure.py, of one machine or several.

    .venv/bin/python bench/render.py                          # bench/results/*.json -> bench/RESULTS.md, charts
    .venv/bin/python bench/render.py build/bench/quick.json --to build/bench

Where several files have a section for one device, the newest counts; the cases of one with ``--method`` are put into
the one before it. The explanations of the charts are in bends.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from charts import Charts
from formatting import format_number, format_table
from growth import AXES, show_growth
from measured import DEVICES, Measured, median, ratio, read
from sections import PEERS, SECTIONS

from cclfp.core.files import write_atomic

BENCH = Path(__file__).parent
ORDER = (*SECTIONS, *AXES)
METHOD = """\
- **A run** is one configuration with one seed. Where several runs train together, the steps of all of them count: 5
  runs that take 1,000 steps per second each make 5,000 steps/s. Milliseconds per step are those of one run.
- **Steps only**: the median over windows of a quarter of a second of training. Elsewhere the text says what is counted.
- **Side by side**: on a CPU, everything that a table of steps compares trains in turns of one window, in one run. Other
  load on the machine therefore slows all of it equally.
- **From prompt to table**: processes of their own, one after the other, from their start to their end. "Share of the
  core" shows how much other load there was: near 100 % the machine was otherwise idle.
- **One thread**: on a CPU everything uses one thread.
- **Eager** is our reference engine: plain PyTorch, one run after the other. The speed of one run is therefore also
  that of five.
- On a GPU, clocks are read after the device has finished."""


def quote(sections: Sequence[Measured]) -> str | None:
    """What README.md quotes of the newest whole commands; None where not all of them were measured."""
    section = max((one for one in sections if one.name == "first-run"), key=_started, default=None)
    found = [section and section.find(method="er", cores=1, who=who) for who in ("default", "plain", *PEERS)]
    if section is None or not all(found):
        return None
    ours, plain, *peers = (result for result in found if result)
    times = [f"{format_number(ratio(ours, r))} times that of {PEERS[r['case']['who']]}" for r in peers]
    return (
        f"On one core of an {section.hardware}, experience replay on Split MNIST with five seeds takes "
        f"{format_number(median(ours, 'seconds'))} s from prompt to table, the first time and every time: "
        f"{format_number(ratio(ours, plain))} times the speed of a plain PyTorch loop, {', '.join(times[:-1])} and "
        f"{times[-1]}, which train one seed after the other."
    )


def _started(section: Measured) -> str:
    return str(section.document["started_at"])


def show_machines(sections: Sequence[Measured]) -> str:
    """The machines of these sections, one row per file."""
    documents = {id(document): document for one in sections for document in one.origins}
    columns = ["sections", "hardware", "software", "date and prior load", "images", "command"]
    rows = []
    for document in documents.values():
        names = dict.fromkeys(one.name for one in sections if any(origin is document for origin in one.origins))
        rows.append([", ".join(names), *_machine_row(document)])
    return format_table(columns, rows, numbers=False)


def _machine_row(document: dict[str, Any]) -> list[str]:
    m = document["machine"]
    memory = f"{m['memory_bytes'] / 2**30:.0f} GiB" if m["memory_bytes"] else "–"
    gpu = f"; {m['gpu']}, CUDA {m['cuda']}" if m["gpu"] else ""
    commit = str(m["commit"])[:10] + ("+" if str(m["commit"]).endswith("+") else "")
    software = f"Python {m['python']}, torch {m['torch']}, numpy {m['numpy']}"
    load = "" if m["load"] is None else f", load {m['load']:.1f}"
    return [
        f"{m['processor']}, {m['cores']} cores, {memory}{gpu}",
        f"{software}, cclfp {m['cclfp']} at {commit if m['commit'] else 'an unknown commit'}",
        f"{document['started_at'][:10]}{load}",
        "random images of the same shapes" if document["images"] == "random" else "the real datasets",
        f"`{document['command']}`" + (f", stopped {document['stopped']}" if "stopped" in document else ""),
    ]


def render_document(sections: Sequence[Measured], charts: Charts) -> str:
    parts = [
        "# Speed",
        "Written by `make bench` (`bench/measure.py`, then `bench/render.py`); do not edit. The end of this document "
        "says how and on which machines the numbers were measured.",
    ]
    if any(one.document["quick"] for one in sections):
        parts.append("**From a quick run, which only tries the benchmark itself: do not quote these rough numbers.**")
    for name, (title, show) in SECTIONS.items():
        if chosen := [one for one in sections if one.name == name]:
            parts.append(f"## {title}")
            for one in chosen:
                parts += [f"### {DEVICES[one.device]}: {one.hardware}", *show(one, charts)]
    if any(one.name in AXES for one in sections):
        parts.append("## How cost grows")
    for name, axis in AXES.items():
        if chosen := [one for one in sections if one.name == name]:
            parts.append(f"### {axis.title}")
            for one in chosen:
                parts += show_growth(name, one, charts)
    parts += ["## How it was measured", METHOD, show_machines(sections)]
    return "\n\n".join(part for part in parts if part) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="default: all in bench/results")
    parser.add_argument("--to", type=Path, default=BENCH, help="the folder for RESULTS.md and charts")
    arguments = parser.parse_args()
    files = arguments.files or sorted((BENCH / "results").glob("*.json"))
    if not files:
        parser.error("no files: bench/measure.py writes them")
    sections = read(files, ORDER)
    text = render_document(sections, Charts(arguments.to))
    write_atomic(arguments.to / "RESULTS.md", text.encode())
    print(f"{arguments.to / 'RESULTS.md'}: {len(sections)} sections from {len(files)} files")
    if quoted := quote(sections):
        print(f"README.md must have this sentence:\n{quoted}")


if __name__ == "__main__":
    main()
