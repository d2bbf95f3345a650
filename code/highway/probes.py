"""What can be measured in a network: gradients by layer, gates, states, Jacobians, lesions.

Every function takes a model of `highway.networks` (or a block of it) and leaves its parameters, gradients and mode
as they were.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .layers import HighwayBlock


def gradient_norms(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    criterion: nn.Module,
) -> dict[str, float]:
    """Return the L2 norm of the loss gradient of every layer's parameters.

    A layer's norm is sqrt(sum of squares) over all of its weights and biases.
    Keys, from the input on: `input`, `block 1` ... `block L`, `output`.
    """
    layers = {
        "input": model.input,
        **{f"block {i}": block for i, block in enumerate(model.blocks, start=1)},
        "output": model.output,
    }
    loss = criterion(model(inputs), labels)
    parameters = [p for layer in layers.values() for p in layer.parameters()]
    gradients = torch.autograd.grad(loss, parameters)
    squares = iter([float(g.cpu().double().square().sum()) for g in gradients])
    return {
        name: math.sqrt(sum(next(squares) for _ in layer.parameters()))
        for name, layer in layers.items()
    }  # fmt: skip


@torch.no_grad()
def block_states(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the state before the first block and after each one: (L + 1, n, d)."""
    states = [torch.relu(model.input(inputs.flatten(1)))]
    for block in model.blocks:
        states.append(block(states[-1]))
    return torch.stack(states)


def state_gradient_norms(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    criterion: nn.Module,
) -> Tensor:
    """Return how strongly the loss depends on the state before the first block and after each one: (L + 1,).

    Entry l is the root mean square over examples of the L2 norm of dL_i/dx_l, where L_i is the loss of example i alone;
    `criterion` returns the mean over examples.
    """
    states = [torch.relu(model.input(inputs.flatten(1)))]
    for block in model.blocks:
        states.append(block(states[-1]))
    gradients = torch.autograd.grad(criterion(model.output(states[-1]), labels) * len(labels), states)
    return torch.stack([gradient.square().sum(1).mean().sqrt() for gradient in gradients])


@torch.no_grad()
def gate_activity(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the transform gate T of every block, example and unit: (L, n, d).

    A block that is lesioned has T = 0. Raises ValueError where another block has no gate.
    """
    x = torch.relu(model.input(inputs.flatten(1)))
    gates = []
    for block in model.blocks:
        shut = isinstance(block, nn.Identity)
        if not shut:
            _require_gate(block)
        gates.append(torch.zeros_like(x) if shut else block.candidate_and_gate(x)[1])
        x = block(x)
    return torch.stack(gates) if gates else x.new_empty(0, *x.shape)


def gate_biases(model: nn.Module) -> Tensor:
    """Return a copy of the gate bias b_T of every block and unit: (L, d); ValueError where a block has no gate."""
    for block in model.blocks:
        _require_gate(block)
    biases = [block.bias.detach()[block.in_features :] for block in model.blocks]
    return torch.stack(biases) if biases else torch.empty(0, model.input.out_features)


def _require_gate(block: nn.Module) -> None:
    if not isinstance(block, HighwayBlock):
        raise ValueError(f"gates need highway blocks, and this network has a {type(block).__name__}")


def block_jacobian(block: HighwayBlock, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three terms of a highway block's Jacobian dy_i/dx_j, for x (n, d): each (n, d, d)::

        J = diag(T) H'  +  diag(1 - T)  +  diag((H - x) T (1 - T)) W_T,     H' = diag(act'(x W_H^T + b_H)) W_H

    The sum of the three is the Jacobian; the paper prints only its limits, I at T = 0 and H' at T = 1.
    """
    d = block.in_features
    w_h, w_t = block.weight.split(d)
    z_h, z_t = (x @ block.weight.T + block.bias).chunk(2, dim=-1)
    h, pull_back = torch.func.vjp(block.act, z_h)
    (slope,) = pull_back(torch.ones_like(z_h))
    t = torch.sigmoid(z_t)
    transform = (t * slope).unsqueeze(-1) * w_h
    carry = torch.diag_embed(1 - t)
    gate = ((h - x) * t * (1 - t)).unsqueeze(-1) * w_t
    return transform, carry, gate


def carry_product(gate_bias: float, depth: int) -> float:
    """Return (1 - sigmoid(b))^L: what `depth` blocks whose gates stand at their bias b carry of an input."""
    return (1 + math.exp(gate_bias)) ** -depth  # 1 - sigmoid(b) = 1 / (1 + e^b)


@contextmanager
def lesioned(model: nn.Module, block: int) -> Iterator[nn.Module]:
    """Within the context, block number `block` (1 to L) passes its input on unchanged, as it would at T = 0.

    Raises ValueError for a number outside 1 to L.
    """
    if not 1 <= block <= len(model.blocks):
        raise ValueError(f"block must be from 1 to {len(model.blocks)}, not {block}")
    intact = model.blocks[block - 1]
    model.blocks[block - 1] = nn.Identity()
    try:
        yield model
    finally:
        model.blocks[block - 1] = intact


def saved_bytes(model: nn.Module, inputs: Tensor) -> int:
    """Return how many bytes one forward pass keeps for the backward pass, parameters and inputs not counted."""
    owned = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), inputs)}
    kept = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # the tensor itself would hold on to the graph that holds on to it

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(inputs)
    del output
    return sum(kept.values())
