"""Triton kernels for R replicas at once (Hopper or newer). Imports Triton, so it is imported where it is first called.

The activations of all replicas lie side by side, (N, H, W, R*C). Filters are matrices (R*K, taps*C). Pixels outside an
image are read as zeros by the tensor descriptors. A kernel that sums over pixels writes one partial sum per tile; these
are added in a fixed order, so the same inputs give the same bits. The tiles depend on the number of replicas: a replica
gets the same bits again only beside the same number of others.
"""

from cclfp.nets.stacking.kernels.convolution import Conv, columns, convolve, filter_gradient
from cclfp.nets.stacking.kernels.launch import compiling
from cclfp.nets.stacking.kernels.norm import Norm, norm_gradients, normalise
from cclfp.nets.stacking.kernels.sums import add_up
from cclfp.nets.stacking.kernels.update import sgd

__all__ = [
    "Conv",
    "Norm",
    "add_up",
    "columns",
    "compiling",
    "convolve",
    "filter_gradient",
    "norm_gradients",
    "normalise",
    "sgd",
]
