"""Runs whose weights become NaN or infinite: found, marked in the record, and in no mean unless asked for."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Cli
from hypothesis import given
from hypothesis import strategies as st
from records import made_up
from report_records import cell_of, made_up_record, rows_of
from torch import Tensor, nn
from training import Stop, stop_at, texts, train
from training import make_job as make_any_job

import cclfp
from cclfp.engine import compiled as compiled_module
from cclfp.engine.cohort import Cohort
from cclfp.engine.replica import Replica
from cclfp.errors import DivergenceError, InputError
from cclfp.learner.checks import not_finite
from cclfp.methods import METHODS, Method
from cclfp.methods.er import ER
from cclfp.methods.icarl import ICaRL
from cclfp.paper import cells, compare
from cclfp.report import collect
from cclfp.report.components import component_worths
from cclfp.report.content import Content
from cclfp.report.entries import Table
from cclfp.report.latex import to_latex
from cclfp.report.tables import to_csv, to_markdown
from cclfp.runs import training
from cclfp.runs.events import Event
from cclfp.runs.jobs import Job
from cclfp.runs.record import Record
from cclfp.runs.run import Result
from cclfp.runs.seeds import Seeds
from cclfp.runs.settings import configurations
from cclfp.runs.store import Store
from cclfp.testing import Case, same, toy_psi

NUMBERS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(st.lists(NUMBERS, max_size=5), max_size=5), st.sampled_from([torch.float32, torch.float64]))
def test_not_finite_is_exact(rows: list[list[float]], dtype: torch.dtype) -> None:
    tensors = [torch.tensor(row, dtype=dtype) for row in rows]
    wanted = [i for i, tensor in enumerate(tensors) if not tensor.isfinite().all()]
    assert not_finite(tensors) == wanted


def test_numbers_whose_sum_overflows_are_finite() -> None:
    huge = torch.full((1000,), 3e38)
    assert not_finite([huge, torch.cat([huge, -huge]), torch.tensor([1, 2]), torch.tensor([torch.inf])]) == [3]


# -- engines ------------------------------------------------------------------------------------------------------


def replica(method: str | type[Method], seed: int = 0, psi: nn.Module | None = None, **hyper: float) -> Replica:
    kind = METHODS[method] if isinstance(method, str) else method
    case = Case(kind, kind.scenarios()[0], hyper)
    return Replica(case.learner(seed, psi=toy_psi(random=False) if psi is None else psi), case.stream())


def trained(replicas: list[Replica], engine: str = "eager", notes: list[str] | None = None) -> list[Replica]:
    cohort = Cohort(replicas, engine, (notes if notes is not None else []).append)
    while not cohort.is_done:
        cohort.advance()
    return replicas


@pytest.mark.parametrize("method", METHODS)
def test_every_method_diverges_and_goes_on_to_the_end(method: str) -> None:
    bad = replica(method, lr=1e30)
    while not bad.is_done:
        Cohort([bad]).advance()
    assert bad.diverged == (bad.stream.num_tasks if METHODS[method].joint else 1)
    assert all(accuracy is not None for accuracy in bad.matrix[-1])


@pytest.mark.parametrize("norm", [False, True], ids=["stacked", "forked"])
@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_it_is_found_beside_replicas_that_are_well(engine: str, norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_module, "WORTH", 1)
    monkeypatch.setattr(compiled_module, "program", lambda step, *arguments, **options: step)

    def psi() -> nn.Module:
        return toy_psi(random=False) if norm else nn.Sequential(nn.Linear(8, 16), nn.ReLU())

    torch.manual_seed(0)
    start = psi()
    notes: list[str] = []
    several = [replica("ccl-fp+", seed, copy.deepcopy(start), lr=lr) for seed, lr in ((0, 0.02), (1, 1e30), (2, 0.02))]
    trained(several, engine, notes)
    assert [r.diverged for r in several] == [None, 1, None]
    assert not notes  # one that diverges is no reason to train the others eagerly
    (alone,) = trained([replica("ccl-fp+", 2, copy.deepcopy(start), lr=0.02)], engine)
    assert alone.matrix == several[2].matrix


class LateNan(ER):
    """Its weights become NaN in the second task."""

    name = "late-nan"

    def step(self, params: Any, buffers: Any, state: Any, batch: Any, hyper: Any) -> Any:
        new, buffers, state, *_ = super().step(params, buffers, state, batch, hyper)
        bad = (batch.task[0] == 1) & (batch.n_current > 0)
        return {name: torch.where(bad, torch.nan, p) for name, p in new.items()}, buffers, state


def test_the_task_is_the_first_after_which_it_was_found(tmp_path: Path) -> None:
    late = replica(LateNan)
    found = []
    while not late.is_done:
        Cohort([late]).advance()
        found.append(late.diverged)
    assert found == [None, 2, 2]
    state = late.state_dict()
    again = replica(LateNan)
    again.load_state_dict(state)
    assert again.diverged == 2
    del state["diverged"]  # as a checkpoint of an earlier version
    again.load_state_dict(state)
    assert again.diverged is None


class NanMeans(ICaRL):
    """Its weights stay finite; the class means it predicts by do not."""

    name = "nan-means"

    def end_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
        after = super().end_task(params, buffers, state, hyper, context)
        return {**after, "means": after["means"] * torch.nan}


class InfinityOnPurpose(ICaRL):
    """Its state holds infinities from the beginning."""

    name = "infinity-on-purpose"

    def begin_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
        after = super().begin_task(params, buffers, state, hyper, context)
        return {**after, "nearest": torch.full((6,), torch.inf)}


class Masked(nn.Sequential):
    """A psi with a buffer of -inf, as attention masks are."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.Tanh())
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))


def test_only_what_predictions_use_counts_and_infinities_on_purpose_do_not() -> None:
    assert trained([replica(NanMeans)])[0].diverged == 1
    assert trained([replica(InfinityOnPurpose)])[0].diverged is None
    assert trained([replica("er", psi=Masked())])[0].diverged is None
    for method in (InfinityOnPurpose, "er", "ccl-fp+"):  # the last keeps a copy of psi's buffers in its state
        ours = cclfp.make(method, psi=Masked(), num_classes=6, memory=12)
        for seed in range(3):
            ours.observe(*batch(seed))
        ours.end_task()


def test_psis_statistics_count() -> None:
    bad = replica("er")
    Cohort([bad]).advance()
    found = [bad.diverged]
    with torch.no_grad():
        dict(bad.learner.psi.named_buffers())["1.running_var"][0] = torch.inf
    Cohort([bad]).advance()
    assert [*found, bad.diverged] == [None, 2]


# -- records and notes --------------------------------------------------------------------------------------------


@pytest.fixture
def make_job(small_mnist: Path, tmp_path: Path) -> Callable[..., Job]:
    def make(lr: float, seed: int = 0, **changes: Any) -> Job:
        (configuration,) = configurations(["er"], "split-mnist", None, settings={"lr": [lr]})
        return make_any_job(configuration, seed, **{"store": tmp_path / "runs.sqlite", **changes})

    return make


def test_a_diverged_run_is_stored_as_such_and_said_once(make_job: Callable[..., Job]) -> None:
    events: list[Event] = []
    record = train(make_job(1e20), events.append)
    assert record["diverged"] == 1
    assert texts(events) == ["weights are not finite after task 1 of 5: the run has diverged; try a smaller lr"]
    (stored,) = Store(make_job(1e20).execution.store).records()
    assert stored == record
    assert "diverged" not in train(make_job(0.1))


def test_a_stopped_run_that_diverged_is_still_known(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "STEP_EVERY", 0.0)
    with pytest.raises(Stop):
        train(make_job(1e20), stop_at(41))
    events: list[Event] = []
    assert train(make_job(1e20), events.append)["diverged"] == 1
    assert texts(events) == ["continuing from the checkpoint after task 1 of 5"]  # the note came before


@pytest.mark.slow
@pytest.mark.usefixtures("small_mnist")
def test_the_command_says_it_beside_the_mean_of_the_others(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cclfp.runs.pool.cores", lambda: 1)  # no other process is started
    command = ("run", "er", "split-mnist", "lr=0.1,1e20", "--seeds", "2", "--store", tmp_path / "runs.sqlite")
    answer = cli(*command, "--engine", "eager")
    assert answer.code == 0
    assert answer.err.count("the run has diverged; try a smaller lr") == 2
    assert len(re.findall(r"s, diverged$", answer.err, re.MULTILINE)) == 2
    (line,) = [line for line in answer.out.splitlines() if "1e+20" in line]
    assert "2 of 2 seeds diverged" in line
    well, bad = cli(*command, "--json").json["configurations"]
    assert (well["diverged"], bad["diverged"]) == ([], [0, 1])
    assert bad["average_accuracy"] == {"mean": None, "std": None}
    assert [run.get("diverged") for run in well["runs"] + bad["runs"]] == [None, None, 1, 1]
    assert "diverged" not in well["runs"][0]
    _, bad = cli(*command, "--json", "--include-diverged").json["configurations"]
    assert bad["average_accuracy"]["mean"] == sum(run["average_accuracy"] for run in bad["runs"]) / 2
    assert "2 of 2 seeds diverged, included" in cli(*command, "--include-diverged").out


def runs(accuracies: Sequence[float], diverged: Sequence[int]) -> list[Record]:
    (configuration,) = configurations(["er"], "split-mnist", None)
    found = []
    for seed, accuracy in enumerate(accuracies):
        record = made_up(configuration, seed, [[None] * 5 for _ in range(5)] + [[accuracy] * 5])
        found.append(record | ({"diverged": 2} if seed in diverged else {}))
    return found


def test_the_mean_is_of_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result(configurations(["er"], "split-mnist", None)[0], runs([80, 10, 82], [1]))
    assert result.mean_std("average_accuracy") == {"mean": 81, "std": pytest.approx(2**0.5)}
    assert result.mean_std("average_accuracy", include_diverged=True)["mean"] == pytest.approx(172 / 3)
    assert result.diverged == [1]
    assert result.seeds().text("average_accuracy") == "81.00 ± 1.41, 1 of 3 seeds diverged"
    assert Seeds(runs([9.0], [0])).text("average_accuracy") == "1 of 1 seed diverged"
    assert Seeds([]).text("average_accuracy") == "–"
    assert Seeds(runs([80, 82], [])).text("average_accuracy") == "81.00 ± 1.41"


# -- tables and report --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Split MNIST, class: seeds 1 and 3 of ER have diverged, all of FDR, and seed 0 of two rows of the ablation."""
    store = Store(tmp_path_factory.mktemp("diverged") / "runs.sqlite")
    bad = {("accuracy", "ER-Res."): {1, 3}, ("accuracy", "FDR"): set(range(5))}
    bad |= {("ablation", "w, α"): {0}, ("ablation", "w"): {0}}
    for table in ("accuracy", "ablation"):
        for cell in cells(table):
            is_class = cell.scenario == "class"
            if cell.benchmark != "split-mnist" or not (is_class or cell.method in ("er", "fdr")):
                continue
            for seed in range(5):
                record = made_up_record(cell, seed)
                if is_class and seed in bad.get((table, cell.row), ()):
                    record = made_up(
                        cell.configuration(), seed, [[None] * 5] + [[9.8] * 5] * 5, **record["environment"]
                    ) | {"diverged": 2}
                store.add(record)
    return store


@pytest.fixture(scope="module")
def content(diverged: Store) -> Content:
    return collect(diverged, range(5))


def table_of(content: Content, name: str = "accuracy") -> Table:
    return next(table for table in content.tables if table.name == name)


def test_a_comparison_leaves_out_what_diverged(diverged: Store) -> None:
    cell = cell_of("accuracy", "ER-Res.", "split-mnist", "class")
    found = compare(cell, [made_up_record(cell, 0), made_up_record(cell, 1) | {"diverged": 1}])
    assert (found.n, found.mean, found.seeds.diverged) == (2, made_up_record(cell, 0)["average_accuracy"], [1])


@pytest.mark.slow
def test_every_table_says_how_many_seeds_diverged(content: Content) -> None:
    table = table_of(content)
    assert content.counts()["diverged"] == 1
    text = to_markdown(table, content)
    (er,) = [line for line in text.splitlines() if line.startswith("| ER-Res.")]
    (fdr,) = [line for line in text.splitlines() if line.startswith("| FDR")]
    assert re.search(r"\d\d\.\d\d ± \d+\.\d\d\S* \[2 of 5 seeds diverged\] \(76.43", er)
    assert "| 5 of 5 seeds diverged (" in fdr
    assert "Means leave out runs that diverged" in text
    assert ", 1 diverged." in text
    listed = rows_of(to_csv(table, content))
    lines = {r["row"]: r for r in listed if (r["benchmark"], r["scenario"]) == ("split-mnist", "class")}
    assert [lines[row]["diverged"] for row in ("ER-Res.", "FDR", "GEM")] == ["1 3", "0 1 2 3 4", ""]
    assert [pair.split(":")[0] for pair in lines["ER-Res."]["accuracies"].split()] == ["0", "2", "4"]
    assert lines["FDR"]["verdict"] == "diverged"
    tex = to_latex(table, content)
    assert r" \\ {\scriptsize 2 of 5 seeds diverged}}" in tex
    assert r"\textit{5 of 5 seeds diverged}" in tex


@pytest.mark.slow
def test_they_can_be_included(diverged: Store, content: Content) -> None:
    with_all = collect(diverged, range(5), include_diverged=True)
    found = {}
    for some in (content, with_all):
        entries = {e.cell.row: e for e in table_of(some).entries if e.records and e.cell.scenario == "class"}
        found[some.include_diverged] = entries["ER-Res."], entries["FDR"]
    er, fdr = found[True]
    assert fdr.comparison.mean == pytest.approx(9.8)
    mean = found[False][0].comparison.mean
    assert mean is not None
    assert er.comparison.mean == pytest.approx((3 * mean + 2 * 9.8) / 5)
    assert "2 of 5 seeds diverged, included" in to_markdown(table_of(with_all), with_all)
    assert er.command([]).endswith("--include-diverged")
    assert "--include-diverged" not in found[False][0].command([])


def test_differences_are_of_the_seeds_that_diverged_in_neither(content: Content) -> None:
    entries = {e.cell.row: e for e in table_of(content, "ablation").entries if e.records and e.cell.scenario == "class"}
    whole, without = (entries[row].comparison.seeds.accuracies for row in ("w, α, β", "w, α"))
    assert list(without) == [1, 2, 3, 4]
    change = sum(without[seed] - whole[seed] for seed in without) / 4
    shown = [list(worth.changes)[2][0] for worth in component_worths(table_of(content, "ablation"))]  # without β
    assert any(text.startswith(f"{change:+.2f}".replace("-", "−")) for text in shown)


def test_charts_leave_them_out_and_say_so(content: Content) -> None:
    chart = next(chart for chart in content.charts if chart.name == "forgetting")
    panel = chart.panels[0]
    values = dict(zip(panel.categories, panel.series[0].values, strict=True))
    assert values["FDR"] is None
    er = values["ER-Res."]
    assert er is not None
    assert len(er.seeds) == 3
    assert chart.notes(panel) == ["ER-Res.: 2 of 5 seeds diverged; FDR: 5 of 5 seeds diverged"]
    assert panel.reason_missing(panel.series[0], "FDR") == "diverged"
    ablation = next(chart for chart in content.charts if chart.name == "ablation")
    assert ablation.notes(ablation.panels[0]) == ["w: 1 of 5 seeds diverged; w, α (CCL-FP): 1 of 5 seeds diverged"]


@pytest.mark.slow
def test_the_report_and_its_page(diverged: Store, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = cli("report", "--out", tmp_path / "report", "--store", diverged.path)
    assert ", 1 diverged" in answer.out
    page = (tmp_path / "report/index.html").read_text()
    assert '<small class="n">2 of 5 seeds diverged</small>' in page
    assert re.search(r'<td class="v-diverged"[^>]*><span class="ours">5 of 5 seeds diverged</span>', page)
    assert '"counted":[0,2,4],"diverged":{"1":2,"3":2},"remark":"2 of 5 seeds diverged"' in page
    assert ">diverged</text>" in page
    monkeypatch.setattr(
        "cclfp.report._render_figures", lambda content: {f"{c.name}.svg": b"" for c in content.charts}
    )  # slow
    counts = cli("report", "--out", tmp_path / "all", "--store", diverged.path, "--include-diverged", "--json").json
    assert counts["counts"]["diverged"] == 0
    assert "2 of 5 seeds diverged, included" in (tmp_path / "all/index.html").read_text()


def test_study_says_it(diverged: Store, cli: Cli) -> None:
    command = ("study", "accuracy", "--benchmark", "split-mnist", "--method", "er,fdr", "--store", diverged.path)
    answer = cli(*command)
    assert answer.code == 0
    (fdr,) = [line for line in answer.out.splitlines() if "FDR" in line and "5 of 5 seeds diverged" in line]
    assert "–" in fdr
    assert re.search(r"\n│ +│ 2 of 5 seeds diverged │", answer.out)  # below the mean
    assert "4 cells: " in answer.out
    assert ", 1 of which all seeds diverged" in answer.out
    found = {(c["method"], c["scenario"]): c for c in cli(*command, "--json").json["cells"]}
    assert [found[key]["diverged"] for key in (("er", "class"), ("fdr", "class"), ("er", "task"))] == [
        [1, 3],
        [0, 1, 2, 3, 4],
        [],
    ]
    assert (found["er", "class"]["runs"], found["fdr", "class"]["mean"]) == (5, None)
    found = {(c["method"], c["scenario"]): c for c in cli(*command, "--json", "--include-diverged").json["cells"]}
    assert found["fdr", "class"]["mean"] == pytest.approx(9.8)


# -- observe and end_task -----------------------------------------------------------------------------------------


def batch(seed: int = 0, n: int = 6, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, 8, generator=g), torch.randint(0, 6, (n,), generator=g)


def online(method: str | type[Method]) -> cclfp.Learner:
    psi = toy_psi()  # with BatchNorm and dropout
    return cclfp.make(method, psi=psi, num_classes=6, memory=12)


@pytest.mark.parametrize("warm", [0, 1, 9], ids=["first", "second", "later"])
@pytest.mark.parametrize("method", [name for name, kind in METHODS.items() if not kind.joint])
def test_a_step_that_diverges_leaves_the_learner_as_it_was(method: str, warm: int) -> None:
    ours, theirs = online(method), online(method)
    for learner in (ours, theirs):
        for number in range(warm):
            learner.observe(*batch(number), task=number // 5)
            if number == 4:
                learner.end_task()
    tensors = [*ours.psi.parameters(), *ours.psi.buffers()]
    values = [t.detach().clone() for t in tensors]
    pool = None if ours.memory is None else vars(ours.memory)["_pool"]
    torch.manual_seed(1)
    random = torch.get_rng_state()
    with pytest.raises(DivergenceError) as refused:
        ours.observe(*batch(99, scale=1e38), task=warm // 5)
    assert re.match(
        r"the step made (weights that are|a state that is) not finite \(lr=0\.1\), in .*: the learner is as it was; "
        "use a smaller lr or check the inputs$",
        str(refused.value),
    )
    assert all(torch.equal(t, value) for t, value in zip(tensors, values, strict=True))
    assert all(a is b for a, b in zip(tensors, [*ours.psi.parameters(), *ours.psi.buffers()], strict=True))
    assert ours.memory is None or vars(ours.memory)["_pool"] is pool
    assert torch.equal(torch.get_rng_state(), random)
    assert same(ours, theirs)
    for learner in (ours, theirs):
        for number in range(warm, warm + 3):
            learner.observe(*batch(number), task=number // 5)
        learner.end_task()
        learner.observe(*batch(50), task=7)
    assert same(ours, theirs)


def test_a_huge_step_size_is_refused_and_named() -> None:
    ours = cclfp.make("er", psi=nn.Linear(8, 4), num_classes=6, lr=1e38)
    with pytest.raises(DivergenceError, match=r"weights that are not finite \(lr=1e\+38\), in "):
        ours.observe(*batch(scale=100))
    assert not not_finite([*ours.psi.parameters()])
    assert issubclass(DivergenceError, InputError)


def test_a_memory_of_a_streams_rows_stays_so() -> None:
    """A refused batch does not make copies of the rows, with which the replica could not go on."""
    rows = replica("er")
    Cohort([rows]).advance()
    with pytest.raises(DivergenceError):
        rows.learner.observe(1e38 * batch()[0], torch.tensor([2, 3] * 3), task=1)
    Cohort([rows]).advance()
    never = replica("er")
    Cohort([never]).advance()
    Cohort([never]).advance()
    assert same(rows.learner, never.learner)


def test_a_learner_that_had_diverged_before_is_named_as_such() -> None:
    ours = online("er")
    ours.observe(*batch())
    with torch.no_grad():
        next(iter(ours.psi.parameters())).fill_(torch.nan)
    with pytest.raises(DivergenceError, match="were not finite before"):
        ours.observe(*batch(1))


class BadEnd(NanMeans):
    """The end of its second task gives NaN, unless told otherwise."""

    name = "bad-end"
    bad = True

    def end_task(self, params: Any, buffers: Any, state: Any, hyper: Any, context: Any) -> Any:
        if context.position == 1 and BadEnd.bad:
            return super().end_task(params, buffers, state, hyper, context)
        return ICaRL.end_task(self, params, buffers, state, hyper, context)


def test_a_task_whose_end_diverges_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = online(BadEnd), online(BadEnd)
    for learner in (ours, theirs):
        for number in range(4):
            learner.observe(*batch(number), task=number // 2)
            if number == 1:
                learner.end_task()
    with pytest.raises(
        DivergenceError, match=r"the end of the task made a state that is not finite .* state\['means'\]"
    ):
        ours.end_task()
    assert same(ours, theirs)
    monkeypatch.setattr(BadEnd, "bad", False)
    for learner in (ours, theirs):
        learner.observe(*batch(4), task=1)
        learner.end_task()
        learner.observe(*batch(5), task=2)
    assert same(ours, theirs)


def test_engines_do_not_check_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def spy(tensors: Sequence[Tensor]) -> list[int]:
        calls.append(len(tensors))
        return not_finite(tensors)

    monkeypatch.setattr("cclfp.engine.replica.not_finite", spy)
    monkeypatch.setattr("cclfp.learner.checks.not_finite", spy)
    several = [replica("er", seed) for seed in range(3)]
    calls.clear()
    trained(several)
    assert len(calls) == len(several[0].stream.train_rows)  # once per task for all of them
