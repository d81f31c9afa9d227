"""The feature extractors psi that ship with the package, and the network of psi and the classifier f."""

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
