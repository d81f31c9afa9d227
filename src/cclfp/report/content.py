"""Everything the report shows, collected from the runs in a store."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from cclfp.paper import TABLES, TIMING_SEED, cells, gather, run_time_cells
from cclfp.report.charts import Chart
from cclfp.report.entries import VERDICTS, Entry, Table, compare_table, distinct
from cclfp.report.figures import make_charts
from cclfp.report.own import OwnRuns, collect_own
from cclfp.report.own_charts import own_charts
from cclfp.runs.store import Store


@dataclasses.dataclass(frozen=True)
class Content:
    seeds: list[int]
    tables: list[Table]
    charts: list[Chart]
    environments: list[dict[str, Any]]
    include_diverged: bool = False
    own: OwnRuns = dataclasses.field(default_factory=lambda: OwnRuns([], 0, 0))

    @property
    def own_charts(self) -> list[Chart]:
        return own_charts(self.own.tables)

    @property
    def entries(self) -> list[Entry]:
        return [entry for table in self.tables for entry in table.entries]

    def counts(self, entries: Sequence[Entry] | None = None) -> dict[str, int]:
        """The number of entries with each verdict, of all entries unless some are given."""
        verdicts = [entry.verdict for entry in (self.entries if entries is None else entries)]
        return {verdict: verdicts.count(verdict) for verdict in VERDICTS}

    @property
    def latest(self) -> str | None:
        """The day on which the newest run finished."""
        return max((r["finished_at"][:10] for entry in self.entries for r in entry.records), default=None)

    @property
    def runs(self) -> int:
        """The number of runs behind the numbers; runs that several tables share count once."""
        return len({record["key"] for entry in self.entries for record in entry.records})


def collect(store: Store, seeds: Sequence[int], include_diverged: bool = False) -> Content:
    """The content of the report for these seeds of a store.

    Means and curves leave out runs that diverged, unless ``include_diverged``.
    """
    tables = [compare_table(name, gather(cells(name), store, seeds), include_diverged) for name in TABLES]
    environments = [environment for table in tables for entry in table.entries for environment in entry.environments]
    in_tables = {record["key"] for table in tables for entry in table.entries for record in entry.records}
    in_tables |= {cell.key(TIMING_SEED) for cell in run_time_cells()}
    own = collect_own(store.records(), in_tables, include_diverged)
    return Content(list(seeds), tables, make_charts(tables, store), distinct(environments), include_diverged, own)
