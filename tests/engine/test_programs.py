"""Compiled programs are kept in a private folder, found again by a process without a compiler, and never trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torture.material import write_little_dataset

from cclfp.core.randomness import generator
from cclfp.core.userfiles import imported_by, refer
from cclfp.engine import compiled, programs
from cclfp.engine.cohort import Cohort
from cclfp.engine.compiled import has_constants, program, trace
from cclfp.engine.programs import KeptPrograms, Kind, NotPrivate, building_folder, cache_folder, private_folder
from cclfp.engine.replica import Replica
from cclfp.errors import InputError
from cclfp.methods import METHODS
from cclfp.nets import linear
from cclfp.runs.execution import Execution
from cclfp.runs.jobs import Job
from cclfp.runs.settings import configurations
from cclfp.runs.start import kind_of_programs
from cclfp.testing import Case

KIND = Kind("er")
KEY = ("er", 10)
TRAIN = """
import json, sys
import cclfp
from cclfp.engine import compiled
compiled.WORTH = 50
(result,) = cclfp.run("er", "split-mnist", seeds=[0], engine="compiled", store=sys.argv[1])
imported = [name for name in ("sympy", "torch._dynamo", "torch._inductor") if name in sys.modules]
records = [{key: record[key] for key in ("seed", "accuracy_matrix")} for record in result.runs]
engines = [record["environment"]["engine"] for record in result.runs]
print(json.dumps({"imported": imported, "records": records, "engines": engines}))
"""


class Trained:
    """A process that compiled a program, and one after it."""

    def __init__(self, folder: Path) -> None:
        self.home, self.cache = folder / "home", folder / "cache"
        write_little_dataset(self.home, "mnist", 10, (1, 28, 28), train=1500, test=200)
        self.cold = self.train("cold")

    def train(self, name: str) -> dict[str, Any]:
        environment = {**os.environ, "CCLFP_HOME": str(self.home), "XDG_CACHE_HOME": str(self.cache)}
        environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
        command = [sys.executable, "-c", TRAIN, str(self.home / f"{name}.sqlite")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    @property
    def libraries(self) -> list[Path]:
        return sorted((self.cache / "cclfp").glob("*.so"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def kept(trained: Trained) -> Path:
    """A program in this test's cache folder, for KIND and KEY."""
    KeptPrograms(KIND).keep(KEY, trained.libraries[0], has_constants=False)
    (path,) = cache_folder().glob("*.so")
    return path


@pytest.mark.slow
def test_the_second_process_does_not_import_the_compiler(trained: Trained) -> None:
    warm = trained.train("warm")
    assert "torch._inductor" in trained.cold["imported"]
    assert warm["imported"] == []
    assert warm["engines"] == trained.cold["engines"] == ["compiled"]
    assert warm["records"] == trained.cold["records"]
    assert len(trained.libraries) == 1


@pytest.mark.slow
def test_native_code_is_in_the_cache_folder_only(trained: Trained) -> None:
    files = [path for path in trained.home.rglob("*") if path.is_file()]
    assert files
    assert not any(path.read_bytes().startswith(b"\x7fELF") for path in files)
    assert (trained.cache / "cclfp").stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in trained.libraries] == [0o600]
    assert {path.name for path in (trained.cache / "cclfp").iterdir()} == {trained.libraries[0].name, "compiler"}


@pytest.mark.slow
def test_a_kept_program_is_loaded(kept: Path) -> None:
    notes: list[str] = []
    ours = KeptPrograms(KIND, notes.append)
    assert ours.any()
    assert ours.has(KEY)
    assert ours.load(KEY) is not None
    assert notes == []


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def let_others_write(path: Path) -> None:
    path.chmod(0o620)


def make_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def give_away(path: Path) -> None:
    os.chown(path, os.getuid() + 1, -1)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [truncate, change_a_byte, let_others_write, make_a_link, give_away])
def test_a_program_that_cannot_be_trusted_is_removed(damage: Callable[[Path], None], kept: Path) -> None:
    if damage is give_away and os.getuid() != 0:
        pytest.skip("only root can give files away")
    damage(kept)
    notes: list[str] = []
    assert KeptPrograms(KIND, notes.append).load(KEY) is None
    assert [note.startswith(f"a kept program is compiled again: {kept}") for note in notes] == [True]
    assert not KeptPrograms(KIND).has(KEY)


def test_a_file_that_is_no_program_is_removed(tmp_path: Path) -> None:
    KeptPrograms(KIND).keep(KEY, Path(__file__), has_constants=False)
    notes: list[str] = []
    assert KeptPrograms(KIND, notes.append).load(KEY) is None
    assert len(notes) == 1
    assert not KeptPrograms(KIND).any()


def other_mode(path: Path) -> str:
    path.mkdir(parents=True)
    path.chmod(0o750)
    return "has mode 750"


def link(path: Path) -> str:
    path.parent.mkdir()
    (path.parent / "elsewhere").mkdir(mode=0o700)
    path.symlink_to("elsewhere")
    return "is a symbolic link"


def file(path: Path) -> str:
    path.parent.mkdir()
    path.touch(mode=0o600)
    return "is not a folder"


@pytest.mark.parametrize("spoil", [other_mode, link, file])
def test_a_folder_that_is_not_private_is_not_used(spoil: Callable[[Path], str]) -> None:
    reason = spoil(cache_folder())
    notes: list[str] = []
    ours = KeptPrograms(KIND, notes.append)
    ours.keep(KEY, Path(__file__), has_constants=False)
    assert not ours.any()
    assert ours.load(KEY) is None
    assert len(notes) == 1
    assert f"compiled programs are not kept: {cache_folder()} {reason}" in notes[0]
    with building_folder() as folder:
        assert not folder.is_relative_to(cache_folder())


def test_a_folder_of_another_user_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    private_folder()
    monkeypatch.setattr("os.getuid", lambda: os.geteuid() + 1)
    with pytest.raises(NotPrivate, match="belongs to another user"):
        private_folder()


def test_a_relative_or_empty_setting_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for chosen in ("", "cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", chosen)
        assert cache_folder() == tmp_path / ".cache" / "cclfp"


def test_what_a_program_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    KeptPrograms(KIND).keep(KEY, Path(__file__), has_constants=False)
    assert KeptPrograms(KIND).has(KEY)
    assert not KeptPrograms(KIND).has(("er", 11))
    assert not KeptPrograms(Kind("er", is_own=True)).any()
    assert not KeptPrograms(None).any()
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    assert not KeptPrograms(KIND).any()


@pytest.mark.parametrize("changed", ["torch.__version__", "cclfp.engine.programs.describe_processor"])
def test_another_version_or_processor(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    KeptPrograms(KIND).keep(KEY, Path(__file__), has_constants=False)
    monkeypatch.setattr(changed, "2.99" if changed.startswith("torch") else lambda: {"flags": "none"})
    assert not KeptPrograms(KIND).any()


def test_own_code_with_constants_is_not_kept() -> None:
    own = Kind("mine", is_own=True)
    KeptPrograms(own).keep(KEY, Path(__file__), has_constants=True)
    assert not KeptPrograms(own).any()
    KeptPrograms(own).keep(KEY, Path(__file__), has_constants=False)
    assert KeptPrograms(own).has(KEY)


def test_constants_are_found() -> None:
    outside = torch.ones(2)
    found = []
    for step in (lambda w, x, row: [w[0] * x[0] + row[0].sum()], lambda w, x, row: [w[0] * outside]):
        found.append(has_constants(trace(step, [torch.ones(2)], [torch.ones(2)], [torch.ones(3)])))
    assert found == [False, True]


def test_programs_are_removed_in_the_order_of_their_use(monkeypatch: pytest.MonkeyPatch) -> None:
    size = Path(__file__).stat().st_size
    monkeypatch.setattr(programs, "LIMIT", 2 * size + 1)
    ours = KeptPrograms(KIND)
    for number in range(3):
        ours.keep(number, Path(__file__), has_constants=False)
        for path in cache_folder().glob("*.so"):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 10))
    assert [ours.has(number) for number in range(3)] == [False, True, True]


def test_many_write_at_once(tmp_path: Path) -> None:
    contents = [tmp_path / str(number) for number in range(4)]
    for path in contents:
        path.write_text(path.name)
    with ThreadPoolExecutor(8) as pool:  # a thread has temporary files of its own, like a process
        list(pool.map(lambda n: KeptPrograms(KIND).keep(KEY, contents[n % 4], has_constants=False), range(64)))
    assert sorted(path.read_text() for path in cache_folder().iterdir()) == ["0", "1", "2", "3"]


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
        "import os\n"
        "from cclfp.engine.programs import building_folder\n"
        "with building_folder() as folder:\n"
        "    (folder / 'a.o').touch()\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    (left,) = cache_folder().iterdir()
    assert (left / "a.o").exists()
    with building_folder() as first, building_folder() as second:
        assert {first, second} == set(cache_folder().iterdir())  # those of living processes stay
    assert not list(cache_folder().iterdir())


def replica(seed: int) -> Replica:
    case = Case(METHODS["er"], "class", {})
    return Replica(case.learner(seed, psi=linear(8, 4, generator(0, "toy psi"))), case.stream())


@pytest.mark.slow
def test_a_kept_program_that_does_something_else_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def idle(changing: list[Tensor], *others: list[Tensor]) -> list[Tensor]:
        return changing

    def program(step: Any, *arguments: Any, keep: Callable[..., None]) -> Any:
        keep(Path(__file__), has_constants=False)
        return step

    monkeypatch.setattr(compiled, "WORTH", 1)
    monkeypatch.setattr(compiled, "program", program)
    monkeypatch.setattr(programs, "load", lambda library: idle)
    (alone,), notes = [replica(0)], list[str]()
    Cohort([alone]).advance()
    for known in (False, True):
        ours = replica(0)
        Cohort([ours], "compiled", notes.append, kind=KIND).advance()
        assert ours.matrix == alone.matrix
        assert (
            {note.partition(": ")[0] for note in notes} == {"a kept program is compiled again"} if known else not notes
        )


def test_what_a_users_file_imports(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import os.path, torch\nfrom cclfp.losses import x\nfrom . import beside\nf = 1; import other.part\n"
    )
    assert imported_by(refer("method", f"{path}:f")) == {"os", "torch", "cclfp", ".", "other"}


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


def test_what_is_compiled_is_announced_and_what_is_loaded_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def compile_step(step: Any, *arguments: Any, keep: Callable[..., None]) -> Any:
        calls.append("program")
        keep(Path(__file__), has_constants=False)
        return step

    def fail() -> None:
        raise InputError("the listener has had enough")

    monkeypatch.setattr(compiled, "WORTH", 1)
    monkeypatch.setattr(compiled, "program", compile_step)
    with pytest.raises(InputError, match="had enough"):  # and the runs do not go on eagerly
        Cohort([replica(0)], "compiled", kind=KIND, on_compile=fail).advance()
    assert calls == []
    Cohort([replica(0)], "compiled", kind=KIND, on_compile=lambda: calls.append("announced")).advance()
    assert calls == ["announced", "program"] * (len(calls) // 2)
    assert calls
    calls.clear()
    monkeypatch.setattr(programs, "load", lambda library: lambda changing, *others: changing)
    monkeypatch.setattr("cclfp.engine.groups.Group.check_step", lambda *arguments: None)
    Cohort([replica(0)], "compiled", kind=KIND, on_compile=lambda: calls.append("announced")).advance()
    assert calls == []


@pytest.mark.slow
def test_a_step_that_solves_equations_is_compiled_but_not_kept() -> None:
    """As GEM's does. No library can call the solver."""

    def step(changing: list[Tensor], fixed: list[Tensor], row: list[Tensor]) -> list[Tensor]:
        return [changing[0] + torch.linalg.solve_ex(fixed[0], row[0])[0]]

    matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    arguments = [torch.ones(2)], [matrix], [torch.tensor([3.0, 5.0])]
    compiled_step = program(step, *arguments, keep=lambda library, has_constants: pytest.fail("kept"))
    assert torch.allclose(compiled_step(*arguments)[0], torch.tensor([1.8, 2.4]))
