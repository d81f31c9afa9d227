"""The feature extractors psi that ship with the package, and the network of psi and the classifier f."""

from cclfp.nets.modules import MLP, ResNet18, linear

__all__ = ["MLP", "ResNet18", "linear"]
