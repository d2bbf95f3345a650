"""What an epoch costs: the book's loop, the usual recipe and the bare matrix products, side by side in one run.

    (a) ours     HighwayMLP, batches cut from memory, fused SGD with momentum
    (b) recipe   DataLoader over torchvision's MNIST with ToTensor and Normalize, two nn.Linear a block, SGD
    (c) floor    the matrix products of the same shapes alone, forward and backward

The three take turns, so that a busy machine slows all alike; the median over the turns is scaled to the 391 steps of an
epoch of 50,000 images. Read the ratios: the seconds are this machine's.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from statistics import median

import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset
from torchvision import transforms
from torchvision.datasets import MNIST

from highway import data
from highway.networks import HighwayMLP
from highway.training import train_model

WIDTH, BATCH, STEPS_AN_EPOCH = 50, 128, 391


class RecipeBlock(nn.Module):
    """The highway block as it is usually written."""

    def __init__(self, width: int):
        super().__init__()
        self.h, self.t = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.constant_(self.t.bias, -2)

    def forward(self, x):
        h, t = torch.relu(self.h(x)), torch.sigmoid(self.t(x))
        return h * t + x * (1 - t)


def ours(depth: int, steps: int) -> Callable[[], None]:
    model = HighwayMLP(784, WIDTH, depth, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    batches = data.Batches(data.mnist("train"), BATCH, seed=0)
    return lambda: train_model(model, itertools.islice(batches, steps), optimizer, nn.CrossEntropyLoss())


def recipe(depth: int, steps: int) -> Callable[[], None]:
    blocks = [RecipeBlock(WIDTH) for _ in range(depth)]
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, WIDTH), nn.ReLU(), *blocks, nn.Linear(WIDTH, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    digits = Subset(MNIST(data.mnist_folder()[0], train=True, transform=transform), range(10_000, 60_000))
    loader = DataLoader(digits, BATCH, shuffle=True)

    def run() -> None:
        model.train()
        for images, labels in itertools.islice(loader, steps):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            loss.item()

    return run


def floor(depth: int, steps: int) -> Callable[[], None]:
    shapes = [(784, WIDTH)] + [(WIDTH, 2 * WIDTH)] * depth + [(WIDTH, 10)]
    products = [(torch.randn(BATCH, i), torch.randn(o, i), torch.randn(BATCH, o)) for i, o in shapes]

    def run() -> None:
        for _ in range(steps):
            for x, weight, _ in products:
                x @ weight.T
            for number, (x, weight, gradient) in enumerate(reversed(products), start=1):
                gradient.T @ x
                if number < len(products):  # nobody asks for the gradient of the images
                    gradient @ weight

    return run


def positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depths", type=positive, nargs="+", default=[20, 50, 100])
    parser.add_argument("--steps", type=positive, default=60, help="updates a turn (default 60)")
    parser.add_argument("--turns", type=positive, default=5, help="turns of each (default 5)")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    try:
        data.mnist("train")
    except data.DataError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    for depth in options.depths:
        candidates = {"ours": ours, "recipe": recipe, "floor": floor}
        runs = {name: make(depth, options.steps) for name, make in candidates.items()}
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(options.turns + 1):
            for name, run in runs.items():
                started = time.perf_counter()
                run()
                if turn > 0:  # the first turn warms up
                    seconds[name].append((time.perf_counter() - started) * STEPS_AN_EPOCH / options.steps)
        epoch = {name: median(values) for name, values in seconds.items()}
        rows.append({
            "L": depth, "(a) ours, s": epoch["ours"], "(b) recipe, s": epoch["recipe"], "(c) floor, s": epoch["floor"],
            "b / a": epoch["recipe"] / epoch["ours"], "a / c": epoch["ours"] / epoch["floor"],
        })  # fmt: skip
    print(f"highway nets of {WIDTH} units, batches of {BATCH}, {options.threads} threads; seconds an epoch")
    print(pd.DataFrame(rows).to_markdown(index=False, floatfmt=[".0f"] + 5 * [".2f"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
