"""Compiled programs are kept in a private folder, found again by a process without a compiler, and never trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cohorts
import pytest
import torch
from torch import Tensor
from torture.material import write_little_dataset
from training import Stop, make_job, stop_at, texts, train, train_all

from cclfp.core.userfiles import imported_by, refer
from cclfp.engine import compiled, programs
from cclfp.engine.cohort import Cohort
from cclfp.engine.compiled import has_constants, program, trace
from cclfp.engine.eager import seconds_per_step
from cclfp.engine.programs import KeptPrograms, Kind, building_folder, cache_folder
from cclfp.errors import InputError
from cclfp.runs.events import Event, Step
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job
from cclfp.runs.settings import configurations
from cclfp.runs.start import kind_of_programs
from cclfp.runs.store import Store

KIND = Kind("er")
KEY = ("er", 10)
TRAIN = """
import json, sys
import cclfp
from cclfp.engine import compiled
compiled.WORTH = 50
(result,) = cclfp.run("er", "split-mnist", seeds=[0], engine="compiled", store=sys.argv[1])
imported = [name for name in ("sympy", "torch._dynamo", "torch._inductor") if name in sys.modules]
(run,) = result.runs
print(json.dumps({"imported": imported, "matrix": run["accuracy_matrix"], "engine": run["environment"]["engine"]}))
"""


def keep(key: object = KEY, kind: Kind = KIND, *, has_constants: bool = False) -> Path:
    """Keep a file that is no program in this test's cache folder, and return where."""
    before = set(cache_folder().glob("*.so"))
    KeptPrograms(kind).keep(key, Path(__file__), has_constants=has_constants)
    return next(iter(set(cache_folder().glob("*.so")) - before), Path())


@pytest.mark.slow
def test_the_second_process_does_not_import_the_compiler(tmp_path: Path) -> None:
    home, cache = tmp_path / "home", tmp_path / "cache"
    write_little_dataset(home, "mnist", 10, (1, 28, 28), train=1500, test=200)
    environment = {**os.environ, "CCLFP_HOME": str(home), "XDG_CACHE_HOME": str(cache)}
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)

    def train(name: str) -> dict[str, Any]:
        command = [sys.executable, "-c", TRAIN, str(home / f"{name}.sqlite")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    cold, warm = train("cold"), train("warm")
    assert "torch._inductor" in cold.pop("imported")
    assert warm.pop("imported") == []
    assert warm == cold
    assert warm["engine"] == "compiled"
    # Native code is in the cache folder only, where nobody else has access.
    (library,) = (cache / "cclfp").glob("*.so")
    assert {path.name for path in (cache / "cclfp").iterdir()} == {library.name, "compiler"}
    assert [path.stat().st_mode & 0o777 for path in (cache / "cclfp", library)] == [0o700, 0o600]
    assert not any(path.read_bytes().startswith(b"\x7fELF") for path in home.rglob("*") if path.is_file())


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def make_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def make_a_file(path: Path) -> None:
    path.rmdir()
    path.touch(mode=0o600)


def give_away(path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(path, os.getuid() + 1, -1)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no program": lambda path: None,
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "a byte": change_a_byte,
    "others may write": lambda path: path.chmod(0o620),
    "a link": make_a_link,
    "of another user": give_away,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_program_that_cannot_be_trusted_is_not_used(damage: str) -> None:
    kept = keep()
    assert KeptPrograms(KIND).has(KEY)
    DAMAGES[damage](kept)
    notes: list[str] = []
    assert KeptPrograms(KIND, notes.append).load(KEY) is None
    assert [note.partition(": ")[0] for note in notes] == ["a kept program is compiled again"]
    assert kept.is_symlink() == KeptPrograms(KIND).any() == (damage == "a link")  # which this program did not make


SPOILT: dict[str, Callable[[Path], object]] = {
    "has mode 750": lambda path: path.chmod(0o750),
    "is a symbolic link": make_a_link,
    "is not a folder": make_a_file,
    "belongs to another user": give_away,
}


@pytest.mark.parametrize("reason", SPOILT)
def test_a_folder_that_is_not_private_is_not_used(reason: str) -> None:
    cache_folder().mkdir(parents=True, mode=0o700)
    SPOILT[reason](cache_folder())
    notes: list[str] = []
    ours = KeptPrograms(KIND, notes.append)
    ours.keep(KEY, Path(__file__), has_constants=False)
    assert not ours.any()
    assert ours.load(KEY) is None
    (note,) = notes
    assert f"compiled programs are not kept: {cache_folder()} {reason}" in note
    with building_folder() as folder:
        assert not folder.is_relative_to(cache_folder())


def test_a_relative_or_empty_setting_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for chosen in ("", "cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", chosen)
        assert cache_folder() == tmp_path / ".cache" / "cclfp"


def test_what_a_program_depends_on() -> None:
    keep()
    assert KeptPrograms(KIND).has(KEY)
    assert not KeptPrograms(KIND).has(("er", 11))
    assert not KeptPrograms(Kind("er", is_own=True)).any()
    assert not KeptPrograms(None).any()
    others = {"torch.get_num_threads": lambda: 2, "torch.__version__": "2.99", "describe_processor": dict}
    for name, other in others.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(name if "." in name else f"cclfp.engine.programs.{name}", other)
            assert not KeptPrograms(KIND).any()


def test_own_code_with_constants_is_not_kept() -> None:
    own, outside = Kind("mine", is_own=True), torch.ones(2)
    for step, constant in ((lambda w, x, row: [w[0] * x[0]], False), (lambda w, x, row: [w[0] * outside], True)):
        assert has_constants(trace(step, [torch.ones(2)], [torch.ones(2)], [torch.ones(3)])) == constant
        keep(constant, own, has_constants=constant)
    assert [KeptPrograms(own).has(constant) for constant in (False, True)] == [True, False]


def test_programs_are_removed_in_the_order_of_their_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "LIMIT", 2 * Path(__file__).stat().st_size + 1)
    for number in range(3):
        keep(number)
        for path in cache_folder().glob("*.so"):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 10))
    assert [KeptPrograms(KIND).has(number) for number in range(3)] == [False, True, True]


def test_nothing_else_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = keep()
    name = f"{KeptPrograms(KIND)._kind}-{'0' * 32}-{'0' * 64}.so"
    foreign = [kept.with_name(name) for name in ("my-own-library.so", f"{name[:16]}-my-own.so", name, f"1{name[1:]}")]
    for path in foreign[:2]:
        path.touch()
    foreign[2].symlink_to(foreign[0])
    foreign[3].mkdir()
    monkeypatch.setattr(programs, "LIMIT", 0)
    keep("another")
    KeptPrograms(KIND).remove()
    assert set(cache_folder().iterdir()) == set(foreign)


@pytest.mark.parametrize("chosen", [None, "mine"])
def test_where_the_compiler_keeps_its_files(chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a private folder while it runs, or where the user says; the user's process has the setting that it had."""
    name, seen = "TORCHINDUCTOR_CACHE_DIR", list[str | None]()
    monkeypatch.delenv(name)
    if chosen is not None:
        monkeypatch.setenv(name, chosen)
    monkeypatch.setattr(compiled, "trace", lambda *arguments: seen.append(os.environ.get(name)))
    with pytest.raises(compiled.NotCompiled, match="the compiler failed"):
        program(lambda changing, fixed, row: changing, [], [], [])
    assert seen == [chosen or str(cache_folder() / "compiler")]
    assert os.environ.get(name) == chosen


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(programs, "write_atomic", fail)
    notes: list[str] = []
    KeptPrograms(KIND, notes.append).keep(KEY, Path(__file__), has_constants=False)
    assert notes == ["a compiled program is not kept: [Errno 28] No space left on device"]


@pytest.mark.slow
def test_what_a_killed_build_leaves_is_removed() -> None:
    code = (
        "import os\nfrom cclfp.engine.programs import building_folder\nwith building_folder(): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert len(list(cache_folder().iterdir())) == 1
    with building_folder() as first, building_folder() as second:
        assert {first, second} == set(cache_folder().iterdir())  # those of living processes stay
    assert not list(cache_folder().iterdir())


def test_the_kind_of_own_code(tmp_path: Path, small_mnist: Path) -> None:
    path = tmp_path / "mine.py"
    kinds = []
    for extra in ("", "import numpy, math\n", "import pytest\n"):
        path.write_text(f"from cclfp.methods.er import ER\n{extra}class Mine(ER):\n    name = 'mine'\n")
        (configuration,) = configurations([f"{path}:Mine"], "split-mnist")
        kinds.append(kind_of_programs(Job(configuration, 0, Execution("cpu")), 1))
    assert [kind is not None and kind.is_own for kind in kinds] == [True, True, False]
    assert kinds[0] != kinds[1]
    assert kinds[2] is None
    path.write_text(
        "import os.path, torch\nfrom cclfp.losses import x\nfrom . import beside\nf = 1; import other.part\n"
    )
    assert imported_by(refer("method", f"{path}:f")) == {"os", "torch", "cclfp", ".", "other"}


# -- in a cohort -------------------------------------------------------------------------------------------------------


replica = partial(cohorts.replica, "er", "class")


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A compiler that gives back the step and keeps a file; the list grows with each program that it makes."""
    made: list[str] = []

    def compile_step(step: Any, *arguments: Any, keep: Callable[..., None]) -> Any:
        made.append("program")
        keep(Path(__file__), has_constants=False)
        return step

    monkeypatch.setattr(compiled, "WORTH", 1)
    monkeypatch.setattr(compiled, "program", compile_step)
    return made


@pytest.mark.usefixtures("compiler")
def test_a_kept_program_that_does_something_else_is_found_and_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "load", lambda library: lambda changing, *others: changing)
    alone, notes = replica(), list[str]()
    Cohort([alone]).advance()
    for is_loaded in (False, True, False):
        ours = replica()
        cohort = Cohort([ours], "compiled", notes.append, kind=KIND)
        cohort.advance()
        assert ours.matrix == alone.matrix
        assert (cohort.engine, len(notes)) == (("eager", 1) if is_loaded else ("compiled", 0))
        notes.clear()


def test_what_is_compiled_is_announced_and_what_is_loaded_is_not(
    compiler: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise InputError("the listener has had enough")

    with pytest.raises(InputError, match="had enough"):  # and the runs do not go on eagerly
        Cohort([replica()], "compiled", kind=KIND, on_compile=fail).advance()
    assert compiler == []
    Cohort([replica()], "compiled", kind=KIND, on_compile=lambda: compiler.append("announced")).advance()
    assert compiler == ["announced", "program"] * (len(compiler) // 2) != []
    compiler.clear()
    monkeypatch.setattr(programs, "load", lambda library: lambda changing, *others: changing)
    monkeypatch.setattr("cclfp.engine.groups.Group.check_step", lambda *arguments: None)
    Cohort([replica()], "compiled", kind=KIND, on_compile=lambda: compiler.append("announced")).advance()
    assert compiler == []


@pytest.mark.slow
def test_a_step_that_solves_equations_is_compiled_but_not_kept() -> None:
    """As GEM's does. No library can call the solver."""

    def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
        return [changing[0] + torch.linalg.solve_ex(fixed[0], row[0])[0]]

    matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    arguments = [torch.ones(2)], [matrix], [torch.tensor([3.0, 5.0])]
    compiled_step = program(step, *arguments, keep=lambda library, has_constants: pytest.fail("kept"))
    assert torch.allclose(compiled_step(*arguments)[0], torch.tensor([1.8, 2.4]))


# -- jobs --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path, small_mnist: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    """Makes a job with this seed and fields of its execution; each step is an event."""
    monkeypatch.setattr("cclfp.runs.training.STEP_EVERY", 0.0)

    def make(seed: int = 0, **execution: Any) -> Job:
        (configuration,) = configurations(["er"], "split-mnist")
        return make_job(configuration, seed, **{"store": tmp_path / "runs.sqlite", "engine": "compiled", **execution})

    return make


def test_a_step_of_the_eager_engine_is_timed() -> None:
    assert 0 < seconds_per_step(replica()) < 1


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("seconds", "kept", "engine"), [(0.0, 0, "eager"), (9, 0, "eager"), (9, 1, "compiled")])
def test_auto_compiles_where_there_is_enough_to_train(
    seconds: float, kept: int, engine: str, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager takes 9 s: too few for the compiler, but not where its programs are kept."""

    monkeypatch.setattr("cclfp.engine.eager.seconds_per_step", lambda r: seconds / sum(map(r.steps, range(5))))
    for seed in range(kept):
        train(job(seed))
    events: list[Event] = []
    assert train(job(9, engine="auto"), events.append)["environment"]["engine"] == engine
    took = "about 9 s" if seconds else "less than a second"
    assert f"engine: {engine} (eager would take {took})" in texts(events)


@pytest.mark.usefixtures("compiler")
def test_events_say_when_a_run_waits_for_the_compiler(job: Callable[..., Job]) -> None:
    events: list[Event] = []
    train(job(), events.append)
    steps = [event for event in events if isinstance(event, Step)]
    waiting = [i for i, event in enumerate(steps) if event.compiling]
    assert waiting
    for i in waiting[1:]:
        assert steps[i].step == steps[i - 1].step  # those before it are taken
        assert steps[i].task in (steps[i - 1].task, steps[i - 1].task + 1)
    assert not steps[-1].compiling


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("step", [40, 75])
def test_a_stopped_cohort_goes_on_where_it_was(step: int, job: Callable[..., Job], tmp_path: Path) -> None:
    jobs = [job(seed) for seed in range(2)]
    with pytest.raises(Stop):
        train_all(jobs, stop_at(step))
    assert Store(jobs[0].execution.store).records() == []
    events: list[Event] = []
    # The engine that the checkpoints name is used again, whatever auto would choose now.
    again = train_all([one.with_execution(engine="auto") for one in jobs], events.append)
    assert sum("continuing from the checkpoint" in text for text in texts(events)) == 2
    assert {record["environment"]["engine"] for record in again} == {"compiled"}
    whole = train_all([one.with_execution(store=tmp_path / "other.sqlite") for one in jobs])
    assert [r["accuracy_matrix"] for r in again] == [r["accuracy_matrix"] for r in whole]


@pytest.mark.usefixtures("compiler")
def test_another_engine_asked_for_starts_again(job: Callable[..., Job]) -> None:
    with pytest.raises(Stop):
        train(job(), stop_at(40))
    events: list[Event] = []
    record = train(job(engine="eager"), events.append)
    assert any("it was made with engine compiled, not with the eager asked for" in text for text in texts(events))
    assert record["environment"]["engine"] == "eager"
