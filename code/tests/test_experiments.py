"""The catalogue, and what a run hands over: the rate it takes, what it keeps, and that it can be repeated."""

import math
from dataclasses import asdict, replace
from itertools import pairwise, product

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from highway import experiments
from highway.data import Batches
from highway.experiments import (
    CATALOGUE,
    Experiment,
    NetworkSpec,
    choose,
    get_experiment,
    load_data,
    log_steps,
    measure_cost,
    rebuild,
    run,
    train_once,
)
from highway.networks import NETWORKS
from highway.probes import gradient_norms, saved_bytes
from highway.results import Workspace
from highway.training import evaluate_model, train_model

DIVERGING = 1e30
TINY = Experiment(
    name="tiny",
    title="Two small networks, three rates of which the first diverges, two seeds",
    networks=(NetworkSpec("highway", 8, 2, gate_bias=-1.0), NetworkSpec("plain", 6, 0, "he")),
    rates=(DIVERGING, 0.001, 0.05),
    seeds=(3, 4),
    epochs=2,
    batch_size=500,
    source="sample",
    probe_steps=(0, 1, 9),
    keep=("highway-8-default",),
)
STEPS_AN_EPOCH = 8  # 4,000 digits of the sample in batches of 500


class Store:
    """A checkpoint in memory that is cut off when it has computed `patience` training runs."""

    def __init__(self, patience=math.inf):
        self.found, self.computed, self.patience = {}, [], patience

    def __call__(self, key, compute):
        if key not in self.found:
            if len(self.computed) == self.patience:
                raise KeyboardInterrupt
            self.computed.append(key)
            self.found[key] = compute()
        return self.found[key]


@pytest.fixture(scope="module", autouse=True)
def data():
    """The digits of the sample, which every run of this module shares (reading them takes seconds), on one thread."""
    digits, threads = load_data(TINY), torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "load_data", lambda experiment: digits)
        yield digits
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def outcome(data):
    store, told = Store(), []
    found = run(TINY, store, lambda epochs, text: told.append((epochs, text)))
    return found, store, told


def assert_same(one, other):
    pd.testing.assert_frame_equal(one.history, other.history, check_exact=True)
    assert one.tables.keys() == other.tables.keys()
    for name, table in one.tables.items():
        pd.testing.assert_frame_equal(table, other.tables[name], check_exact=True)
    assert one.networks == other.networks
    assert one.weights.keys() == other.weights.keys()
    for name, weights in one.weights.items():
        assert weights.keys() == other.weights[name].keys()
        assert all(torch.equal(value, other.weights[name][key]) for key, value in weights.items())


# The catalogue


@pytest.mark.parametrize("last", [1, 2, 7, 10, 391, 7820])
def test_log_steps_are_whole_and_evenly_spaced_on_a_log_axis(last):
    steps = log_steps(last, per_decade=8)
    assert (steps[0], steps[1], steps[-1]) == (0, 1, last)
    assert all(type(step) is int for step in steps)
    assert list(steps) == sorted(set(steps))
    for before, after in pairwise(steps[1:]):
        assert after == before + 1 or (after - 0.5) / (before + 0.5) <= 10 ** (1 / 8)


def test_the_catalogue_goes_by_name():
    assert {"first-net", "depth20", "depth-sweep", "carry", "carry-aware", "gate-bias"} == CATALOGUE.keys()
    for name, experiment in CATALOGUE.items():
        assert get_experiment(name) is experiment
        assert experiment.name == name
    with pytest.raises(ValueError, match=f"unknown experiment 'depth21': choose one of {', '.join(CATALOGUE)}"):
        get_experiment("depth21")


@pytest.mark.parametrize("experiment", CATALOGUE.values(), ids=CATALOGUE.keys())
def test_every_experiment_is_sound(experiment):
    networks = [(s.label, s.depth, s.activation, s.gate_bias) for s in experiment.networks]
    assert len(set(networks)) == len(networks), "these name the finished runs, and a row of each table"
    labels = [spec.label for spec in experiment.networks]
    assert all(labels.count(kept) == 1 for kept in experiment.keep), "a label names the weights"
    assert len(set(experiment.seeds)) == len(experiment.seeds) >= 3
    assert experiment.tuning_seed not in experiment.seeds
    assert len({f"{rate:g}" for rate in experiment.rates}) == len(experiment.rates) >= 1
    assert (experiment.source, experiment.split) in {("mnist", "book"), ("mnist", "80/20")}
    training = {"book": 50_000, "80/20": 48_000}[experiment.split]
    updates = experiment.epochs * math.ceil(training / experiment.batch_size)
    assert max(experiment.probe_steps, default=0) in {0, updates}, "the last probe sees the trained network"


def test_a_network_is_built_as_it_is_described():
    model = NetworkSpec("highway", 5, 3, "he", gate_bias=-3.5, activation="tanh", input_size=6, num_classes=4).build(0)
    assert model(torch.zeros(2, 6)).shape == (2, 4)
    assert [(block.in_features, block.activation) for block in model.blocks] == [(5, "tanh")] * 3
    assert all(torch.equal(block.bias, torch.tensor([0.0] * 5 + [-3.5] * 5)) for block in model.blocks)


@pytest.mark.parametrize(
    "spec", [s for e in CATALOGUE.values() for s in e.networks], ids=lambda s: f"{s.label}-{s.depth}"
)
def test_every_network_of_the_catalogue_builds_from_its_seed(spec):
    model, again, other = spec.build(0), spec.build(0), spec.build(1)
    assert type(model) is NETWORKS[spec.kind]
    assert len(model.blocks) == spec.depth
    assert model.input.weight.shape == (spec.width, 784)
    assert model.output.weight.shape == (10, spec.width)
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    assert not torch.equal(model.input.weight, other.input.weight)
    assert bool(model.output.bias.any()) is (spec.init == "default")
    assert (spec.gate_bias is None) is (spec.kind in ("plain", "residual"))
    width = spec.width
    for block in model.blocks:
        if spec.kind in ("highway", "free"):
            assert (block.bias[width : 2 * width] == spec.gate_bias).all()
        if spec.kind == "free":
            assert (block.bias[2 * width :] == -spec.gate_bias).all()
        if spec.kind == "fixed":
            assert block.gate_bias == spec.gate_bias


def test_depth20_compares_what_the_book_says():
    experiment = CATALOGUE["depth20"]
    assert [(s.kind, s.width, s.init, s.depth, s.gate_bias) for s in experiment.networks] == [
        ("highway", 50, "default", 20, -2.0), ("highway", 50, "he", 20, -2.0),
        ("plain", 50, "default", 20, None), ("plain", 50, "he", 20, None),
        ("plain", 71, "default", 20, None), ("plain", 71, "he", 20, None),
    ]  # fmt: skip
    assert experiment.epochs >= 20
    assert experiment.batch_size == 128


def test_first_net_is_the_net_of_the_first_chapters():
    experiment = CATALOGUE["first-net"]
    assert [(s.kind, s.width, s.depth) for s in experiment.networks] == [("plain", 512, 0)]
    assert (experiment.rates, experiment.momentum, experiment.batch_size) == ((0.01,), 0.9, 64)
    assert (experiment.epochs, experiment.split) == (10, "80/20")


def block_parameters(spec: NetworkSpec) -> int:
    return sum(p.numel() for p in replace(spec, depth=1).build(0).blocks.parameters())


def test_depth_sweep_compares_depths_and_what_helps_at_each():
    experiment = CATALOGUE["depth-sweep"]
    assert [(s.kind, s.width, s.init, s.depth, s.gate_bias) for s in experiment.networks] == [
        network
        for depth in (10, 20, 50, 100)
        for network in (
            ("highway", 50, "default", depth, -2.0), ("highway", 50, "default", depth, -math.log(depth)),
            ("plain", 71, "he", depth, None), ("plain", 71, "default", depth, None),
        )
    ]  # fmt: skip
    assert experiment.rates == (0.003, 0.01, 0.03, 0.1, 0.3)
    assert experiment.probe_steps == (0, 5 * 391)


def test_carry_compares_five_ways_at_equal_parameters():
    experiment = CATALOGUE["carry"]
    assert [(s.kind, s.width, s.init, s.depth, s.gate_bias) for s in experiment.networks] == [
        (kind, width, "he", depth, bias)
        for depth in (20, 50)
        for kind, width, bias in (
            ("highway", 50, -2.0), ("free", 41, -2.0), ("residual", 71, None), ("fixed", 71, -2.0), ("plain", 71, None),
        )
    ]  # fmt: skip
    assert experiment.rates == (0.003, 0.01, 0.03, 0.1, 0.3)
    assert experiment.cost


def test_carry_aware_compares_the_four_ways_with_the_bias_that_fits_the_depth():
    experiment = CATALOGUE["carry-aware"]
    assert [(s.kind, s.width, s.init, s.depth, s.gate_bias) for s in experiment.networks] == [
        (kind, width, "default", depth, bias)
        for depth in (50,)
        for kind, width, bias in (
            ("highway", 50, -math.log(depth)), ("free", 41, -math.log(depth)),
            ("residual", 71, None), ("fixed", 71, -math.log(depth)),
        )
    ]  # fmt: skip
    assert {*CATALOGUE["carry"].rates} < {*experiment.rates}
    assert not experiment.cost


def test_gate_bias_goes_from_open_to_shut():
    experiment = CATALOGUE["gate-bias"]
    assert [s.gate_bias for s in experiment.networks] == [0, -1, -2, -3, -4, -6, -8, -10]
    assert {(s.kind, s.width, s.init, s.depth) for s in experiment.networks} == {("highway", 50, "default", 20)}
    assert experiment.probe_steps[:3] == (0, 1, 2)


@pytest.mark.parametrize("name", ["depth20", "depth-sweep", "carry", "carry-aware", "gate-bias"])
def test_networks_that_are_compared_have_the_parameters_of_a_highway_block_of_50(name):
    """Within 2 %, and no other width comes nearer; depth20 has a plain network of the same width beside."""
    for spec in CATALOGUE[name].networks:
        if (name, spec.kind, spec.width) != ("depth20", "plain", 50):
            miss = {
                width: abs(block_parameters(replace(spec, width=spec.width + width)) - 5100) for width in (-1, 0, 1)
            }
            assert miss[0] <= 0.02 * 5100
            assert miss[0] == min(miss.values())


def test_a_spec_with_a_bias_of_a_gate_that_it_has_not_is_refused():
    for kind in NETWORKS:
        wrong, right = (-2.0, None) if kind in ("plain", "residual") else (None, -2.0)
        assert NetworkSpec(kind, 5, 1, gate_bias=right).gate_bias == right
        with pytest.raises(ValueError, match=f"kind '{kind}' cannot have the gate bias {wrong}"):
            NetworkSpec(kind, 5, 1, gate_bias=wrong)
    with pytest.raises(ValueError, match=f"'recurrent': choose one of {', '.join(NETWORKS)}"):
        NetworkSpec("recurrent", 5, 1)


def test_a_configuration_is_every_field_and_cost_where_it_is_measured():
    assert TINY.configuration() == {name: value for name, value in asdict(TINY).items() if name != "cost"}
    assert replace(TINY, cost=True).configuration() == asdict(TINY) | {"cost": True}
    assert TINY.configuration()["networks"][0]["kind"] == "highway"


@pytest.mark.parametrize("experiment", [*CATALOGUE.values(), TINY], ids=lambda e: e.name)
def test_quick_is_the_same_experiment_made_small(experiment):
    quick = experiment.quick()
    assert quick.source == "sample"
    assert quick.networks == experiment.networks
    assert quick.cost == experiment.cost
    assert len(quick.rates) == len(quick.seeds) == 1
    assert set(quick.rates) <= set(experiment.rates)
    assert set(quick.seeds) <= set(experiment.seeds)
    assert set(quick.probe_steps) <= set(experiment.probe_steps)
    assert quick.total_epochs() == quick.epochs * len(quick.networks) < experiment.total_epochs()
    assert quick.quick() == quick


# The data


def test_the_digits_of_a_quick_run_are_held_out(data):
    assert [len(data[name]) for name in ("train", "validation", "test", "sample")] == [4000, 500, 500, 1000]
    images = {name: {image.numpy().tobytes() for image in split.tensors[0]} for name, split in data.items()}
    assert not images["validation"] & images["test"]
    assert images["validation"] | images["test"] == images["sample"]
    assert not images["train"] & images["sample"]
    for name in ("validation", "test"):
        assert data[name].tensors[1].bincount().tolist() == [50] * 10


@pytest.mark.parametrize("standardise", [True, False])
def test_splits_of_the_training_file(standardise, monkeypatch):
    asked = []

    def numbered(split, standardise):
        asked.append(standardise)
        size = {"training file": 60, "train": 50, "validation": 10, "test": 7}[split]
        start = 10 if split == "train" else 1000 if split == "test" else 0
        return TensorDataset(torch.arange(start, start + size), torch.zeros(size))

    def found(split):
        data = load_data(replace(TINY, source="mnist", split=split, standardise=standardise))
        return {name: data[name].tensors[0].tolist() for name in ("train", "validation", "test")}

    monkeypatch.setattr(experiments, "mnist", numbered)
    monkeypatch.setattr(experiments, "sample", lambda part, standardise: None)
    test = [*range(1000, 1007)]
    assert found("80/20") == {"train": [*range(12, 60)], "validation": [*range(12)], "test": test}
    assert found("book") == {"train": [*range(10, 60)], "validation": [*range(10)], "test": test}
    assert set(asked) == {standardise}


# What a run decides


def test_the_rate_with_the_best_validation_accuracy_is_taken(outcome, data):
    found, _, _ = outcome
    tuning = found.tables["tuning"]
    assert len(tuning) == 2 * 3
    for spec in TINY.networks:
        tried = tuning[tuning["network"] == spec.name].set_index("rate")
        assert list(tried.index) == list(TINY.rates)
        assert (tried.loc[DIVERGING, "loss"], tried.loc[DIVERGING, "accuracy"]) == (math.inf, 0.0)
        for rate in TINY.rates[1:]:
            model, criterion = spec.build(TINY.tuning_seed), nn.CrossEntropyLoss()
            optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=TINY.momentum)
            batches = Batches(data["train"], TINY.batch_size, TINY.tuning_seed)
            for _ in range(TINY.epochs):
                train_model(model, batches, optimizer, criterion)
            loss, accuracy = evaluate_model(model, Batches(data["validation"], 1000), criterion)
            assert tried.loc[rate, "loss"] == pytest.approx(loss, rel=1e-3)
            assert tried.loc[rate, "accuracy"] == pytest.approx(accuracy, abs=0.005)
        assert tried.index[tried["chosen"]].tolist() == [tried["accuracy"].idxmax()] == [0.05]
        assert set(found.history.loc[found.history["network"] == spec.name, "rate"]) == {0.05}
        assert set(tried["seed"]) == {TINY.tuning_seed}


def test_what_counts_is_the_last_epoch_then_the_loss(monkeypatch):
    """A rate that was best on the way loses, and so does one that diverged; the loss parts equal accuracies."""
    validation = {  # rate: losses and accuracies of epochs 0, 1, 2
        0.1: ((2.3, 0.1, 0.3), (0.1, 0.99, 0.6)),
        0.2: ((2.3, 0.6, 0.5), (0.1, 0.8, 0.9)),
        0.3: ((2.3, 0.6, 0.4), (0.1, 0.7, 0.9)),
        0.4: ((2.3, 0.6, math.nan), (0.1, 0.7, 0.95)),
    }
    asked = []

    def trained(experiment, spec, rate, seed, data, final, tell):
        asked.append((rate, seed, final))
        losses, accuracies = validation[rate]
        history = {"epoch": [0, 1, 2], "split": ["validation"] * 3, "loss": losses, "accuracy": accuracies}
        arrays = {f"history.{name}": np.array(column) for name, column in history.items()}
        return arrays | {"norms.step": np.array([]), "norms": np.array([])}

    monkeypatch.setattr(experiments, "train_once", trained)
    experiment = replace(TINY, networks=TINY.networks[:1], rates=tuple(validation), keep=(), probe_steps=())
    found = run(experiment)
    assert asked == [(rate, 1000, False) for rate in validation] + [(0.3, 3, True), (0.3, 4, True)]
    assert found.tables["tuning"]["chosen"].tolist() == [False, False, True, False]
    assert found.tables.keys() == {"tuning"}


def test_the_best_trial_is_the_most_accurate_then_that_of_the_smallest_loss():
    rows = [
        {"accuracy": accuracy, "loss": loss}
        for accuracy, loss in ((0.9, 0.5), (0.95, 0.4), (0.95, 0.3), (0.0, math.inf))
    ]
    assert choose(rows) is rows[2]
    assert choose(rows[::-1]) is rows[2]
    assert choose(rows[3:] * 2) is rows[3]


COST = replace(
    TINY,
    networks=(NetworkSpec("highway", 8, 2, gate_bias=-1.0), NetworkSpec("plain", 71, 3, "he")),
    rates=(0.05,), epochs=1, keep=(), probe_steps=(), cost=True,
)  # fmt: skip


def test_cost_counts_parameters_bytes_and_the_time_of_a_step(data, monkeypatch):
    """On a clock that says how long each step takes, the second network's being slow once."""
    clock = iter([0.0, 9.0, 0.0, 9.0] + [0.0, 1.0, 0.0, 2.0] * 2 + [0.0, 3.0, 0.0, 50.0])
    monkeypatch.setattr(experiments.time, "perf_counter", lambda: next(clock))
    steps = []
    step = torch.optim.SGD.step
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self, *a: (steps.append(self), step(self, *a))[1])
    found = measure_cost(COST, data["train"], turns=3)
    assert next(clock, None) is None
    assert found["seconds"].tolist() == [1.0, 2.0], "the median of three turns, the first of all not counted"
    assert steps == [steps[0], steps[1]] * 4, "the networks take turns"
    hidden = [2 * (2 * 8 * (8 + 1)), 3 * 71 * (71 + 1)]
    assert found["parameters"].tolist() == [785 * w + h + 10 * (w + 1) for w, h in zip((8, 71), hidden, strict=True)]
    inputs = data["train"][: COST.batch_size][0]
    assert found["bytes"].tolist() == [saved_bytes(spec.build(0), inputs) for spec in COST.networks]
    assert found["bytes"].tolist() == [500 * 8 * (1 + 3 * 2) * 4, 500 * 71 * (1 + 3) * 4]


def test_cost_is_a_table_of_the_networks_and_is_remembered():
    store = Store()
    found = run(COST, store)
    assert store.computed[-1] == "cost"
    assert len(store.computed) == 2 * 2 + 1
    table = found.tables["cost"]
    assert list(table.columns) == ["network", "init", "depth", "width", "parameters", "bytes", "seconds"]
    assert table[["network", "init", "depth", "width"]].to_numpy().tolist() == [
        ["highway-8", "default", 2, 8], ["plain-71", "he", 3, 71],
    ]  # fmt: skip
    assert (table["seconds"] > 0).all()
    assert_same(run(COST, store), found)
    assert "cost" not in run(replace(COST, cost=False, networks=COST.networks[:1])).tables


def test_cost_survives_an_interruption(tmp_path, monkeypatch):
    monkeypatch.setenv("HIGHWAY_RESULTS", str(tmp_path))
    outcomes = []
    for _ in range(2):
        with Workspace(COST.name, COST.configuration()) as workspace:
            outcomes.append(run(COST, workspace.checkpoint))
    assert_same(*outcomes)


def test_one_rate_is_not_tuned():
    found = run(replace(TINY, networks=TINY.networks[1:], rates=(0.05,), epochs=1, keep=(), probe_steps=()))
    assert found.tables == {}
    assert set(found.history["rate"]) == {0.05}
    assert found.weights == {}
    assert found.networks == []


def test_a_run_that_diverges_is_part_of_the_result():
    """Its history ends before the first loss that is not finite, without a row for the test set, and no net is kept."""
    found = run(replace(TINY, rates=(DIVERGING,)))
    assert np.isfinite(found.history["loss"]).all()
    assert set(found.history["split"]) == {"train", "validation"}
    assert set(found.history["epoch"]) == {0}
    assert found.networks == []
    assert found.weights == {}


# What a run hands over


def test_history_has_a_row_for_every_run_epoch_and_split(outcome):
    history = outcome[0].history
    expected = [
        (spec.name, seed, epoch, split)
        for spec in TINY.networks
        for seed in TINY.seeds
        for epoch, split in (
            (0, "train"), (0, "validation"), (1, "running"), (1, "train"), (1, "validation"),
            (2, "running"), (2, "train"), (2, "validation"), (2, "test"),
        )
    ]  # fmt: skip
    assert list(history[["network", "seed", "epoch", "split"]].itertuples(index=False, name=None)) == expected
    assert np.isfinite(history[["loss", "accuracy"]]).all(axis=None)
    columns = ["network", "init", "depth", "width", "gate_bias"]
    described = history[columns].drop_duplicates().to_csv(index=False, header=False).split()
    assert described == ["highway-8,default,2,8,-1.0", "plain-6,he,0,6,"]


def test_gradient_norms_belong_to_their_step_and_layer(outcome, data):
    norms = outcome[0].tables["gradient_norms"]
    assert len(norms) == len(TINY.seeds) * len(TINY.probe_steps) * ((2 + 2) + (0 + 2))
    images, labels = data["train"][:1000]
    for spec in TINY.networks:
        for seed in TINY.seeds:
            of_run = norms[(norms["network"] == spec.name) & (norms["seed"] == seed)]
            ours = of_run.set_index(["step", "layer"])["norm"]
            assert list(ours.index) == list(product(TINY.probe_steps, range(spec.depth + 2)))
            model = spec.build(seed)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=TINY.momentum)
            batches = iter(Batches(data["train"], TINY.batch_size, seed))
            for step in (0, 1):
                expected = gradient_norms(model, images, labels, nn.CrossEntropyLoss())
                assert ours[step].tolist() == pytest.approx(list(expected.values()), rel=1e-4)
                train_model(model, [next(batches)], optimizer, nn.CrossEntropyLoss())


def test_the_weights_of_the_first_seed_are_kept_and_rebuild_the_network(outcome, data):
    found, _, _ = outcome
    (network,) = found.networks
    assert found.weights.keys() == {network["weights"]} == set(TINY.keep)
    assert network["seed"] == TINY.seeds[0]
    model = rebuild(network, found.weights[network["weights"]])
    assert not model.training

    trained, criterion = TINY.networks[0].build(3), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=TINY.momentum)
    batches = Batches(data["train"], TINY.batch_size, 3)
    for _ in range(TINY.epochs):
        train_model(trained, batches, optimizer, criterion)
    images = data["sample"].tensors[0]
    torch.testing.assert_close(model(images), trained(images), rtol=1e-3, atol=1e-3)

    for name in ("test", "sample"):
        assert network["accuracy"][name] == evaluate_model(model, Batches(data[name], 1000), criterion)[1]
    last = found.history[(found.history["seed"] == 3) & (found.history["network"] == "highway-8")].iloc[-1]
    assert (last["split"], last["accuracy"]) == ("test", network["accuracy"]["test"])


def test_a_rebuilt_network_is_its_stored_weights_and_nothing_else(data):
    spec = TINY.networks[0]
    found = train_once(TINY, spec, 0.05, 3, data, final=True)
    weights = {k.removeprefix("weights."): torch.from_numpy(v) for k, v in found.items() if k.startswith("weights.")}
    network = {"spec": {"kind": "highway", "width": 8, "depth": 2, "gate_bias": -1.0}, "seed": 99}
    images = data["sample"].tensors[0]
    state = torch.relu(images.flatten(1) @ weights["input.weight"].T + weights["input.bias"])
    for block in "01":
        h, t = (state @ weights[f"blocks.{block}.weight"].T + weights[f"blocks.{block}.bias"]).chunk(2, dim=1)
        state = torch.relu(h) * torch.sigmoid(t) + state * (1 - torch.sigmoid(t))
    expected = state @ weights["output.weight"].T + weights["output.bias"]
    torch.testing.assert_close(rebuild(network, weights)(images), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(rebuild(network, weights)(images), rebuild(network | {"seed": 7}, weights)(images))


# Progress, resuming, repeating


def test_progress_adds_up_to_the_total(outcome):
    found, store, told = outcome
    assert sum(epochs for epochs, _ in told) == TINY.total_epochs() == 2 * 2 * (3 + 2)
    assert min(epochs for epochs, _ in told) > 0
    assert sum(f"rate {DIVERGING:g}" in text for _, text in told) >= 2

    told.clear()
    assert_same(run(TINY, store, lambda epochs, text: told.append((epochs, text))), found)
    assert [epochs for epochs, _ in told] == [TINY.epochs] * 2 * (3 + 2), "remembered runs count too"


def test_every_training_run_has_a_key_of_its_own(outcome):
    _, store, _ = outcome
    assert len(store.computed) == len(set(store.computed)) == 2 * (3 + 2)


@pytest.mark.parametrize("patience", [1, 4, 7])
def test_a_run_that_was_cut_off_goes_on_to_the_same_outcome(outcome, patience):
    cut = Store(patience)
    with pytest.raises(KeyboardInterrupt):
        run(TINY, cut)
    assert len(cut.computed) == patience
    cut.patience = math.inf
    assert_same(run(TINY, cut), outcome[0])
    assert len(cut.computed) == len(set(cut.computed)) == 2 * (3 + 2), "no finished run is done again"


def test_a_run_leaves_the_settings_of_torch():
    def state():
        return torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()

    before, during = state(), []
    assert before[1] is False

    def look(key, compute):
        during.append(state())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(replace(TINY, threads=before[0] + 1), look)
    assert during == [(before[0] + 1, True)]
    assert state() == before
