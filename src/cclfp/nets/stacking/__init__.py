"""Stacked replicas of ResNet18: under vmap they run as one network, in kernels of our own.

From what a caller uses down to what runs on the GPU:

- :mod:`~cclfp.nets.stacking.layout`: which networks have kernels, and their layers.
- :mod:`~cclfp.nets.stacking.functions`: psi(x) in training and in eval mode, as autograd functions with a vmap rule.
- :mod:`~cclfp.nets.stacking.update`: the update of SGD.
- :mod:`~cclfp.nets.stacking.rounding`: the copies of the filters in bf16 that convolutions read.
- :mod:`~cclfp.nets.stacking.passes`: forward and backward passes of all replicas, as sequences of kernels.
- :mod:`~cclfp.nets.stacking.arrangement`: how the replicas' tensors are arranged for the kernels.
- :mod:`~cclfp.nets.stacking.cuda_streams`: work on a second CUDA stream.
- :mod:`~cclfp.nets.stacking.kernels`: the Triton kernels. CPU builds of torch have no Triton, so the other modules
  import this one inside functions.
"""
