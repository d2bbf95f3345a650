"""The training loop: the numbers of a loop written out by hand, and bitwise the same numbers every time."""

import copy
import json
import math
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from highway.data import Batches
from highway.networks import HighwayMLP
from highway.training import History, _to_device_of, evaluate_model, fit, train_model


def problem(batch_sizes=(4, 4, 3)):
    """A small network and a loader of unequal batches."""
    torch.manual_seed(0)
    model = HighwayMLP(5, 6, 2, 3)
    return model, [(torch.randn(n, 5), torch.randint(3, (n,))) for n in batch_sizes]


def with_dropout():
    """A network that gives other logits in training mode than in evaluation mode."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 50), nn.Dropout(0.5), nn.Linear(50, 3))


def sgd(model, rate=0.1):
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def train_from_seed(seed):
    """The history of a small network trained from one seed: rows of numbers, exact as text."""
    torch.manual_seed(seed)
    inputs = torch.randn(60, 5)
    dataset = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    model = HighwayMLP(5, 6, 3, 2)
    history = fit(
        model,
        Batches(dataset, 16, seed),
        sgd(model),
        nn.CrossEntropyLoss(),
        3,
        {"train": Batches(dataset, 60)},
    )
    return [{name: str(value) for name, value in row.items()} for row in history.rows]


def test_one_epoch_equals_a_loop_by_hand():
    model, loader = problem()
    twin = copy.deepcopy(model)
    optimizer, momenta = sgd(model), [torch.zeros_like(parameter) for parameter in twin.parameters()]
    for _ in range(2):
        total, correct = 0.0, 0
        for inputs, labels in loader:
            log_p = twin(inputs).log_softmax(1)
            loss = -log_p[range(len(labels)), labels].mean()
            gradients = torch.autograd.grad(loss, list(twin.parameters()))
            with torch.no_grad():
                for parameter, momentum, gradient in zip(twin.parameters(), momenta, gradients, strict=True):
                    momentum.mul_(0.9).add_(gradient)
                    parameter.sub_(0.1 * momentum)
            total += loss.item() * len(labels)
            correct += (log_p.argmax(1) == labels).sum().item()
        loss, accuracy = train_model(model, loader, optimizer, nn.CrossEntropyLoss())
        assert loss == pytest.approx(total / 11, rel=1e-5)
        assert accuracy == correct / 11
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_gradients_left_from_elsewhere_do_not_count():
    model, loader = problem()
    twin = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    train_model(model, loader, sgd(model), nn.CrossEntropyLoss())
    train_model(twin, loader, sgd(twin), nn.CrossEntropyLoss())
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


def test_evaluation_equals_one_batch_by_hand():
    model, loader = problem()
    inputs, labels = torch.cat([x for x, _ in loader]), torch.cat([y for _, y in loader])
    logits = model(inputs)
    loss, accuracy = evaluate_model(model, loader, nn.CrossEntropyLoss())
    assert loss == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-6)
    assert accuracy == (logits.argmax(1) == labels).sum().item() / 11


def test_evaluation_changes_nothing():
    model, loader = problem()
    train_model(model, loader, sgd(model), nn.CrossEntropyLoss())
    parameters = copy.deepcopy(model.state_dict())
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    evaluate_model(model, loader, nn.CrossEntropyLoss())
    assert all(torch.equal(value, parameters[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, gradient) for p, gradient in zip(model.parameters(), gradients, strict=True))


def test_evaluation_builds_no_graph():
    model, loader = problem()
    graphs = []

    def criterion(logits, labels):
        graphs.append(logits.requires_grad)
        return nn.functional.cross_entropy(logits, labels)

    evaluate_model(model, loader, criterion)
    assert graphs == [False] * 3


def test_training_trains_and_evaluation_evaluates_whatever_the_mode_before():
    _, loader = problem()
    for mode in (True, False):
        model, modes = with_dropout().train(mode), []
        model[1].register_forward_hook(lambda module, *_, modes=modes: modes.append(module.training))
        evaluate_model(model, loader, nn.CrossEntropyLoss())
        assert modes == [False] * 3
        assert model.training is mode
        assert model[1].training is mode
        train_model(model, loader, sgd(model), nn.CrossEntropyLoss())
        assert modes == [False] * 3 + [True] * 3


@pytest.mark.parametrize("loader", [[], Batches(TensorDataset(torch.empty(0, 5), torch.empty(0).long()), 4)])
def test_a_loader_without_examples_is_refused(loader):
    model, _ = problem()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="the loader has no example: give it at least one batch"):
        train_model(model, loader, sgd(model), nn.CrossEntropyLoss())
    with pytest.raises(ValueError, match="the loader has no example: give it at least one batch"):
        evaluate_model(model, loader, nn.CrossEntropyLoss())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_after_step_is_called_after_every_update():
    model, loader = problem()
    seen = [model.input.weight.detach().clone()]
    train_model(
        model, loader, sgd(model), nn.CrossEntropyLoss(),
        after_step=lambda: seen.append(model.input.weight.detach().clone()),
    )  # fmt: skip
    assert len(seen) == 1 + 3
    assert not any(map(torch.equal, seen[:-1], seen[1:]))
    assert torch.equal(seen[-1], model.input.weight)


def test_a_frozen_layer_stays_and_the_rest_learns():
    model, loader = problem()
    model.blocks[0].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    train_model(model, loader, sgd(model), nn.CrossEntropyLoss())
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if not name.startswith("blocks.0")}


def test_batches_go_to_the_device_of_the_model():
    inputs, labels = torch.zeros(2, 5), torch.zeros(2).long()
    moved = _to_device_of(HighwayMLP(5, 6, 1, 3).to("meta"), inputs, labels)
    assert [tensor.device.type for tensor in moved] == ["meta", "meta"]
    assert [tensor.device.type for tensor in _to_device_of(nn.Identity(), inputs, labels)] == ["cpu", "cpu"]


def test_fit_is_training_and_evaluation_in_turn():
    model, loader = problem()
    twin, criterion, held_out = copy.deepcopy(model), nn.CrossEntropyLoss(), problem((6,))[1]
    told = []
    history = fit(
        model, loader, sgd(model), criterion, 2, {"train": loader, "validation": held_out},
        after_epoch=lambda *what: told.append(what),
    )  # fmt: skip

    by_hand, optimizer = History(), sgd(twin)
    by_hand.add(0, "train", *evaluate_model(twin, loader, criterion))
    by_hand.add(0, "validation", *evaluate_model(twin, held_out, criterion))
    for epoch in (1, 2):
        by_hand.add(epoch, "running", *train_model(twin, loader, optimizer, criterion))
        by_hand.add(epoch, "train", *evaluate_model(twin, loader, criterion))
        by_hand.add(epoch, "validation", *evaluate_model(twin, held_out, criterion))
    assert history.rows == by_hand.rows
    assert told == [(row["epoch"], row["loss"]) for row in history.rows if row["split"] == "running"]


def test_fit_hands_after_step_on():
    model, loader = problem()
    steps = []
    fit(model, loader, sgd(model), nn.CrossEntropyLoss(), 2, {}, after_step=lambda: steps.append(1))
    assert len(steps) == 2 * 3


def test_no_epochs_is_an_evaluation():
    model, loader = problem()
    before = copy.deepcopy(model.state_dict())
    history = fit(model, loader, sgd(model), nn.CrossEntropyLoss(), 0, {"train": loader})
    assert [(row["epoch"], row["split"]) for row in history.rows] == [(0, "train")]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("loss_of_epoch_2", [math.nan, math.inf])
def test_fit_ends_with_the_first_epoch_whose_loss_is_not_finite(loss_of_epoch_2):
    model, loader = problem()
    calls, told = [], []

    def criterion(logits, labels):
        calls.append(1)
        factor = loss_of_epoch_2 if len(calls) == 6 else 1.0  # the last batch of epoch 2
        return nn.functional.cross_entropy(logits, labels) * factor

    history = fit(model, loader, sgd(model), criterion, 5, {}, after_epoch=lambda epoch, loss: told.append(epoch))
    assert [row["epoch"] for row in history.rows] == told == [1, 2]
    assert not math.isfinite(history.rows[-1]["loss"])


def test_history_is_a_tidy_table():
    assert list(History().frame().columns) == ["epoch", "split", "loss", "accuracy"]
    history = History()
    history.add(0, "train", 2.5, 0.1)
    history.add(1, "running", 2.0, 0.25)
    assert history.frame().to_dict("list") == {
        "epoch": [0, 1], "split": ["train", "running"], "loss": [2.5, 2.0], "accuracy": [0.1, 0.25],
    }  # fmt: skip
    assert not History().rows, "histories do not share their rows"


def test_the_same_seed_gives_bitwise_the_same_history():
    first, again, other = train_from_seed(3), train_from_seed(3), train_from_seed(4)
    assert first == again
    assert first != other
    assert float(first[-1]["loss"]) < float(first[0]["loss"])


def test_the_same_seed_gives_bitwise_the_same_history_in_another_process():
    another = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(another.stdout) == train_from_seed(3)


if __name__ == "__main__":
    print(json.dumps(train_from_seed(3)))
