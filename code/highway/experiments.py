"""The catalogue of cached experiments, and how one runs.

An experiment trains several networks on MNIST. For each network it tries every learning rate of a grid with a
seed that is used for nothing else, takes the rate with the best validation accuracy after the last epoch, and trains
anew with that rate from every seed of the list. The test set is looked at once, after the last epoch of those runs.

Nothing here touches the disk: `run` hands over plain data, and takes a `checkpoint` that may remember finished runs.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from .data import Batches, mnist, sample
from .networks import NETWORKS, BlockMLP
from .probes import gradient_norms, saved_bytes
from .training import evaluate_model, fit

Arrays = dict[str, np.ndarray]
Checkpoint = Callable[[str, Callable[[], Arrays]], Arrays]
Progress = Callable[[int, str], None]


@dataclass(frozen=True)
class NetworkSpec:
    """One network of an experiment; `kind` is a key of `NETWORKS`, `gate_bias` is None without a gate."""

    kind: str
    width: int
    depth: int
    init: str = "default"
    gate_bias: float | None = None
    activation: str = "relu"
    input_size: int = 784
    num_classes: int = 10

    def __post_init__(self) -> None:
        if self.kind not in NETWORKS:
            raise ValueError(f"unknown kind of network {self.kind!r}: choose one of {', '.join(NETWORKS)}")
        if (self.gate_bias is None) != (self.kind in ("plain", "residual")):
            raise ValueError(f"a network of kind {self.kind!r} cannot have the gate bias {self.gate_bias!r}")

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.width}"

    @property
    def label(self) -> str:
        return f"{self.name}-{self.init}"

    def build(self, seed: int) -> BlockMLP:
        """Return the network with the initial weights that `seed` gives; the global generator is seeded."""
        torch.manual_seed(seed)
        options = {"activation": self.activation, "init": self.init}
        if self.gate_bias is not None:
            options["gate_bias"] = self.gate_bias
        return NETWORKS[self.kind](self.input_size, self.width, self.depth, self.num_classes, **options)


@dataclass(frozen=True)
class Experiment:
    """Everything that decides the numbers of one experiment, and so the content of its record.

    `split` is `book` (50,000 training and 10,000 validation images) or `80/20` (the first fifth of the training file
    for validation). `probe_steps` are the updates after which the gradient norms are taken, on the first 1,000
    training images. `keep` names the networks whose weights of the first seed are stored. With `cost`, what a training
    step takes in time and memory is measured too.
    """

    name: str
    title: str
    networks: tuple[NetworkSpec, ...]
    rates: tuple[float, ...]
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    tuning_seed: int = 1000
    epochs: int = 20
    batch_size: int = 128
    momentum: float = 0.9
    source: str = "mnist"
    split: str = "book"
    standardise: bool = False
    probe_steps: tuple[int, ...] = ()
    keep: tuple[str, ...] = ()
    cost: bool = False
    threads: int = 1

    def configuration(self) -> dict:
        """Return the fields as plain data. `cost` is left out unless asked for: it came later than some results."""
        return {name: value for name, value in asdict(self).items() if name != "cost" or value}

    def quick(self) -> "Experiment":
        """Return a version of a few seconds: the sample's digits, one rate, one seed."""
        middle = self.rates[(len(self.rates) - 1) // 2]
        few = tuple(step for step in self.probe_steps if step <= 100)
        return replace(
            self, rates=(middle,), seeds=self.seeds[:1], source="sample",
            probe_steps=few,
        )  # fmt: skip

    def total_epochs(self) -> int:
        """Return the number of epochs of all training runs, for a progress bar."""
        return self.epochs * len(self.networks) * (len(self.seeds) + (len(self.rates) if self.tunes else 0))

    @property
    def tunes(self) -> bool:
        return len(self.rates) > 1


@dataclass
class Outcome:
    """What an experiment hands over: tidy tables, small arrays, weights, and the networks that these belong to."""

    history: pd.DataFrame
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    arrays: dict[str, Arrays] = field(default_factory=dict)
    weights: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    networks: list[dict] = field(default_factory=list)


def log_steps(last: int, per_decade: int = 8) -> tuple[int, ...]:
    """Return 0, 1, ... `last`, evenly spaced on a log axis as far as whole steps allow."""
    count = math.ceil(math.log10(last) * per_decade) + 1
    return tuple(sorted({0, last, *(round(float(step)) for step in np.logspace(0, math.log10(last), count))}))


def depth20_networks(depth: int = 20) -> tuple[NetworkSpec, ...]:
    return tuple(
        NetworkSpec(kind, width, depth, init, -2.0 if kind == "highway" else None)
        for kind, width in (("highway", 50), ("plain", 50), ("plain", 71))
        for init in ("default", "he")
    )


def sweep_networks(depths: tuple[int, ...] = (10, 20, 50, 100)) -> tuple[NetworkSpec, ...]:
    return tuple(
        spec
        for depth in depths
        for spec in (
            NetworkSpec("highway", 50, depth, gate_bias=-2.0),
            NetworkSpec("highway", 50, depth, gate_bias=-math.log(depth)),
            NetworkSpec("plain", 71, depth, "he"),
            NetworkSpec("plain", 71, depth),
        )
    )


WAYS = (("highway", 50), ("free", 41), ("residual", 71), ("fixed", 71), ("plain", 71))
"""The ways to combine x and H, each as wide as comes nearest to the 5,100 parameters of a highway-50 block."""


def carry_networks(depths: tuple[int, ...] = (20, 50)) -> tuple[NetworkSpec, ...]:
    return tuple(
        NetworkSpec(kind, width, depth, "he", None if kind in ("plain", "residual") else -2.0)
        for depth in depths
        for kind, width in WAYS
    )


def carry_aware_networks(depths: tuple[int, ...] = (50,)) -> tuple[NetworkSpec, ...]:
    return tuple(
        NetworkSpec(kind, width, depth, "default", None if kind == "residual" else -math.log(depth))
        for depth in depths
        for kind, width in WAYS[:-1]
    )


CATALOGUE: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            name="first-net",
            title="A first net: 784-512-10, SGD with momentum, ten epochs",
            networks=(NetworkSpec("plain", 512, 0),),
            rates=(0.01,), epochs=10, batch_size=64, split="80/20",
            keep=("plain-512-default",),
        ),
        Experiment(
            name="depth20",
            title="Twenty blocks: highway and plain networks, two initialisations, tuned rates",
            networks=depth20_networks(),
            rates=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
            probe_steps=log_steps(20 * 391), keep=("highway-50-default", "highway-50-he"),
        ),
        Experiment(
            name="depth-sweep",
            title="Ten to a hundred blocks: highway with two gate biases, plain with two initialisations, tuned rates",
            networks=sweep_networks(),
            rates=(0.003, 0.01, 0.03, 0.1, 0.3), seeds=(0, 1, 2), epochs=5,
            probe_steps=(0, 5 * 391),
        ),
        Experiment(
            name="carry",
            title="Four ways to combine a layer's input and its proposal, and none, at equal parameters, "
            "He initialisation, tuned rates",
            networks=carry_networks(),
            rates=(0.003, 0.01, 0.03, 0.1, 0.3), seeds=(0, 1, 2), epochs=5,
            cost=True,
        ),
        Experiment(
            name="carry-aware",
            title="The four ways at fifty blocks, PyTorch's default and the depth-aware gate bias, tuned rates",
            networks=carry_aware_networks(),
            rates=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3), seeds=(0, 1, 2), epochs=5,
        ),
        Experiment(
            name="gate-bias",
            title="Twenty blocks, gates from open to shut: what a negative bias costs",
            networks=tuple(NetworkSpec("highway", 50, 20, gate_bias=float(-b)) for b in (0, 1, 2, 3, 4, 6, 8, 10)),
            rates=(0.03, 0.1, 0.3, 1.0), seeds=(0, 1, 2), epochs=3,
            probe_steps=log_steps(3 * 391),
        ),
    )
}  # fmt: skip


def get_experiment(name: str) -> Experiment:
    """Return the experiment of that name; ValueError names those that there are."""
    if name not in CATALOGUE:
        raise ValueError(f"unknown experiment {name!r}: choose one of {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def load_data(experiment: Experiment) -> dict[str, TensorDataset]:
    """Return the splits train, validation and test, and the digits of the sample that are held out."""
    held_out = sample("held out", experiment.standardise)
    if experiment.source == "sample":
        train, rest = sample("train", experiment.standardise), held_out
        validation, test = _every_second(rest, 0), _every_second(rest, 1)
    elif experiment.split == "80/20":
        whole = mnist("training file", experiment.standardise)
        fifth = len(whole) // 5
        train, validation = TensorDataset(*whole[fifth:]), TensorDataset(*whole[:fifth])
        test = mnist("test", experiment.standardise)
    else:
        train, validation, test = (mnist(split, experiment.standardise) for split in ("train", "validation", "test"))
    return {"train": train, "validation": validation, "test": test, "sample": held_out}


def _every_second(dataset: TensorDataset, start: int) -> TensorDataset:
    return TensorDataset(*dataset[start::2])


def run(
    experiment: Experiment,
    checkpoint: Checkpoint = lambda key, compute: compute(),
    progress: Progress = lambda epochs, text: None,
) -> Outcome:
    """Run an experiment and return its outcome.

    `checkpoint(key, compute)` returns the arrays of a finished training run: it may call `compute` or remember an
    earlier call. `progress(epochs, text)` is told how many epochs were finished, and what was seen.
    A run that diverges with the chosen rate is part of the result: its history ends with the last epoch of finite
    losses, and it has no row for the test set. Raises DataError where the data cannot be had.
    """
    data = load_data(experiment)
    outcome = Outcome(pd.DataFrame())
    histories, tuning, norms = [], [], []

    def train(stage: str, spec: NetworkSpec, rate: float, seed: int) -> Arrays:
        told = 0

        def tell(epochs: int, loss: float) -> None:
            nonlocal told
            told += epochs
            progress(epochs, f"{spec.label} L={spec.depth} rate {rate:g} seed {seed}: loss {loss:.4f}")

        def compute() -> Arrays:
            return train_once(experiment, spec, rate, seed, data, stage == "final", tell)

        net = f"{spec.label}-L{spec.depth}-{spec.activation}-b{spec.gate_bias}"
        found = checkpoint(f"{stage}-{net}-rate{rate!r}-seed{seed}", compute)
        if told < experiment.epochs:  # remembered, or ended by a loss that was not finite
            progress(experiment.epochs - told, f"{spec.label} L={spec.depth} rate {rate:g} seed {seed}")
        return found

    with repeatable(experiment.threads):
        for spec in experiment.networks:
            columns = {
                "network": spec.name, "init": spec.init, "depth": spec.depth, "width": spec.width,
                "gate_bias": math.nan if spec.gate_bias is None else spec.gate_bias,
            }  # fmt: skip
            rate = experiment.rates[0]
            if experiment.tunes:
                tried = [
                    columns | {"rate": rate, "seed": experiment.tuning_seed, **_last(found)}
                    for rate in experiment.rates
                    for found in [train("tuning", spec, rate, experiment.tuning_seed)]
                ]
                best = choose(tried)
                rate = best["rate"]
                tuning += [row | {"chosen": row is best} for row in tried]
            for seed in experiment.seeds:
                found = train("final", spec, rate, seed)
                history = _history(found).assign(**columns, rate=rate, seed=seed)
                whole = np.isfinite(history["loss"]).all()
                histories.append(history if whole else history[_before_divergence(history)])
                norms.append(_norms(found).assign(**columns, seed=seed))
                if whole and spec.label in experiment.keep and seed == experiment.seeds[0]:
                    outcome.weights[spec.label] = {
                        key.removeprefix("weights."): torch.from_numpy(value)
                        for key, value in found.items() if key.startswith("weights.")
                    }  # fmt: skip
                    outcome.networks.append({
                        "weights": spec.label, "seed": seed, "spec": asdict(spec),
                        "accuracy": {name: float(found[f"accuracy.{name}"]) for name in ("test", "sample")},
                    })  # fmt: skip
        if experiment.cost:
            measured = checkpoint("cost", lambda: measure_cost(experiment, data["train"]))
            sizes = [(spec.name, spec.init, spec.depth, spec.width) for spec in experiment.networks]
            outcome.tables["cost"] = pd.DataFrame(sizes, columns=["network", "init", "depth", "width"]).assign(
                **measured
            )
    outcome.history = pd.concat(histories, ignore_index=True)
    if tuning:
        outcome.tables["tuning"] = pd.DataFrame(tuning)
    if experiment.probe_steps:
        outcome.tables["gradient_norms"] = pd.concat(norms, ignore_index=True)
    return outcome


def train_once(
    experiment: Experiment,
    spec: NetworkSpec,
    rate: float,
    seed: int,
    data: dict[str, TensorDataset],
    final: bool,
    tell: Callable[[int, float], None] = lambda epochs, loss: None,
) -> Arrays:
    """Train one network from one seed and return all that is kept of it, as arrays of numbers.

    `history.*` are the columns of its history. A `final` run adds the test set (evaluated once, at the end), the
    gradient norms `norms` (probe, layer) after the updates `norms.step`, the accuracies and the weights.
    """
    model, criterion = spec.build(seed), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=experiment.momentum, fused=True)
    images, labels = data["train"][:1000]
    step, probed, norms = 0, [], []

    def probe() -> None:
        nonlocal step
        if final and step in experiment.probe_steps:
            probed.append(step)
            norms.append(list(gradient_norms(model, images, labels, criterion).values()))
        step += 1

    probe()
    history = fit(
        model,
        Batches(data["train"], experiment.batch_size, seed),
        optimizer,
        criterion,
        experiment.epochs,
        {split: Batches(data[split], 1000) for split in (("train", "validation") if final else ("validation",))},
        after_step=probe,
        after_epoch=lambda epoch, loss: tell(1, loss),
    )
    found: Arrays = {}
    if final:
        loss, accuracy = evaluate_model(model, Batches(data["test"], 1000), criterion)
        history.add(experiment.epochs, "test", loss, accuracy)
        found["accuracy.test"] = np.array(accuracy)
        found["accuracy.sample"] = np.array(evaluate_model(model, Batches(data["sample"], 1000), criterion)[1])
        found |= {"norms.step": np.array(probed), "norms": np.array(norms)}
        found |= {f"weights.{key}": value.numpy() for key, value in model.state_dict().items()}
    for column, kind in (("epoch", int), ("split", str), ("loss", float), ("accuracy", float)):
        found[f"history.{column}"] = history.frame()[column].to_numpy(dtype=kind)
    return found


def measure_cost(experiment: Experiment, train: TensorDataset, turns: int = 25) -> Arrays:
    """Return for every network its `parameters`, the `bytes` that a step keeps for the backward pass, and `seconds`.

    Seconds are those of one step of SGD without momentum, the median over turns: the networks take turns, so that what
    else the machine does meets all of them alike.
    """
    criterion = nn.CrossEntropyLoss()
    inputs, labels = train[: experiment.batch_size]
    models = [spec.build(0) for spec in experiment.networks]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.0, fused=True) for model in models]
    seconds = np.zeros((turns + 1, len(models)))
    for turn in range(turns + 1):  # the first one warms up
        for i, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            start = time.perf_counter()
            optimizer.zero_grad()
            criterion(model(inputs), labels).backward()
            optimizer.step()
            seconds[turn, i] = time.perf_counter() - start
    return {
        "parameters": np.array([sum(p.numel() for p in model.parameters()) for model in models]),
        "bytes": np.array([saved_bytes(model, inputs) for model in models]),
        "seconds": np.median(seconds[1:], axis=0),
    }


@contextmanager
def repeatable(threads: int) -> Iterator[None]:
    """Deterministic algorithms and a fixed number of threads, so that sums are taken in one order."""
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])


def _history(found: Arrays) -> pd.DataFrame:
    return pd.DataFrame({column: found[f"history.{column}"] for column in ("epoch", "split", "loss", "accuracy")})


def _before_divergence(history: pd.DataFrame) -> pd.Series:
    return history["epoch"] < history.loc[~np.isfinite(history["loss"]), "epoch"].min()


def choose(tried: list[dict]) -> dict:
    """Return the trial with the best validation accuracy, and among equals the one with the smallest loss."""
    return max(tried, key=lambda row: (row["accuracy"], -row["loss"]))


def _last(found: Arrays) -> dict[str, float]:
    """The last validation loss and accuracy; an accuracy of 0 where the training diverged."""
    history = _history(found)
    if not np.isfinite(history["loss"]).all():
        return {"loss": math.inf, "accuracy": 0.0}
    last = history[history["split"] == "validation"].iloc[-1]
    return {"loss": float(last["loss"]), "accuracy": float(last["accuracy"])}


def _norms(found: Arrays) -> pd.DataFrame:
    """The gradient norms as one row per (step, layer); layer 0 is the input projection, L + 1 the output layer."""
    norms = found["norms"]
    if norms.size == 0:
        return pd.DataFrame(columns=["step", "layer", "norm"])
    steps, layers = np.meshgrid(found["norms.step"], np.arange(norms.shape[1]), indexing="ij")
    return pd.DataFrame({"step": steps.ravel(), "layer": layers.ravel(), "norm": norms.ravel()})


def rebuild(network: dict, weights: dict[str, Tensor]) -> BlockMLP:
    """Return a stored network: `network` is its entry in `Outcome.networks`, `weights` its tensors."""
    spec = NetworkSpec(**network["spec"])
    model = spec.build(network["seed"])
    model.load_state_dict(weights)
    return model.eval()
