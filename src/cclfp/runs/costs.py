"""How much work a run is: an estimate, to begin with the longest and to balance the parts of a grid."""

from __future__ import annotations

from cclfp.data import get_dataset
from cclfp.nets.backbones import parse_backbone
from cclfp.runs.configuration import Configuration
from cclfp.streams import get_benchmark
from cclfp.streams.tasks import DOMAIN_IMAGES

# The cost of a step relative to ER's, from bench/RESULTS.md (Split MNIST). GEM's is for its first task and grows.
COSTS = {
    "joint": 0.9,
    "finetune": 0.9,
    "si": 1.5,
    "lwf": 1.3,
    "er": 1.0,
    "gem": 0.8,
    "a-gem": 3.7,  # with 256 reference examples, which bench/RESULTS.md does not have
    "icarl": 1.6,
    "fdr": 1.3,
    "hal": 3.9,
    "ccl-fp": 1.6,
    "ccl-fp+": 1.8,
}
OWN = 1.5  # of a user's own method: unknown
RESNET = 10.0  # the cost of a step of ResNet18 relative to the MLP's, on a GPU; on a CPU it is far more


def steps(configuration: Configuration) -> int:
    """The number of steps of a run, at least 1, without the incomplete minibatches at the ends of tasks."""
    benchmark = get_benchmark(configuration.benchmark)
    examples = get_dataset(benchmark.dataset).arrays["train_labels"].shape[0]
    if benchmark.domains is not None:
        examples = DOMAIN_IMAGES * (benchmark.num_tasks or 1)
    return max(1, configuration.epochs * examples // configuration.batch)


def cost(configuration: Configuration) -> float:
    """How much work a run is, in steps of ER on an MLP: an estimate, to begin with the longest."""
    benchmark = get_benchmark(configuration.benchmark)
    step = COSTS.get(configuration.method, OWN)
    if configuration.method == "gem":
        tasks = benchmark.num_tasks or 1 if configuration.tasks is None else len(configuration.tasks)
        step *= 1 + (tasks - 1) / 2
    psi = parse_backbone(benchmark.backbone) if configuration.backbone is None else configuration.backbone
    return steps(configuration) * step * (1 if psi.get("name") == "mlp" else RESNET)
