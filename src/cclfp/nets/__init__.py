"""The feature extractors psi that ship with the package, and kernels that train many replicas of them at once."""

from cclfp.nets.modules import (
    BACKBONES,
    MLP,
    SMALLEST,
    ResNet18,
    build_backbone,
    convolution,
    describe_backbone,
    linear,
)

__all__ = [
    "BACKBONES",
    "MLP",
    "SMALLEST",
    "ResNet18",
    "build_backbone",
    "convolution",
    "describe_backbone",
    "linear",
]
