"""Whether a user's own images are augmented by default."""

from __future__ import annotations

from cclfp.nets.backbones import Backbone, is_convolutional, parse_backbone
from cclfp.streams import Benchmark

SMALLEST = 32  # pixels; a crop of a smaller image is shifted by more than a quarter of it


def default_augmentation(benchmark: Benchmark, backbone: Backbone | None) -> tuple[bool, str]:
    """Whether a user's own images are cropped and mirrored at random by default, and why.

    On small or grey images, and with networks that are not convolutional, that costs accuracy.
    """
    channels, *size = benchmark.image_shape
    reasons = {
        "they are grey": channels != 3,
        f"they are smaller than {SMALLEST} pixels": min(size) < SMALLEST,
        "the backbone is not convolutional": not is_convolutional(
            parse_backbone(benchmark.backbone) if backbone is None else backbone, benchmark.image_shape
        ),
    }
    against = [reason for reason, holds in reasons.items() if holds]
    if against:
        return False, ", ".join(against)
    return True, f"they are in colour, of {SMALLEST} pixels or more, and the backbone is convolutional"


def describe_choice(name: str, augment: bool, reason: str) -> str:
    """A sentence that says what was chosen, and how to choose the other."""
    state, other = ("on", "off") if augment else ("off", "on")
    return f"{name}: random crops and flips of the images are {state}, because {reason}; augment={other} changes that"
