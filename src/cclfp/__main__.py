"""``python -m cclfp`` is the command ``cclfp``."""

from cclfp.cli import main

main()
