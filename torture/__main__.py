"""``python -m torture``: run the campaign and write RELIABILITY.md.

The exit code is 1 where a case failed, or a whole campaign had too few of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long; every kind runs its minimum in any case")
    parser.add_argument("--seed", type=int, default=None, help="of an earlier campaign, to have the same cases")
    parser.add_argument("--only", default="", help="kinds whose name starts so, such as kills or files/learner")
    parser.add_argument("--case", action="append", default=[], metavar="KIND:NUMBER", help="just this case")
    parser.add_argument("--quick", action="store_true", help="the few cases of the test suite")
    parser.add_argument("--workers", type=int, default=2, help="cases at a time")
    parser.add_argument("--report", type=Path, default=None, help="the file to write; by default none for a part")
    parser.add_argument("--json", type=Path, default=None, help="a file for all outcomes")
    arguments = parser.parse_args()
    if sys.platform != "linux":
        parser.error("the campaign needs Linux: it looks into /proc and forks")
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    print(f"seed {seed}", flush=True)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "compiler"))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

    from torture import report
    from torture.campaign import FINE, Campaign, adopt_orphans, descendants, kill_all
    from torture.kinds import KINDS, warm_up

    kinds = [kind for kind in KINDS if kind.id.startswith(arguments.only)]
    cases = []
    for text in arguments.case:
        name, _, number = text.partition(":")
        cases += [(kind, int(number)) for kind in KINDS if kind.id == name]
        kinds = list(dict.fromkeys(kind for kind, _ in cases))
    if not kinds or (arguments.quick and not any(kind.quick for kind in kinds)):
        parser.error(f"no such kind; there are {', '.join(kind.id for kind in KINDS)}")
    if arguments.quick:
        kinds = [kind for kind in kinds if kind.quick]
    warm_up(kinds)
    adopt_orphans()
    campaign = Campaign(kinds, seed, folder, workers=arguments.workers, quick=arguments.quick)
    began = time.monotonic()
    told = began
    outcomes = []
    try:
        campaign.prepare()
        print(f"prepared in {time.monotonic() - began:.0f} s", flush=True)
        left = 60 * arguments.minutes - (time.monotonic() - began)
        for outcome in campaign.run_cases(cases) if cases else campaign.run(left):
            outcomes.append(outcome)
            if time.monotonic() > told + 60:
                told = time.monotonic()
                print(f"{len(outcomes):,} cases in {told - began:.0f} s", flush=True)
            if outcome.verdict not in FINE:
                print(f"{outcome.verdict}: {outcome.kind} {outcome.number} {outcome.tries}\n    {outcome.detail}")
                print(f"    again: python -m torture --seed {seed} --case {outcome.kind}:{outcome.number}", flush=True)
    finally:
        kill_all(descendants(os.getpid()))  # where this is interrupted
        shutil.rmtree(folder, ignore_errors=True)
    facts = report.facts(seed, time.monotonic() - began, kinds, outcomes)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    is_whole = not (cases or arguments.only or arguments.quick)
    path = arguments.report or (ROOT / "RELIABILITY.md" if is_whole else None)
    if path is not None:
        path.write_text(report.render(facts), encoding="utf-8")
    print(report.summary(facts), flush=True)
    short = report.shortfall(facts) if is_whole else ""
    if short:
        print(f"TOO LITTLE: {short}", flush=True)
    return int(bool(short or facts["failures"]))


if __name__ == "__main__":
    sys.exit(main())
