"""What the package imports, and when."""

from __future__ import annotations

import subprocess
import sys

import cclfp


def test_training_needs_torch_and_numpy_only() -> None:
    code = (
        "import sys\n"
        "for name in ('pooch', 'platformdirs', 'rich', 'typer', 'requests'): sys.modules[name] = None\n"
        "import cclfp, cclfp.experiment\n"
        "cclfp.testing.check_method('finetune')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_public_names() -> None:
    for name in dir(cclfp):
        assert getattr(cclfp, name) is not None
