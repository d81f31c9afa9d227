"""Every test, also those in docstrings, has a CCLFP_HOME and a cache folder of its own.

Tests write nothing into the user's CCLFP_HOME. Those marked ``mnist`` share its folder of MNIST alone, which they
download once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cclfp.core.files import home

USERS = home()
SHARED = Path("data", "mnist")


def listing(folder: Path) -> set[Path]:
    """The files and folders below a folder, but for the one that tests share."""
    names = {path.relative_to(folder) for path in folder.rglob("*")}
    return {name for name in names if not name.is_relative_to(SHARED) and not SHARED.is_relative_to(name)}


@pytest.fixture(scope="session", autouse=True)
def home_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What fixtures write that many tests share; in the end the user's own folder must be as it was."""
    before = listing(USERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CCLFP_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
    new = listing(USERS) - before
    assert not new, f"tests have written into {USERS}: {sorted(map(str, new))}"


@pytest.fixture(autouse=True)
def own_home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CCLFP_HOME", str(tmp_path / "home"))
    if request.node.get_closest_marker("mnist") is not None:  # not request.keywords, which has names of parameters too
        (USERS / SHARED).mkdir(parents=True, exist_ok=True)
        (tmp_path / "home" / SHARED.parent).mkdir(parents=True)
        (tmp_path / "home" / SHARED).symlink_to(USERS / SHARED)
