"""Whole classifiers: an input projection, a stack of equal blocks, an output layer.

Depth L counts the blocks alone. The softmax is inside the loss, so that every network returns logits.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .layers import FixedGateBlock, FreeCarryBlock, HighwayBlock, PlainBlock, ResidualBlock, check_size, initialise


class BlockMLP(nn.Module):
    """Flatten -> linear + ReLU -> L blocks -> linear.

    `make_block(hidden_size)` makes one block.
    Shapes: x (n, ...) with `input_size` numbers an example -> logits
    (n, `num_classes`).
    Any L >= 0 works; nothing here grows faster than linearly with L.
    Raises ValueError for a size that is no positive whole number (L may be 0),
    an unknown activation or an unknown initialisation.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_blocks: int,
        num_classes: int,
        make_block: Callable[[int], nn.Module],
        init: str = "default",
    ):
        super().__init__()
        check_size("input_size", input_size)
        check_size("hidden_size", hidden_size)
        check_size("number of layers", num_blocks, minimum=0)
        check_size("num_classes", num_classes)
        self.input = nn.Linear(input_size, hidden_size)
        self.blocks = nn.Sequential(*(make_block(hidden_size) for _ in range(num_blocks)))
        self.output = nn.Linear(hidden_size, num_classes)
        for layer in (self.input, self.output):
            initialise(layer.weight, layer.bias, init)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.input(x.flatten(1)))  # (n, d)
        x = self.blocks(x)  # (n, d)
        return self.output(x)  # (n, classes)


class HighwayMLP(BlockMLP):
    """`num_highway_layers` blocks `HighwayBlock`; the rest is `BlockMLP`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_highway_layers: int,
        num_classes: int,
        activation: str = "relu",
        gate_bias: float = -2,
        init: str = "default",
    ):
        super().__init__(
            input_size, hidden_size, num_highway_layers, num_classes,
            lambda d: HighwayBlock(d, activation, gate_bias, init), init,
        )  # fmt: skip


class PlainMLP(BlockMLP):
    """`num_layers` blocks `PlainBlock`; the rest is `BlockMLP`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        num_classes: int,
        activation: str = "relu",
        init: str = "default",
    ):
        super().__init__(
            input_size, hidden_size, num_layers, num_classes,
            lambda d: PlainBlock(d, activation, init), init,
        )  # fmt: skip


class ResidualMLP(BlockMLP):
    """`num_layers` blocks `ResidualBlock`; the rest is `BlockMLP`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        num_classes: int,
        activation: str = "relu",
        init: str = "default",
    ):
        super().__init__(
            input_size, hidden_size, num_layers, num_classes,
            lambda d: ResidualBlock(d, activation, init), init,
        )  # fmt: skip


class FreeCarryMLP(BlockMLP):
    """`num_layers` blocks `FreeCarryBlock`; the rest is `BlockMLP`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        num_classes: int,
        activation: str = "relu",
        gate_bias: float = -2,
        init: str = "default",
    ):
        super().__init__(
            input_size, hidden_size, num_layers, num_classes,
            lambda d: FreeCarryBlock(d, activation, gate_bias, init), init,
        )  # fmt: skip


class FixedGateMLP(BlockMLP):
    """`num_layers` blocks `FixedGateBlock`; the rest is `BlockMLP`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        num_classes: int,
        activation: str = "relu",
        gate_bias: float = -2,
        init: str = "default",
    ):
        super().__init__(
            input_size, hidden_size, num_layers, num_classes,
            lambda d: FixedGateBlock(d, activation, gate_bias, init), init,
        )  # fmt: skip


NETWORKS: dict[str, type[BlockMLP]] = {
    "highway": HighwayMLP,
    "plain": PlainMLP,
    "residual": ResidualMLP,
    "free": FreeCarryMLP,
    "fixed": FixedGateMLP,
}
