"""DER++, a method of one's own: cclfp run er,examples/der_pp.py:DERpp split-mnist

Buzzega et al. 2020, Dark Experience for General Continual Learning: a Strong, Simple Baseline.
"""

import dataclasses

import torch.nn.functional as F

import cclfp
from cclfp.losses import cross_entropy
from cclfp.methods import Hyperparameters, setting
from cclfp.schedules import Reservoir


@dataclasses.dataclass(frozen=True)
class Hyper(Hyperparameters):
    alpha: float = setting(
        0.75, "weight of the distance to the logits when an example was stored", low=0, search=(0.1, 0.3, 0.75)
    )
    beta: float = setting(1.0, "weight of the cross-entropy of replayed examples", low=0, search=(0.5, 1, 2))


class DERpp(cclfp.Method):
    """Replay with the logits that the network gave when an example was stored, and with labels."""

    name = "der++"
    reference = "Buzzega et al. 2020, Dark Experience for General Continual Learning"
    Hyper = Hyper
    schedule = Reservoir
    draws = 2  # one for the logits, one for the labels
    moves_every_row = True  # for check_method: logits of all classes are replayed, not only of those seen

    @classmethod
    def remembers(cls, num_classes):
        return {"logits": (num_classes,)}

    def loss(self, params, buffers, state, batch, hyper):
        z, buffers = self.net.features(params, buffers, batch.x)
        logits = self.net.classify(params, z)
        new, first, second = batch.split(logits, draws=2)
        y_new, _, y_second = batch.split(batch.y, draws=2)
        mask_new, _, mask_second = batch.split(batch.mask, draws=2)
        loss = cross_entropy(new, y_new, mask_new)
        if len(batch.slots):
            then = state["logits"][batch.slots[: len(first)]]
            loss = loss + hyper.alpha * F.mse_loss(first, then)
            loss = loss + hyper.beta * cross_entropy(second, y_second, mask_second)
        return loss, buffers, {"logits": new}
