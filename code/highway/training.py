"""The training loop: one epoch, one evaluation, and many epochs with a history."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Loader = Iterable[tuple[Tensor, Tensor]]
Criterion = Callable[[Tensor, Tensor], Tensor]


def train_model(
    model: nn.Module,
    loader: Loader,
    optimizer: Optimizer,
    criterion: Criterion,
    after_step: Callable[[], None] | None = None,
) -> tuple[float, float]:
    """Train for one epoch, one update a batch; return (loss, accuracy).

    Both are running means, over the examples as training saw them, each under the
    weights of its own step. `criterion` returns the mean over a batch, and
    `after_step` is called after every update.
    Raises ValueError if `loader` has no example.
    """
    model.train()
    tally = _Tally()
    for inputs, labels in loader:
        inputs, labels = _to_device_of(model, inputs, labels)
        optimizer.zero_grad()
        logits = model(inputs)
        loss = criterion(logits, labels)
        loss.backward()
        optimizer.step()
        tally.add(loss, logits, labels)
        if after_step is not None:
            after_step()
    return tally.means()


@torch.no_grad()
def evaluate_model(
    model: nn.Module,
    loader: Loader,
    criterion: Criterion,
) -> tuple[float, float]:
    """Return the mean (loss, accuracy) over the examples of `loader`.

    The model is in evaluation mode meanwhile, and no gradients are recorded.
    Raises ValueError if `loader` has no example.
    """
    was_training = model.training
    model.eval()
    tally = _Tally()
    for inputs, labels in loader:
        inputs, labels = _to_device_of(model, inputs, labels)
        logits = model(inputs)
        tally.add(criterion(logits, labels), logits, labels)
    model.train(was_training)
    return tally.means()


class _Tally:
    """Sums of loss and of right answers over examples."""

    def __init__(self) -> None:
        self.loss, self.correct, self.examples = 0.0, 0, 0

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        self.loss += loss.item() * len(labels)
        self.correct += int((logits.argmax(dim=1) == labels).sum())
        self.examples += len(labels)

    def means(self) -> tuple[float, float]:
        if self.examples == 0:
            raise ValueError("the loader has no example: give it at least one batch")
        return self.loss / self.examples, self.correct / self.examples


def _to_device_of(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Move a batch to where the model's parameters are."""
    parameter = next(model.parameters(), None)
    device = inputs.device if parameter is None else parameter.device
    return inputs.to(device), labels.to(device)


@dataclass
class History:
    """Loss and accuracy by epoch and split.

    Splits: `running` is the mean that training saw; the others were evaluated after the epoch. Epoch 0 is the
    network before its first update.
    """

    rows: list[dict[str, int | float | str]] = field(default_factory=list)

    def add(self, epoch: int, split: str, loss: float, accuracy: float) -> None:
        self.rows.append({"epoch": epoch, "split": split, "loss": loss, "accuracy": accuracy})

    def frame(self) -> pd.DataFrame:
        """Return one row per (epoch, split), with columns epoch, split, loss, accuracy."""
        return pd.DataFrame(self.rows, columns=["epoch", "split", "loss", "accuracy"])


def fit(
    model: nn.Module,
    loader: Loader,
    optimizer: Optimizer,
    criterion: Criterion,
    epochs: int,
    evaluate_on: dict[str, Loader],
    after_step: Callable[[], None] | None = None,
    after_epoch: Callable[[int, float], None] | None = None,
) -> History:
    """Train for `epochs` epochs and evaluate on every loader of `evaluate_on` before the first and after each one.

    `after_epoch(epoch, running_loss)` reports progress. A running loss that is not finite ends the training at once:
    the history then ends with that epoch, and it is the caller's to judge.
    """
    history = History()

    def evaluate(epoch: int) -> None:
        for split, batches in evaluate_on.items():
            history.add(epoch, split, *evaluate_model(model, batches, criterion))

    evaluate(0)
    for epoch in range(1, epochs + 1):
        loss, accuracy = train_model(model, loader, optimizer, criterion, after_step)
        history.add(epoch, "running", loss, accuracy)
        evaluate(epoch)
        if after_epoch is not None:
            after_epoch(epoch, loss)
        if not math.isfinite(loss):
            break
    return history
