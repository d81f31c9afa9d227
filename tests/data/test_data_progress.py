"""What the package imports."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_package_needs_no_pillow() -> None:
    code = "import sys; sys.modules['PIL'] = None; import cclfp, cclfp.data; print(len(cclfp.data.DATASETS))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "4\n"
