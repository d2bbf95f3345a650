"""The theory of the highway block's Jacobian, in plain functions: gains, bounds, and the best gate bias.

Throughout, `k` is the squared gain of the proposal alone, `k = d v E[f'(z)^2]`: what a plain block does to a squared
gradient (see `proposal_gain`).
"""

import torch
from torch import Tensor, nn

from .layers import HighwayBlock
from .probes import block_jacobian
from .theory import variances


def proposal_gain(init: str, width: int, mean_square_slope: float = 0.5) -> float:
    """Return `k = d v E[f'^2]` under an initialisation of `layers`.

    A ReLU, on for half its inputs, has `E[f'^2] = 1/2`.
    """
    return width * variances(init, width, width)[0] * mean_square_slope


def log_gain(gate_bias: Tensor | float, k: float) -> Tensor:
    """Return the expected log-gain of one block, -ln(1 + e^b) + ln(1 + k e^2b) / 2."""
    odds = torch.as_tensor(gate_bias, dtype=torch.float64).exp()  # sigma(b) : 1 - sigma(b)
    return -odds.log1p() + (k * odds**2).log1p() / 2


def contour(depth: Tensor | float, ratio: float, k: float) -> Tensor:
    """Return the gate bias at which `depth` blocks are expected to leave `ratio` of a gradient's norm.

    It is NaN where no bias below -ln k loses that much.
    """
    a = ratio ** (2 / torch.as_tensor(depth, dtype=torch.float64))
    return ((1 - a) / (a + ((1 + k) * a - k).sqrt())).log()


def peak_bias(depth: Tensor | float, k: float) -> Tensor:
    """Return the gate bias that gives the first of `depth` blocks the largest gradient at initialisation.

    With k = 0, where all that comes back is carried, it is -ln(L - 1).
    """
    depth = torch.as_tensor(depth, dtype=torch.float64)
    return (2 / (depth - 1 + ((depth - 1) ** 2 - 4 * k * depth).sqrt())).log()


def singular_bounds(transform: Tensor, carry: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """Return a lower and an upper bound on the singular values of the sum of a block's three terms: each (n,).

    The arguments are those that `probes.block_jacobian` returns. The lower bound may be negative: it then says nothing.
    """
    carried = carry.diagonal(dim1=-2, dim2=-1)
    rest = torch.linalg.matrix_norm(transform + gate, 2)
    return carried.amin(-1) - rest, carried.amax(-1) + rest


@torch.no_grad()
def block_gradient(block: HighwayBlock, x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss gradients of a block's `weight` (2d, d) and `bias` (2d,), by the formula.

    x (n, d) goes in, and delta (n, d) is the gradient of the loss with respect to what comes out.
    """
    h, t = block.candidate_and_gate(x)
    _, pull_back = torch.func.vjp(block.act, (x @ block.weight.T + block.bias).chunk(2, dim=-1)[0])
    (of_proposal,) = pull_back(delta * t)
    of_gate = delta * (h - x) * t * (1 - t)
    at_z = torch.cat([of_proposal, of_gate], dim=-1)  # (n, 2d)
    return at_z.T @ x, at_z.sum(0)


@torch.no_grad()
def term_shares(block: HighwayBlock, x: Tensor, delta: Tensor) -> dict[str, float]:
    """Return what each term of the Jacobian J contributes to the mean of `||J^T delta||^2` over examples, as shares.

    Keys: `carry`, `proposal`, `gate`, and `cross` for twice the products of two of them. They add up to 1.
    """
    transform, carry, gate = block_jacobian(block, x)
    parts = {"carry": carry, "proposal": transform, "gate": gate}
    back = {name: torch.einsum("nij,ni->nj", term, delta) for name, term in parts.items()}
    whole = sum(back.values()).square().sum()
    shares = {name: (part.square().sum() / whole).item() for name, part in back.items()}
    return shares | {"cross": 1 - sum(shares.values())}


def scan_gate_biases(
    model: nn.Module, biases: Tensor, inputs: Tensor, labels: Tensor, criterion: nn.Module
) -> tuple[list[Tensor], list[Tensor]]:
    """Return all states and their loss gradients with every gate bias of the model replaced by each of `biases`.

    The weights are the same for all B biases, so that one pass serves them all: two lists over the blocks, from the
    state before the first one, of tensors (B, n, d). Gradients are those of each example's own loss.
    """
    states = [torch.relu(model.input(inputs.flatten(1))).expand(len(biases), -1, -1)]
    for block in model.blocks:
        d, x = block.in_features, states[-1]
        b = torch.cat([block.bias[:d].expand(len(biases), d), biases[:, None].expand(-1, d)], dim=1)  # (B, 2d)
        h, t = (x @ block.weight.T + b[:, None]).chunk(2, dim=-1)
        states.append(torch.lerp(x, block.act(h), torch.sigmoid(t)))
    logits = model.output(states[-1]).flatten(0, 1)
    loss = criterion(logits, labels.repeat(len(biases))) * len(logits)
    return [state.detach() for state in states], list(torch.autograd.grad(loss, states))
