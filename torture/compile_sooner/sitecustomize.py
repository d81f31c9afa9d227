"""On the path of worker processes, so that they compile even the short runs of the campaign. See torture/kills.py."""

import cclfp.engine.compiled

cclfp.engine.compiled.WORTH = 10
