"""RELIABILITY.md"""

from __future__ import annotations

from collections import Counter
from typing import Any


def facts(seed, seconds, kinds, outcomes) -> dict[str, Any]:
    return {"seed": seed, "seconds": seconds, "kinds": [k.id for k in kinds], "outcomes": [vars(o) for o in outcomes]}


def render(facts):
    return ""


def summary(facts):
    c = {}
    for o in facts["outcomes"]:
        d = c.setdefault(o["kind"], [Counter(), Counter()])
        d[0][str(o["verdict"])] += 1
        d[1].update(o["tries"])
    return "\n".join(f"{k}: {dict(v[0])} {dict(v[1])}" for k, v in c.items()) + f"\n{facts['seconds']:.0f} s"
