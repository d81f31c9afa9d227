"""``python -m torture``: run the campaign and write RELIABILITY.md.

The exit code is 1 if a case failed, or if a full campaign had too few kills or hostile files.
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
    parser.add_argument(
        "--minutes", type=float, default=20.0, help="duration; every kind runs its minimum of cases anyway"
    )
    parser.add_argument("--seed", type=int, default=None, help="the seed of an earlier campaign, to repeat its cases")
    parser.add_argument("--only", default="", help="only kinds whose name starts with this, such as kills")
    parser.add_argument("--case", action="append", default=[], metavar="KIND:NUMBER", help="only this case")
    parser.add_argument("--quick", action="store_true", help="only the few cases that the test suite runs")
    parser.add_argument("--workers", type=int, default=2, help="how many cases run at the same time")
    parser.add_argument(
        "--report",
        type=Path,
        default=None,
        help="the report to write; default: RELIABILITY.md for a full campaign",
    )
    parser.add_argument("--json", type=Path, default=None, help="a JSON file to write, with all outcomes")
    arguments = parser.parse_args()
    if sys.platform != "linux":
        parser.error("the campaign needs Linux: it uses /proc and fork")
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    print(f"seed {seed}", flush=True)

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
        parser.error(f"no such kind; expected one of {', '.join(kind.id for kind in KINDS)}")
    if arguments.quick:
        kinds = [kind for kind in kinds if kind.quick]
    warm_up(kinds)
    adopt_orphans()
    campaign = Campaign(kinds, seed, folder, workers=arguments.workers, quick=arguments.quick)
    began = time.monotonic()
    last_print = began
    outcomes = []
    try:
        campaign.prepare()
        print(f"prepared in {time.monotonic() - began:.0f} s", flush=True)
        remaining = 60 * arguments.minutes - (time.monotonic() - began)
        for outcome in campaign.run_cases(cases) if cases else campaign.run(remaining):
            outcomes.append(outcome)
            if time.monotonic() > last_print + 60:
                last_print = time.monotonic()
                print(f"{len(outcomes):,} cases in {last_print - began:.0f} s", flush=True)
            if outcome.verdict not in FINE:
                print(f"{outcome.verdict}: {outcome.kind} {outcome.number} {outcome.tries}\n    {outcome.detail}")
                print(f"    repeat: python -m torture --seed {seed} --case {outcome.kind}:{outcome.number}", flush=True)
    finally:
        kill_all(descendants(os.getpid()))  # in case of an interruption
        shutil.rmtree(folder, ignore_errors=True)
    facts = report.facts(seed, time.monotonic() - began, kinds, outcomes)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    is_full = not (cases or arguments.only or arguments.quick)
    path = arguments.report or (ROOT / "RELIABILITY.md" if is_full else None)
    if path is not None:
        path.write_text(report.render(facts), encoding="utf-8")
    print(report.summary(facts), flush=True)
    missing = report.shortfall(facts) if is_full else ""
    if missing:
        print(f"TOO FEW: {missing}", flush=True)
    return int(bool(missing or facts["failures"]))


if __name__ == "__main__":
    sys.exit(main())
