"""ResNet18 against its equations written out; the backbones a run can name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cclfp.errors import InputError
from cclfp.learner.saving import describe, rebuild
from cclfp.nets import MLP, ResNet18
from cclfp.nets.backbones import make_psi, parse_backbone, show_backbone


def by_hand(net: ResNet18, x: Tensor) -> Tensor:
    """The network in eval mode: stem, then four stages of two blocks; stages 2 to 4 begin with stride 2."""
    weights = net.state_dict()

    def conv(x: Tensor, name: str, stride: int, padding: int) -> Tensor:
        return F.conv2d(x, weights[f"{name}.weight"], stride=stride, padding=padding)

    def norm(x: Tensor, name: str) -> Tensor:
        mean, variance = (weights[f"{name}.running_{part}"][:, None, None] for part in ("mean", "var"))
        scale, shift = (weights[f"{name}.{part}"][:, None, None] for part in ("weight", "bias"))
        normal: Tensor = (x - mean) / torch.sqrt(variance + 1e-5) * scale + shift
        return normal

    x = norm(conv(x, "stem", 1, 1), "norm").clamp(min=0)
    for block in range(8):
        name, stride = f"blocks.{block}", 2 if block in (2, 4, 6) else 1
        y = norm(conv(x, f"{name}.conv1", stride, 1), f"{name}.norm1").clamp(min=0)
        y = norm(conv(y, f"{name}.conv2", 1, 1), f"{name}.norm2")
        if block in (2, 4, 6):
            x = norm(conv(x, f"{name}.shortcut.0", stride, 0), f"{name}.shortcut.1")
        x = (x + y).clamp(min=0)
    return x.mean((2, 3))


@pytest.mark.parametrize("size", [28, 32, 64])
def test_resnet18_is_what_its_equations_say(size: int) -> None:
    g = torch.Generator().manual_seed(0)
    net = ResNet18(channels=1, width=4).double()
    for name, tensor in net.state_dict().items():
        if "norm" in name or "shortcut.1" in name:
            values = torch.rand(tensor.shape, generator=g, dtype=torch.float64)
            scattered = "running_mean" in name or "bias" in name
            tensor.copy_(values - 0.5 if scattered else values + 0.5)
    x = torch.randn(3, 1, size, size, generator=g, dtype=torch.float64)
    features = net.eval()(x)
    assert (features > 0.01).double().mean() > 0.5  # alive: where all is 0 any network would do
    torch.testing.assert_close(features, by_hand(net, x))


def test_resnet18_has_the_papers_size() -> None:
    assert sum(p.numel() for p in ResNet18().parameters()) == 11_168_832  # 11,173,962 with ten classes


@pytest.mark.parametrize("kind", [MLP, ResNet18])
def test_weights_come_from_the_seed_alone(kind: Any) -> None:
    state = torch.get_rng_state()
    a, b, c = (kind.for_images((3, 9, 9), 6, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not all(torch.equal(p, q) for p, q in zip(a.parameters(), c.parameters(), strict=True))
    again = rebuild(describe(a))
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(
    ("text", "shape", "features"),
    [
        ("mlp", (3, 32, 32), 100),
        ("mlp:width=7", (1, 28, 28), 7),
        ("resnet18:width=2", (1, 28, 28), 16),
        ("resnet18:width=3", (3, 64, 64), 24),
    ],
)
def test_backbones_fit_any_images(text: str, shape: tuple[int, ...], features: int) -> None:
    backbone = parse_backbone(text)
    assert show_backbone(backbone) == text
    assert make_psi(backbone, shape, seed=0)(torch.zeros(2, *shape)).shape == (2, features)


def test_the_usual_width_said_aloud_is_the_same_backbone() -> None:
    assert parse_backbone("resnet18:width=64") == parse_backbone("resnet18")
    assert show_backbone(parse_backbone("resnet18:width=64")) == "resnet18"


FILE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape[0] * shape[1] * shape[2], 5)

    def forward(self, x):
        return self.layer(x.flatten(1))

def plain():
    return nn.Flatten()

def number(shape):
    return 3

def fails(shape):
    raise KeyError(shape)

constant = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my nets.py"
    path.write_text(FILE)
    return path


def test_a_backbone_from_a_file(file: Path) -> None:
    backbone = parse_backbone(f"{file}:Net")
    assert show_backbone(backbone) == "my nets.py:Net"
    a, b, c = (make_psi(backbone, (1, 2, 3), seed) for seed in (0, 0, 1))
    assert a(torch.zeros(4, 1, 2, 3)).shape == (4, 5)
    weights = [next(psi.parameters()) for psi in (a, b, c)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert isinstance(make_psi(parse_backbone(f"{file}:plain"), (1, 2, 3), 0), nn.Flatten)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resnet", "unknown backbone 'resnet'. Did you mean 'resnet18'"),
        ("resnet18:width=0", "expected resnet18 or resnet18:width=N"),
        ("resnet18:depth=3", "expected resnet18 or resnet18:width=N"),
        ("mlp:width=x", "expected mlp or mlp:width=N"),
        ("{file}", "expected FILE.py:NAME"),
        ("{file}:nothing", "has no function or class 'nothing'; it has: .*Net, plain, number, fails"),
        ("{file}:constant", "has no function or class 'constant'"),
        ("nowhere.py:Net", "nowhere.py cannot be read"),
    ],
)
def test_backbones_that_are_none(text: str, message: str, file: Path) -> None:
    with pytest.raises(InputError, match=message):
        parse_backbone(text.format(file=file))


def test_a_file_that_fails(file: Path) -> None:
    with pytest.raises(InputError, match=r"number must return a torch.nn.Module, not int"):
        make_psi(parse_backbone(f"{file}:number"), (1, 2, 3), 0)
    with pytest.raises(InputError, match=r"fails\(\(1, 2, 3\)\) failed: KeyError"):
        make_psi(parse_backbone(f"{file}:fails"), (1, 2, 3), 0)
    backbone = parse_backbone(f"{file}:Net")
    file.write_text(FILE + "\n# other\n")
    with pytest.raises(InputError, match="has changed since"):
        make_psi(backbone, (1, 2, 3), 0)
    file.write_text("import nothing_of_that_name")
    with pytest.raises(InputError, match="needs nothing_of_that_name: install it, or put all code in one file"):
        parse_backbone(f"{file}:Net")
    file.write_text("1 / 0")
    with pytest.raises(InputError, match="cannot be run: ZeroDivisionError"):
        parse_backbone(f"{file}:Net")


def test_what_is_no_text() -> None:
    for odd in (5, nn.Flatten(), Path("nets.py:make")):
        with pytest.raises(InputError, match="expected mlp, resnet18 or FILE.py:NAME"):
            parse_backbone(odd)  # type: ignore[arg-type]
