"""What the commands about data import."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_help_does_not_import_what_takes_long() -> None:
    code = (
        "import sys; sys.argv = ['cclfp', 'data', 'import', '--help']\n"
        "from cclfp.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'numpy', 'PIL', 'pooch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "archive" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_the_package_needs_no_pillow() -> None:
    code = "import sys; sys.modules['PIL'] = None; import cclfp, cclfp.data; print(len(cclfp.data.DATASETS))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "4\n"
