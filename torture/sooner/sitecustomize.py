"""On the path of worker processes: they compile even such short runs as the campaign's. See torture/kills.py."""

import cclfp.engine.compiled

cclfp.engine.compiled.WORTH = 10
