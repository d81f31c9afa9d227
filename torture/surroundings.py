"""Commands as users start them: unusual locales and values of CCLFP_HOME, faulty files of their own, full outputs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from torture.campaign import Case, Fault, Kind, Verdict
from torture.commands import run_real
from torture.material import copy, put_mnist, put_store

ASCII = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
LOCALES: dict[str, dict[str, str | bytes | None]] = {
    "an ASCII terminal": {**ASCII},
    "the locale POSIX": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "the encoding latin-1": {"PYTHONIOENCODING": "latin-1"},
    "no environment": {"LANG": None, "LC_ALL": None, "HOME": None, "TERM": None},
}
PRINTING = (
    "run finetune split-mnist --seeds 1 --engine eager --store new.sqlite",
    "runs --store runs.sqlite",
    "show ccl-fp+",
    "list benchmarks",
)
NOWHERE = "http://127.0.0.1:9"  # no dataset can be downloaded from here
HOMES: dict[str, str | bytes | None] = {
    "of no user": "~nouser/x",
    "a file": "records.jsonl",
    "/proc/x": "/proc/x",
    "a relative path": "home",
    "spaces and Unicode": "ho me–ψ",
    "bytes that are no text": b"home-\xff\xfe",
    "a very long name": "x" * 300,
    "empty": "",
}
OWN = {
    "sys.exit(0)": "import sys\nsys.exit(0)\n",
    "sys.exit(7)": "import sys\nsys.exit(7)\n",
    "an exception": "1 / 0\n",
    "a syntax error": "def (\n",
    "no text": "\0",
    "KeyboardInterrupt": "raise KeyboardInterrupt\n",
    "a class without loss": "import cclfp\nclass Mine(cclfp.Method):\n    name = 'mine'\n",
    "something else": "Mine = 3\n",
}
WRITING = (
    *PRINTING,
    "runs --json --store runs.sqlite",
    "--help",
    "runs export out.jsonl --store runs.sqlite",
)
OUTPUTS = ("a full device", "a closed pipe")
Surrounding = tuple[str, str, str]  # what is unusual, its value, the command
ALL: list[Surrounding] = [
    *(("locale", name, arguments) for name in LOCALES for arguments in PRINTING),
    *(("CCLFP_HOME", name, "run finetune split-mnist --seeds 1 --engine eager") for name in HOMES),
    *(("own file", name, "run own.py:Mine split-mnist --seeds 1 --engine eager --store new.sqlite") for name in OWN),
]


def prepare(material: Path) -> None:
    put_store(material / "before", step=20)
    put_mnist(material / "before")


def run(case: Case) -> Verdict:
    """Run a command in one of the surroundings: it must succeed, or end with a clean message."""
    what, name, arguments = ALL[case.number % len(ALL)]
    case.tries[what] += 1
    place = copy(case.material / "before", case.folder / "place")
    environment = LOCALES.get(name, {"http_proxy": NOWHERE, "https_proxy": NOWHERE})
    if what == "CCLFP_HOME":
        environment = {**environment, "HOME": str(place), "XDG_DATA_HOME": str(place), "CCLFP_HOME": HOMES[name]}
        with contextlib.suppress(OSError):  # if this folder cannot exist
            shutil.copytree(place / "home", place / os.fsdecode(HOMES[name] or "cclfp"))
    if what == "own file":
        (place / "own.py").write_text(OWN[name])
    ended = run_real(arguments, place, environment)
    if what == "locale" and ended.code:
        raise Fault(Verdict.LOST, f"with {name}, cclfp {arguments} fails: {ended.last}")
    if what == "own file" and ended.code not in (1, 2, 130):
        raise Fault(Verdict.WRONG, f"with {name} in a user's file, the command ends with {ended.last}")
    return Verdict.REFUSED if ended.code else Verdict.SURVIVED


def run_output(case: Case) -> Verdict:
    """Run a command whose standard output cannot be written."""
    output = OUTPUTS[case.number % len(OUTPUTS)]
    arguments = WRITING[case.number // len(OUTPUTS) % len(WRITING)]
    case.tries[f"stdout to {output}"] += 1
    place = copy(case.material / "before", case.folder / "place")
    if output == "a full device":
        handle = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, handle = os.pipe()
        os.close(reader)
    ended = run_real(arguments, place, {}, stdout=handle, stderr=subprocess.PIPE)
    os.close(handle)
    if output == "a full device" and ended.code == 0:
        raise Fault(Verdict.LOST, f"cclfp {arguments} > /dev/full printed nothing and ended with 0")
    return Verdict.REFUSED if ended.code else Verdict.SURVIVED


COUNT = len(OUTPUTS) * len(WRITING)
KINDS = [
    Kind("surroundings", "as users start it", run, prepare, "before", minimum=len(ALL), quick=2, most=len(ALL)),
    Kind("surroundings", "outputs", run_output, prepare, "before", share=0.5, minimum=COUNT, quick=2, most=COUNT),
]
