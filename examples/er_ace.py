"""ER-ACE, a method of one's own: cclfp run er,examples/er_ace.py:ERACE split-mnist

Caccia et al. 2022, New Insights on Reducing Abrupt Representation Change in Online Continual Learning.
"""

import torch
import torch.nn.functional as F

import cclfp
from cclfp.losses import cross_entropy
from cclfp.schedules import Reservoir

SCALE = 10  # of the cosines


class ERACE(cclfp.Method):
    """New examples compete only with the classes of their minibatch, replayed ones with all classes."""

    name = "er-ace"
    reference = "Caccia et al. 2022, New Insights on Reducing Abrupt Representation Change"
    schedule = Reservoir

    def classify(self, params, z):
        """Cosine classifier: its logits do not depend on the norms of features and rows, and it has no bias."""
        return SCALE * F.normalize(z, dim=-1) @ F.normalize(params["f.weight"], dim=-1).T

    def loss(self, params, buffers, state, batch, hyper):
        z, buffers = self.net.features(params, buffers, batch.x)
        new, old = batch.split(self.classify(params, z))
        y_new, y_old = batch.split(batch.y)
        mask_new, mask_old = batch.split(batch.mask)
        classes = torch.arange(batch.mask.shape[-1], device=z.device)
        in_minibatch = (y_new[:, None] == classes).any(0)  # not F.one_hot, which does not run under vmap
        loss = cross_entropy(new, y_new, mask_new & in_minibatch)
        if len(old):
            loss = loss + cross_entropy(old, y_old, mask_old)
        return loss, buffers

    def scores(self, params, buffers, state, x):
        return self.classify(params, self.net.frozen_features(params, buffers, x))
