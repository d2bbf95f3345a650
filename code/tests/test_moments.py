"""Forward moments: the expectations of gates, one block by hand, whole stacks against networks."""

import math

import numpy as np
import pytest
import torch

from highway import moments
from highway.experiments import NetworkSpec
from highway.networks import NETWORKS
from highway.probes import block_states

SHUT = 1 / (1 + math.exp(2))


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


@pytest.mark.parametrize(("bias", "spread"), [(-2.0, 0.0), (-2.0, 0.4), (1.0, 1.5), (0.0, 3.0)])
def test_gate_moments_are_integrals_over_a_normal_pre_activation(bias, spread):
    u = np.linspace(-9, 9, 20001)
    density = np.exp(-(u**2) / 2) / np.exp(-(u**2) / 2).sum()
    gate = sigmoid(bias + spread * u)
    assert moments.gate_moments(bias, spread) == pytest.approx((density @ gate, density @ gate**2), abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("plain", (1, 0, 1, 0, 0)),
        ("residual", (1, 1, 1, 1, 1)),
        ("fixed", (SHUT, 1 - SHUT, SHUT**2, (1 - SHUT) ** 2, SHUT * (1 - SHUT))),
    ],
)
@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_constant_mixtures_do_not_depend_on_the_state(kind, expected, spread):
    assert moments.mixing(kind)(spread) == pytest.approx(expected)
    assert moments.constant(*expected[:2])(spread) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["highway", "free"])
def test_gates_without_spread_stand_at_their_bias(kind):
    t = 1 / (1 + math.exp(1))
    assert moments.mixing(kind, -1.0)(0.0) == pytest.approx((t, 1 - t, t**2, (1 - t) ** 2, t * (1 - t)))


def test_gates_that_vary_have_the_moments_of_draws():
    rng = np.random.default_rng(0)
    t, c = sigmoid(-1 + 1.5 * rng.normal(size=400_000)), sigmoid(1 + 1.5 * rng.normal(size=400_000))
    for kind, carried in (("highway", 1 - t), ("free", c)):
        drawn = [np.mean(value) for value in (t, carried, t**2, carried**2, t * carried)]
        assert moments.mixing(kind, -1.0)(1.5) == pytest.approx(drawn, rel=0.01)
    coupled, free = moments.mixing("highway", -1.0)(1.5), moments.mixing("free", -1.0)(1.5)
    assert free.tc - coupled.tc == pytest.approx(np.var(t), rel=0.01)


def test_every_kind_of_network_has_a_mixing_and_another_is_refused():
    for kind in NETWORKS:
        assert all(0 <= value <= 1 for value in moments.mixing(kind)(0.5))
    with pytest.raises(
        ValueError, match="unknown kind of block 'dense': choose one of plain, residual, fixed, highway"
    ):
        moments.mixing("dense")


def test_one_step_by_hand():
    """d = 4, He: v = 1/2; q = 8, m = 1/2: s^2 = 4, E[H] = 2 / sqrt(2 pi), E[H^2] = 2."""
    h = 2 / math.sqrt(2 * math.pi)
    m, q = moments.next_moments(moments.constant(0.25, 0.5), 0.5, 8.0, 4, "he")
    assert m == pytest.approx(0.5 * 0.5 + 0.25 * h)
    assert q == pytest.approx(0.25 * 8 + 2 * 0.125 * 4 * 0.5 * h + 0.0625 * 4 * 2)


def test_the_default_adds_its_biases():
    """d = 4, default: v = v_b = 1/12; q = 8: s^2 = 9/12."""
    m, q = moments.next_moments(moments.mixing("plain"), 0.5, 8.0, 4, "default")
    assert (m, q) == pytest.approx((math.sqrt(0.75 / (2 * math.pi)), 4 * 0.375))


def test_input_moments_are_those_of_a_plain_layer_with_other_fan_in():
    m, q = moments.input_moments(98.0, 784, 50, "he")
    assert (m, q) == pytest.approx((0.5 / math.sqrt(2 * math.pi), 50 * 0.125))
    assert moments.input_moments(8.0, 4, 4, "default") == pytest.approx(
        moments.next_moments(moments.mixing("plain"), 0.1, 8.0, 4, "default")
    )


def test_forward_moments_repeat_the_step_from_the_given_start():
    mix = moments.mixing("highway", -1.0)
    means, squares = moments.forward_moments(mix, 3, 0.5, 8.0, 4, "he")
    assert len(means) == len(squares) == 4
    m, q = 0.5, 8.0
    for found in zip(means, squares, strict=True):
        assert found == pytest.approx((m, q))
        m, q = moments.next_moments(mix, m, q, 4, "he")
    assert [len(values) for values in moments.forward_moments(mix, 0, 0.5, 8.0, 4, "he")] == [1, 1]


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("init", ["default", "he"])
def test_wide_networks_have_the_predicted_norms_and_differences(kind, init):
    """A dozen stacks of four blocks and two inputs of one norm, against the recursion. A single q strays by 13 %."""
    d, depth, mix = 300, 4, moments.mixing(kind, -1.0)
    torch.manual_seed(1)
    pair = torch.rand(2, 784)
    pair = 10 * pair / pair.norm(dim=1, keepdim=True)
    found = []
    for seed in range(12):
        model = NetworkSpec(kind, d, depth, init, None if kind in ("plain", "residual") else -1.0).build(seed)
        states = block_states(model, pair).double()
        square, difference = states.square().sum(2).mean(1), (states[:, 0] - states[:, 1]).square().sum(1)
        found.append(torch.stack([states.mean((1, 2)), square, difference]))
    mean, square, difference = torch.stack(found).mean(0).numpy()
    means, squares = moments.forward_moments(mix, depth, *moments.input_moments(100.0, 784, d, init), d, init)
    np.testing.assert_allclose(square, squares, rtol=0.2)
    np.testing.assert_allclose(mean, means, rtol=0.1)
    predicted = moments.forward_differences(mix, squares, difference[0], d, init)
    np.testing.assert_allclose(difference, predicted, rtol=0.25)


def test_differences_follow_the_distance_of_relu_layers():
    """At right angles, E(relu z - relu z')^2 is s^2 (1 - 1/pi); at a small angle it is half of the distance."""
    v_distance = 2 * 9.0  # two states of square norm 9 at right angles
    (_, after) = moments.forward_differences(moments.mixing("plain"), np.array([9.0, 9.0]), v_distance, 4, "he")
    assert after == pytest.approx(4 * 0.5 * 9 * (1 - 1 / math.pi))
    (_, after) = moments.forward_differences(moments.constant(0.5, 0.3), np.array([9.0, 9.0]), 1e-20, 4, "he")
    assert after == pytest.approx(1e-20 * (0.09 + 0.25), rel=1e-6)


def test_the_kink_has_no_step_where_its_series_takes_over():
    for angle in (0.0, 1e-4, 1e-3 * (1 - 1e-12), 1e-3, 0.5, 3.0):
        assert moments.kink(angle) == pytest.approx(math.sin(angle) - angle * math.cos(angle), rel=1e-6, abs=1e-15)
    assert moments.kink(1e-5) == pytest.approx(1e-15 / 3)


@pytest.mark.parametrize(
    ("t", "c", "half_gain", "factor"), [(1, 1, 1.0, 2.904), (1, 1, 1 / 6, 1.580), (1, 0, 1.0, 1.0), (0, 1, 1.0, 1.0)]
)
def test_growth_is_the_factor_that_the_recursion_settles_at(t, c, half_gain, factor):
    u, found = moments.growth(t, c, half_gain)
    assert found == pytest.approx(factor, abs=5e-4)
    if half_gain == 1:
        means, squares = moments.forward_moments(moments.constant(t, c), 200, 0.3, 10.0, 10, "he")
        assert squares[-1] / squares[-2] == pytest.approx(found, rel=1e-6)
        if t:
            assert means[-1] / math.sqrt(squares[-1] / 10) == pytest.approx(u, rel=1e-6)
