"""The predictions: against closed forms, against integrals, and against simulated networks."""

import math

import pytest
import torch

from highway import probes, theory
from highway.layers import INITIALISATIONS, initialise
from highway.networks import PlainMLP


@pytest.mark.parametrize("init", INITIALISATIONS)
def test_variances_are_those_that_initialise_draws(init):
    torch.manual_seed(0)
    weight, bias = torch.empty(300, 400, dtype=torch.float64), torch.empty(300, dtype=torch.float64)
    initialise(weight, bias, init)
    v, v_b = theory.variances(init, 400, 300)
    assert v == pytest.approx(weight.var().item(), rel=0.02)
    assert v_b == pytest.approx(bias.square().mean().item(), rel=0.15)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="unknown initialisation 'zero'"):
        theory.variances("zero", 2, 2)
    with pytest.raises(ValueError, match="unknown activation 'step'"):
        theory.mean_square("step", 1.0)
    with pytest.raises(ValueError, match="unknown activation 'step'"):
        theory.slope_mean_square("step", 1.0)


@pytest.mark.parametrize("variance", [1e-6, 0.3, 2.0, 50.0])
def test_means_over_a_normal_number_in_closed_form(variance):
    near = {"rtol": 1e-12, "atol": 0}
    expected = torch.tensor(variance, dtype=torch.float64)
    torch.testing.assert_close(theory.mean_square("identity", variance), expected, **near)
    torch.testing.assert_close(theory.mean_square("relu", variance), expected / 2, **near)
    torch.testing.assert_close(theory.slope_mean_square("relu", variance), torch.tensor(0.5).double(), **near)
    leaky = torch.tensor((1 + 0.01**2) / 2, dtype=torch.float64)
    torch.testing.assert_close(theory.slope_mean_square("leaky_relu", variance), leaky, **near)


@pytest.mark.parametrize("variance", [0.01, 0.6, 2.0])
def test_means_over_a_normal_number_by_a_fine_sum(variance):
    z = torch.linspace(-12, 12, 40001, dtype=torch.float64) * math.sqrt(variance)
    weight = torch.softmax(-z.square() / (2 * variance), 0)
    torch.testing.assert_close(
        theory.mean_square("tanh", variance), (weight * z.tanh().square()).sum(), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(
        theory.slope_mean_square("tanh", variance), (weight * (1 - z.tanh().square()).square()).sum(), rtol=1e-6, atol=0
    )


def test_shapes_follow_the_variances():
    assert theory.mean_square("tanh", torch.rand(3, 4)).shape == (3, 4)
    assert theory.slope_mean_square("tanh", torch.rand(3, 4)).shape == (3, 4)
    assert theory.backward_gain("relu", "he", 9, torch.rand(2, 5)).tolist() == [[pytest.approx(1.0)] * 5] * 2


@pytest.fixture
def gram():
    torch.manual_seed(0)
    points = torch.randn(6, 3, dtype=torch.float64)
    return points @ points.T


def test_the_kernel_is_the_mean_over_many_units(gram):
    factor = torch.linalg.cholesky(gram + 1e-9 * torch.eye(6).double())
    z = factor @ torch.randn(6, 100_000, dtype=torch.float64)
    simulated = z.relu() @ z.relu().T / z.shape[1]
    torch.testing.assert_close(theory.relu_kernel(gram), simulated, rtol=0.03, atol=0.01)


def test_the_kernel_at_its_ends():
    one, other = 2.0, 3.0
    for sign, value in ((1, math.sqrt(one * other) / 2), (-1, 0.0)):
        off = sign * math.sqrt(one * other)
        covariance = torch.tensor([[one, off], [off, other]], dtype=torch.float64)
        assert theory.relu_kernel(covariance)[0, 1].item() == pytest.approx(value, abs=1e-7)


def test_the_distance_is_that_of_the_kernel(gram):
    own = gram.diagonal()
    distance = own[:, None] + own - 2 * gram
    kernel = theory.relu_kernel(gram)
    after = kernel.diagonal()[:, None] + kernel.diagonal() - 2 * kernel
    torch.testing.assert_close(theory.relu_distances(own, distance), after, rtol=0, atol=1e-12)


def test_a_small_distance_does_not_drown_in_rounding():
    own, distance = torch.ones(2, dtype=torch.float64), torch.tensor([[0, 1e-20], [1e-20, 0]], dtype=torch.float64)
    assert theory.relu_distances(own, distance)[0, 1].item() == pytest.approx(0.5e-20, rel=1e-6)


def test_a_wide_network_has_the_predicted_states():
    images = torch.rand(5, 1, 28, 28)
    for init, depth, width in (("default", 3, 1500), ("he", 3, 1500)):
        torch.manual_seed(1)
        states = probes.block_states(PlainMLP(784, width, depth, 10, init=init), images)
        squares, distances = theory.forward_distances(images, init, width, depth)
        torch.testing.assert_close(states.square().sum(2).double(), squares, rtol=0.35, atol=0)
        measured = (states[:, :, None] - states[:, None]).square().sum(3).double()
        torch.testing.assert_close(measured, distances, rtol=0.35, atol=1e-12)
        about_mean = (states - states.mean(1, keepdim=True)).square().sum(2).mean(1).sqrt().double()
        torch.testing.assert_close(theory.spread(measured), about_mean, rtol=1e-5, atol=0)
        torch.testing.assert_close(theory.forward_squares(images, "relu", init, width, depth)[0], squares)


def test_squares_without_blocks_are_those_of_the_projection():
    squares, before = theory.forward_squares(torch.rand(4, 7), "tanh", "default", 5, 0)
    assert squares.shape == (1, 4)
    assert before.shape == (0, 4)


def test_the_default_state_settles_at_one_fifth():
    squares, _ = theory.forward_squares(torch.rand(2, 784), "relu", "default", 50, 30)
    torch.testing.assert_close(squares[-1], torch.full((2,), 0.2, dtype=torch.float64))


@pytest.mark.parametrize("width", [5, 40])
def test_moments_of_the_log_gain(width):
    torch.manual_seed(0)
    coins = torch.rand(60_000, width) < 0.5
    gains = 2 / width * (coins * torch.randn(60_000, width).square()).sum(1)
    logs = gains[coins.any(1)].double().log()
    mean, variance = theory.log_gain_moments(width)
    assert mean == pytest.approx(logs.mean().item(), rel=0.08)
    assert variance == pytest.approx(logs.var().item(), rel=0.08)


def test_moments_of_the_log_gain_of_a_wide_block():
    mean, variance = theory.log_gain_moments(5000)
    assert mean * 5000 == pytest.approx(-2.5, rel=0.01)
    assert variance * 5000 == pytest.approx(5.0, rel=0.01)


def test_the_loss_of_a_constant():
    assert theory.constant_loss(torch.ones(10)) == pytest.approx(math.log(10), abs=1e-15)
    assert theory.constant_loss(torch.tensor([3, 1])) == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
