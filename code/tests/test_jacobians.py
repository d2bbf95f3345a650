"""The functions of the Jacobian argument against autograd, brute force and the blocks themselves."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from highway import probes
from highway.jacobians import (
    block_gradient,
    contour,
    log_gain,
    peak_bias,
    proposal_gain,
    scan_gate_biases,
    singular_bounds,
    term_shares,
)
from highway.layers import HighwayBlock
from highway.networks import HighwayMLP

CRITERION = nn.CrossEntropyLoss()


def block_and_batch(activation="relu", gate_bias=-1.0, width=6, n=5):
    torch.manual_seed(3)
    block = HighwayBlock(width, activation, gate_bias).double()
    x, delta = torch.randn(2, n, width, dtype=torch.float64)
    return block, x, delta


@pytest.mark.parametrize(("init", "gain"), [("default", 1 / 6), ("xavier", 1 / 2), ("he", 1.0)])
@pytest.mark.parametrize("width", [5, 50])
def test_the_gain_of_the_proposal_does_not_depend_on_the_width(init, gain, width):
    assert proposal_gain(init, width) == pytest.approx(gain)
    assert proposal_gain(init, width, mean_square_slope=1) == pytest.approx(2 * gain)


@pytest.mark.parametrize("k", [0, 1 / 6, 1])
def test_the_log_gain_is_half_the_log_of_the_expected_squared_gain(k):
    for b in (-12.0, -2.0, 0.0, 3.0):
        s = 1 / (1 + math.exp(-b))
        assert log_gain(b, k).item() == pytest.approx(0.5 * math.log((1 - s) ** 2 + k * s**2))
    biases = torch.linspace(-5, 0, 4)
    assert log_gain(biases, k).tolist() == [log_gain(b, k).item() for b in biases.tolist()]
    assert log_gain(biases, k).dtype == torch.float64


@pytest.mark.parametrize("k", [0, 1 / 6, 1])
@pytest.mark.parametrize("ratio", [0.5, 1e-2, 1e-8])
@pytest.mark.parametrize("depth", [60, 500])
def test_on_the_contour_the_expected_ratio_is_the_one_asked_for(k, ratio, depth):
    bias = contour(depth, ratio, k)
    assert (depth * log_gain(bias, k)).exp().item() == pytest.approx(ratio)
    assert bias < -math.log(k) if k else True


def test_there_is_no_contour_where_a_block_cannot_lose_so_much():
    assert contour(2, 1e-8, 1.0).isnan()
    assert contour(torch.tensor([2, 200]), 1e-8, 1.0).isnan().tolist() == [True, False]


@pytest.mark.parametrize("k", [0, 1 / 6, 1])
@pytest.mark.parametrize("depth", [10, 50, 200])
def test_the_peak_is_the_largest_of_all_biases(k, depth):
    biases = torch.linspace(-12, -1, 110_001, dtype=torch.float64)
    height = torch.sigmoid(biases).log() + (depth - 1) * log_gain(biases, k)
    assert peak_bias(depth, k).item() == pytest.approx(biases[height.argmax()].item(), abs=2e-4)


def test_without_the_proposals_path_the_peak_is_minus_the_log_of_the_blocks_behind():
    assert peak_bias(torch.tensor([2, 20, 101]), 0).tolist() == pytest.approx([0, -math.log(19), -math.log(100)])


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
def test_block_gradient_is_that_of_autograd(activation):
    block, x, delta = block_and_batch(activation)
    truth = torch.autograd.grad(block(x), [block.weight, block.bias], delta)
    for found, expected in zip(block_gradient(block, x, delta), truth, strict=True):
        assert not found.requires_grad
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_shares_add_up_and_are_those_of_the_terms():
    block, x, delta = block_and_batch("tanh")
    shares = term_shares(block, x, delta)
    assert list(shares) == ["carry", "proposal", "gate", "cross"]
    assert sum(shares.values()) == pytest.approx(1)
    transform, carry, gate = probes.block_jacobian(block, x)
    (whole,) = torch.autograd.grad(block(x.requires_grad_()), x, delta)
    for name, term in (("proposal", transform), ("carry", carry), ("gate", gate)):
        back = torch.stack([j.T @ row for j, row in zip(term, delta, strict=True)])
        assert shares[name] == pytest.approx((back.square().sum() / whole.square().sum()).item())


@pytest.mark.parametrize("gate_bias", [-6, -1, 2])
def test_singular_values_lie_within_the_bounds(gate_bias):
    block, x, _ = block_and_batch(gate_bias=gate_bias)
    terms = probes.block_jacobian(block, x)
    lower, upper = singular_bounds(*terms)
    values = torch.linalg.svdvals(sum(terms))
    assert lower.shape == upper.shape == (5,)
    assert (lower <= values[:, -1]).all()
    assert (values[:, 0] <= upper).all()
    t = block.candidate_and_gate(x)[1]
    norm = torch.linalg.svdvals(terms[0] + terms[2])[:, 0]
    assert torch.allclose(lower, (1 - t).amin(1) - norm)
    assert torch.allclose(upper, (1 - t).amax(1) + norm)


def test_a_scan_gives_what_networks_with_these_biases_give():
    torch.manual_seed(0)
    inputs, labels = torch.randn(7, 12, dtype=torch.float64), torch.arange(7) % 3
    biases = torch.tensor([0.0, -1.5, -4.0], dtype=torch.float64)
    for activation in ("relu", "tanh"):
        models = []
        for b in (-2.0, *biases.tolist()):
            torch.manual_seed(1)
            models.append(HighwayMLP(12, 6, 4, 3, activation, gate_bias=b).double())
        before = [p.clone() for p in models[0].parameters()]
        states, gradients = scan_gate_biases(models[0], biases, inputs, labels, CRITERION)
        assert len(states) == len(gradients) == 5
        assert states[0].shape == gradients[0].shape == (3, 7, 6)
        assert all(torch.equal(a, b) for a, b in zip(before, models[0].parameters(), strict=True))
        assert all(p.grad is None for p in models[0].parameters())
        for i, model in enumerate(models[1:]):
            expected = probes.block_states(model, inputs)
            assert torch.allclose(torch.stack([state[i] for state in states]), expected, rtol=1e-12)
            norms = torch.stack([gradient[i].square().sum(1).mean().sqrt() for gradient in gradients])
            truth = probes.state_gradient_norms(model, inputs, labels, CRITERION)
            assert np.allclose(norms, truth.detach(), rtol=1e-12)
