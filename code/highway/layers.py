"""The blocks that a deep network repeats: plain, highway, residual, and two relatives of the highway block.

Every block maps a batch of states of width d to a batch of the same shape, so that any number of them can be
stacked. Shapes are written (..., d): all leading dimensions are batch dimensions.
"""

import math
import operator
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}

INITIALISATIONS: dict[str, Callable[[int, int], float]] = {
    "default": lambda inputs, outputs: math.sqrt(1 / (3 * inputs)),
    "xavier": lambda inputs, outputs: math.sqrt(2 / (inputs + outputs)),
    "he": lambda inputs, outputs: math.sqrt(2 / inputs),
}  # scheme: the standard deviation of the weights, from the numbers of inputs and outputs of the layer


def get_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return the elementwise function called `name`; ValueError names the allowed ones."""
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}: choose one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def initialise(weight: Tensor, bias: Tensor, init: str) -> None:
    """Fill one layer's weight (m, d) and bias (m,) in place, drawing from torch's global generator.

    =========  ==============  ==========================  =========  ==========================================
    scheme     std of weights  weights                     biases     source
    =========  ==============  ==========================  =========  ==========================================
    default    sqrt(1/3d)      U(-1/sqrt(d), 1/sqrt(d))    the same   `torch.nn.Linear.reset_parameters`
    xavier     sqrt(2/(d+m))   N(0, 2/(d+m))               0          Glorot and Bengio 2010, equation 16
    he         sqrt(2/d)       N(0, 2/d)                   0          He et al. 2015, equation 10
    =========  ==============  ==========================  =========  ==========================================

    Raises ValueError, naming the allowed schemes, for an unknown one.
    """
    if init not in INITIALISATIONS:
        raise ValueError(f"unknown initialisation {init!r}: choose one of {', '.join(INITIALISATIONS)}")
    outputs, inputs = weight.shape
    std = INITIALISATIONS[init](inputs, outputs)
    with torch.no_grad():
        if init == "default":
            bound = math.sqrt(3) * std
            weight.uniform_(-bound, bound)
            bias.uniform_(-bound, bound)
        else:
            weight.normal_(0, std)
            bias.zero_()


def check_size(name: str, value: int, minimum: int = 1) -> int:
    """Return `value` as an int if it is a whole number of at least `minimum`; otherwise ValueError names it."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}, not {value!r}")
    return operator.index(value)


class HighwayBlock(nn.Module):
    """One highway layer: y = T * H + (1 - T) * x, elementwise, with::

        H = act(x W_H^T + b_H)         the proposal
        T = sigmoid(x W_T^T + b_T)     the transform gate

    `weight` (2d, d) stacks W_H over W_T, and `bias` (2d,) b_H over b_T: one
    matrix product serves both. b_T is filled with `gate_bias`.
    Shapes: x (..., d) -> y (..., d), with d = `in_features`.
    Source: Srivastava, Greff and Schmidhuber 2015, equations 2 and 3.
    Raises ValueError for a size that is no positive whole number, an unknown
    activation or an unknown initialisation.
    """

    def __init__(
        self,
        in_features: int,
        activation: str = "relu",
        gate_bias: float = -2,
        init: str = "default",
    ):
        super().__init__()
        d = self.in_features = check_size("in_features", in_features)
        self.activation = activation
        self.act = get_activation(activation)
        self.weight = nn.Parameter(torch.empty(2 * d, d))  # W_H over W_T
        self.bias = nn.Parameter(torch.empty(2 * d))  # b_H over b_T
        initialise(self.weight[:d], self.bias[:d], init)
        initialise(self.weight[d:], self.bias[d:], init)
        with torch.no_grad():
            self.bias[d:] = gate_bias

    def candidate_and_gate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return H(x) and T(x), each of the shape of x."""
        h, t = (x @ self.weight.T + self.bias).chunk(2, dim=-1)  # (..., d) each
        return self.act(h), torch.sigmoid(t)

    def forward(self, x: Tensor) -> Tensor:
        h, t = self.candidate_and_gate(x)
        return torch.lerp(x, h, t)  # x + t * (h - x)


class FreeCarryBlock(nn.Module):
    """A highway layer whose carry gate is free: y = T * H + C * x, elementwise, with::

        H = act(x W_H^T + b_H)         the proposal
        T = sigmoid(x W_T^T + b_T)     the transform gate
        C = sigmoid(x W_C^T + b_C)     the carry gate

    `weight` (3d, d) stacks W_H, W_T and W_C, and `bias` (3d,) likewise. b_T is
    filled with `gate_bias` and b_C with its negative, so that C starts at 1 - T.
    Shapes and errors as for `HighwayBlock`.
    Source: Srivastava, Greff and Schmidhuber 2015, equation 2.
    """

    def __init__(
        self,
        in_features: int,
        activation: str = "relu",
        gate_bias: float = -2,
        init: str = "default",
    ):
        super().__init__()
        d = self.in_features = check_size("in_features", in_features)
        self.activation = activation
        self.act = get_activation(activation)
        self.weight = nn.Parameter(torch.empty(3 * d, d))  # W_H, W_T, W_C
        self.bias = nn.Parameter(torch.empty(3 * d))  # b_H, b_T, b_C
        for weight, bias in zip(self.weight.split(d), self.bias.split(d), strict=True):
            initialise(weight, bias, init)
        with torch.no_grad():
            self.bias[d : 2 * d] = gate_bias
            self.bias[2 * d :] = -gate_bias

    def forward(self, x: Tensor) -> Tensor:
        h, t, c = (x @ self.weight.T + self.bias).chunk(3, dim=-1)  # (..., d) each
        return self.act(h) * torch.sigmoid(t) + x * torch.sigmoid(c)


class PlainBlock(nn.Module):
    """One plain layer: y = act(x W^T + b).

    Shapes: x (..., d) -> y (..., d); `weight` (d, d), `bias` (d,).
    Source: Srivastava, Greff and Schmidhuber 2015, equation 1.
    Raises ValueError for a size that is no positive whole number, an unknown
    activation or an unknown initialisation.
    """

    def __init__(self, in_features: int, activation: str = "relu", init: str = "default"):
        super().__init__()
        d = self.in_features = check_size("in_features", in_features)
        self.activation = activation
        self.act = get_activation(activation)
        self.weight = nn.Parameter(torch.empty(d, d))
        self.bias = nn.Parameter(torch.empty(d))
        initialise(self.weight, self.bias, init)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x @ self.weight.T + self.bias)


class ResidualBlock(PlainBlock):
    """One residual layer: y = x + act(x W^T + b), the highway layer with T = C = 1.

    Shapes, parameters and errors as for `PlainBlock`. Source: He et al. 2016, with an identity shortcut.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class FixedGateBlock(PlainBlock):
    """A highway layer whose gate is a constant: y = t * H + (1 - t) * x with t = sigmoid(`gate_bias`).

    Nothing of the gate is learned. Shapes, parameters and other errors as for `PlainBlock`.
    """

    def __init__(
        self,
        in_features: int,
        activation: str = "relu",
        gate_bias: float = -2,
        init: str = "default",
    ):
        super().__init__(in_features, activation, init)
        self.gate_bias = gate_bias

    def forward(self, x: Tensor) -> Tensor:
        t = 1 / (1 + math.exp(-self.gate_bias))
        return torch.lerp(x, super().forward(x), t)
