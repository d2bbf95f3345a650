"""The blocks: their formula, its derivatives, their initial weights, and torch's tools that must work on them."""

import copy
import math
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn
from torch.func import functional_call, jacrev, stack_module_state, vmap

from highway.layers import (
    ACTIVATIONS,
    INITIALISATIONS,
    FixedGateBlock,
    FreeCarryBlock,
    HighwayBlock,
    PlainBlock,
    ResidualBlock,
    get_activation,
    initialise,
)

EPSILON = torch.finfo(torch.float32).eps
BLOCKS = (HighwayBlock, FreeCarryBlock, PlainBlock, ResidualBlock, FixedGateBlock)


def linear(weight, bias):
    """An nn.Linear with copies of these parameters."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer


def clear_of_kinks(d, activation):
    """A float64 block whose H units stand at about +2 and -2 in turn: no activation is near its kink at 0."""
    torch.manual_seed(0)
    block = HighwayBlock(d, activation, gate_bias=0.3).double()
    with torch.no_grad():
        block.bias[:d] = torch.tensor([2.0, -2.0]).repeat(d)[:d]
        block.weight.uniform_(-0.5, 0.5)
    return block, torch.empty(3, d, dtype=torch.float64).uniform_(-0.5, 0.5)


def test_activations_are_the_functions_of_their_names():
    x = torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0], dtype=torch.float64)
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    by_hand = {
        "relu": x.clamp(min=0),
        "leaky_relu": torch.where(x > 0, x, 0.01 * x),
        "elu": torch.where(x > 0, x, x.exp() - 1),
        "selu": scale * torch.where(x > 0, x, alpha * (x.exp() - 1)),
        "gelu": x * (1 + torch.erf(x / math.sqrt(2))) / 2,
        "sigmoid": 1 / (1 + (-x).exp()),
        "tanh": (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
        "identity": x,
    }
    assert by_hand.keys() == ACTIVATIONS.keys()
    for name, expected in by_hand.items():
        torch.testing.assert_close(get_activation(name)(x), expected)


def test_a_closed_gate_gives_x():
    torch.manual_seed(0)
    x = torch.randn(64, 20)
    torch.testing.assert_close(HighwayBlock(20, gate_bias=-50)(x), x, rtol=EPSILON, atol=1e-20)


def test_an_open_gate_gives_h():
    torch.manual_seed(0)
    block, x = HighwayBlock(20, "tanh", gate_bias=50), torch.randn(64, 20)
    h = torch.tanh(linear(block.weight[:20], block.bias[:20])(x))
    torch.testing.assert_close(block(x), h, rtol=EPSILON, atol=EPSILON)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_highway_block_equals_its_twin_of_two_linear_layers(activation):
    torch.manual_seed(1)
    d = 7
    block = HighwayBlock(d, activation, gate_bias=-0.5).double()
    to_h, to_t = linear(block.weight[:d], block.bias[:d]), linear(block.weight[d:], block.bias[d:])
    x, upstream = torch.randn(2, 11, d, dtype=torch.float64)
    x.requires_grad_()
    x_of_twin = x.detach().clone().requires_grad_()

    h, t = get_activation(activation)(to_h(x_of_twin)), torch.sigmoid(to_t(x_of_twin))
    expected = h * t + x_of_twin * (1 - t)
    y = block(x)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(block.candidate_and_gate(x), (h, t), rtol=1e-12, atol=1e-14)

    y.backward(upstream)
    expected.backward(upstream)
    for found, wanted in (
        (x.grad, x_of_twin.grad),
        (block.weight.grad, torch.cat([to_h.weight.grad, to_t.weight.grad])),
        (block.bias.grad, torch.cat([to_h.bias.grad, to_t.bias.grad])),
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_x_weight_and_bias_agree_with_finite_differences(activation):
    block, x = clear_of_kinks(4, activation)

    def y(x, weight, bias):
        return functional_call(block, {"weight": weight, "bias": bias}, (x,))

    leaves = [tensor.detach().requires_grad_() for tensor in (x, block.weight, block.bias)]
    assert torch.autograd.gradcheck(y, leaves)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    d=st.integers(1, 9),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    gate_bias=st.floats(-120, 120),
    exponent=st.integers(-40, 30),
    seed=st.integers(0, 2**31),
)
def test_every_y_lies_between_its_x_and_its_h(d, activation, gate_bias, exponent, seed):
    """Exact in floating point, with no tolerance, if h - x does not overflow: here |x| is up to about 1e31.

    lerp goes from the nearer end, x + t (h - x) below t = 1/2 and h - (1 - t)(h - x) from there on. Either step
    is at most about half of the way, so that rounding, which is monotone, cannot pass the other end.
    """
    torch.manual_seed(seed)
    block, x = HighwayBlock(d, activation, gate_bias), torch.randn(5, d) * 10.0**exponent
    with torch.no_grad():
        h, _ = block.candidate_and_gate(x)
        y = block(x)
    assert torch.isfinite(h - x).all()
    assert (torch.minimum(x, h) <= y).all()
    assert (y <= torch.maximum(x, h)).all()


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("leading", [(), (3,), (0,), (2, 3), (2, 1, 3)])
def test_all_leading_dimensions_are_batch_dimensions(kind, leading):
    torch.manual_seed(0)
    block, x = kind(6), torch.randn(*leading, 6)
    y = block(x)
    assert y.shape == x.shape
    rows = [block(row) for row in x.reshape(-1, 6)]
    if rows:
        torch.testing.assert_close(y.reshape(-1, 6), torch.stack(rows))


@pytest.mark.parametrize("kind", BLOCKS)
def test_width_one_and_float64(kind):
    block = kind(1).double()
    assert block(torch.ones(2, 1, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("kind", [PlainBlock, ResidualBlock])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_plain_and_residual_block_equal_a_linear_twin(kind, activation):
    torch.manual_seed(0)
    block, x = kind(5, activation), torch.randn(3, 5)
    expected = get_activation(activation)(linear(block.weight, block.bias)(x))
    torch.testing.assert_close(block(x), x + expected if kind is ResidualBlock else expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_free_carry_block_equals_its_twin_of_three_linear_layers(activation):
    torch.manual_seed(1)
    d = 7
    block = FreeCarryBlock(d, activation, gate_bias=-0.5).double()
    with torch.no_grad():
        block.bias[2 * d :] += 0.7  # so that C is not 1 - T anywhere
    twins = [linear(w, b) for w, b in zip(block.weight.split(d), block.bias.split(d), strict=True)]
    x, upstream = torch.randn(2, 11, d, dtype=torch.float64)
    x.requires_grad_()
    x_of_twins = x.detach().clone().requires_grad_()

    to_h, to_t, to_c = twins
    h = get_activation(activation)(to_h(x_of_twins))
    expected = torch.sigmoid(to_t(x_of_twins)) * h + torch.sigmoid(to_c(x_of_twins)) * x_of_twins
    y = block(x)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-14)
    y.backward(upstream)
    expected.backward(upstream)
    for found, wanted in (
        (x.grad, x_of_twins.grad),
        (block.weight.grad, torch.cat([twin.weight.grad for twin in twins])),
        (block.bias.grad, torch.cat([twin.bias.grad for twin in twins])),
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-13)


def test_a_free_carry_block_with_opposite_gates_is_the_highway_block():
    """1 - sigmoid(z) = sigmoid(-z): with W_C = -W_T and b_C = -b_T, C is 1 - T for every input."""
    torch.manual_seed(0)
    d = 6
    highway, free, x = HighwayBlock(d).double(), FreeCarryBlock(d).double(), torch.randn(9, d, dtype=torch.float64)
    with torch.no_grad():
        free.weight[: 2 * d], free.bias[: 2 * d] = highway.weight, highway.bias
        free.weight[2 * d :] = -highway.weight[d:]
    assert torch.equal(free.bias[2 * d :], -highway.bias[d:]), "it starts there"
    torch.testing.assert_close(free(x), highway(x), rtol=1e-13, atol=1e-14)
    with torch.no_grad():
        free.weight[2 * d :] *= -1
    assert not torch.allclose(free(x), highway(x), rtol=1e-3)


def test_the_gates_of_a_free_carry_block_start_at_opposite_biases():
    d = 5

    def block(gate_bias):
        torch.manual_seed(5)
        return FreeCarryBlock(d, gate_bias=gate_bias)

    one, other = block(-3.5), block(2)
    for found, gate_bias in ((one, -3.5), (other, 2.0), (FreeCarryBlock(d), -2.0)):
        assert torch.equal(found.bias[d : 2 * d], torch.full((d,), gate_bias))
        assert torch.equal(found.bias[2 * d :], torch.full((d,), -gate_bias))
    assert torch.equal(one.weight, other.weight)
    assert torch.equal(one.bias[:d], other.bias[:d])
    assert one.bias[:d].unique().numel() == d
    assert one.activation == "relu"
    maps = one.weight.split(d)
    assert not torch.equal(maps[0], maps[1])
    assert not torch.equal(maps[1], maps[2])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gate_bias", [-2, 0.5, 3.0])
def test_a_fixed_gate_block_mixes_by_one_number(activation, gate_bias):
    torch.manual_seed(0)
    block, x = FixedGateBlock(5, activation, gate_bias).double(), torch.randn(3, 5, dtype=torch.float64)
    h = get_activation(activation)(linear(block.weight, block.bias)(x))
    t = torch.sigmoid(torch.tensor(gate_bias, dtype=torch.float64))
    torch.testing.assert_close(block(x), t * h + (1 - t) * x, rtol=1e-12, atol=1e-14)


def test_a_fixed_gate_is_that_of_a_highway_block_without_gate_weights():
    torch.manual_seed(0)
    d = 6
    highway, fixed, x = HighwayBlock(d).double(), FixedGateBlock(d).double(), torch.randn(9, d, dtype=torch.float64)
    with torch.no_grad():
        highway.weight[d:] = 0
        fixed.weight.copy_(highway.weight[:d])
        fixed.bias.copy_(highway.bias[:d])
    torch.testing.assert_close(fixed(x), highway(x), rtol=1e-13, atol=1e-14)


def test_a_fixed_gate_is_not_learned_and_does_not_touch_the_weights():
    def block(gate_bias):
        torch.manual_seed(5)
        return FixedGateBlock(6, gate_bias=gate_bias)

    one, other = block(-3.5), block(2)
    torch.manual_seed(5)
    plain = PlainBlock(6)
    assert [name for name, _ in one.named_parameters()] == ["weight", "bias"]
    assert (one.gate_bias, other.gate_bias, FixedGateBlock(6).gate_bias) == (-3.5, 2, -2)
    for found in (one, other):
        assert torch.equal(found.weight, plain.weight)
        assert torch.equal(found.bias, plain.bias)


@pytest.mark.parametrize("kind", [FreeCarryBlock, FixedGateBlock])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_gradients_of_the_relatives_agree_with_finite_differences(kind, activation):
    torch.manual_seed(0)
    block = kind(4, activation, gate_bias=0.3).double()
    with torch.no_grad():
        block.bias[:4] = torch.tensor([2.0, -2.0, 2.0, -2.0])  # clear of the kink of ReLU
        block.weight.uniform_(-0.5, 0.5)
    x = torch.empty(3, 4, dtype=torch.float64).uniform_(-0.5, 0.5)

    def y(x, weight, bias):
        return functional_call(block, {"weight": weight, "bias": bias}, (x,))

    assert torch.autograd.gradcheck(y, [t.detach().requires_grad_() for t in (x, block.weight, block.bias)])


@pytest.mark.parametrize(
    ("kind", "maps"), [(HighwayBlock, 2), (FreeCarryBlock, 3), (PlainBlock, 1), (ResidualBlock, 1), (FixedGateBlock, 1)]
)
def test_the_parameters_of_a_block_are_those_of_its_maps(kind, maps):
    assert sum(p.numel() for p in kind(41).parameters()) == maps * (41 * 41 + 41)


def test_gate_bias_fills_b_t_and_nothing_else():
    def block(gate_bias):
        torch.manual_seed(5)
        return HighwayBlock(6, gate_bias=gate_bias)

    one, other = block(-3.5), block(2)
    assert torch.equal(one.weight, other.weight)
    assert torch.equal(one.bias[:6], other.bias[:6])
    assert torch.equal(one.bias[6:], torch.full((6,), -3.5))
    assert torch.equal(other.bias[6:], torch.full((6,), 2.0))
    assert one.bias[:6].unique().numel() == 6


def test_gate_bias_is_minus_two_and_activation_relu_unless_said():
    block = HighwayBlock(3)
    assert torch.equal(block.bias[3:], torch.full((3,), -2.0))
    assert block.activation == "relu"


@pytest.mark.parametrize("kind", BLOCKS)
def test_parameters_survive_a_file(kind, tmp_path):
    torch.manual_seed(0)
    block, other, x = kind(5), kind(5), torch.randn(4, 5)
    assert not torch.equal(block(x), other(x))
    assert set(block.state_dict()) == {"weight", "bias"}
    save_file(block.state_dict(), tmp_path / "block.safetensors")
    other.load_state_dict(load_file(tmp_path / "block.safetensors"))
    assert torch.equal(block(x), other(x))


@pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "cl"))),
    reason="torch.compile needs a C++ compiler, such as g++",
)
def test_compiles_as_one_graph():
    torch.manual_seed(0)
    block, x = HighwayBlock(5), torch.randn(4, 5)
    compiled = torch.compile(copy.deepcopy(block), fullgraph=True)
    torch.testing.assert_close(compiled(x), block(x))
    compiled(x).square().sum().backward()
    block(x).square().sum().backward()
    torch.testing.assert_close(compiled.weight.grad, block.weight.grad)


def test_many_blocks_run_as_one_program():
    torch.manual_seed(0)
    blocks, x = [HighwayBlock(5) for _ in range(3)], torch.randn(3, 4, 5)
    parameters, buffers = stack_module_state(blocks)
    y = vmap(lambda p, b, x: functional_call(blocks[0], (p, b), (x,)))(parameters, buffers, x)
    torch.testing.assert_close(y, torch.stack([block(x) for block, x in zip(blocks, x, strict=True)]))


def test_jacrev_equals_the_derivative_taken_row_by_row():
    block, x = clear_of_kinks(4, "relu")
    x = x[0].requires_grad_()
    rows = torch.stack([torch.autograd.grad(y_i, x, retain_graph=True)[0] for y_i in block(x)])
    torch.testing.assert_close(jacrev(block)(x), rows)


@pytest.mark.parametrize(
    ("init", "std"), [("default", 1 / math.sqrt(3)), ("xavier", math.sqrt(2 * 500 / 700)), ("he", math.sqrt(2))]
)
def test_initial_weights_have_the_stated_spread(init, std):
    """Within five standard errors.

    The sample deviation of n normal numbers of deviation s strays by s / sqrt(2n), that of uniform ones by less,
    and their mean by s / sqrt(n).
    """
    torch.manual_seed(0)
    outputs, d = 200, 500
    weight, bias = torch.empty(outputs, d), torch.full((outputs,), 9.0)
    initialise(weight, bias, init)
    std, n = std / math.sqrt(d), weight.numel()
    assert weight.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * n))
    assert abs(weight.mean().item()) < 5 * std / math.sqrt(n)
    if init == "default":
        for values in (weight, bias):
            assert 0.95 / math.sqrt(d) < values.abs().max() <= (1 + EPSILON) / math.sqrt(d)
    else:
        assert weight.abs().max() > 3.5 * std, "normal, not uniform"
        assert torch.equal(bias, torch.zeros(outputs))


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (5, 3), (50, 784), (100, 50), (71, 71), (10, 512)])
def test_default_initialisation_is_the_draw_of_nn_linear(outputs, inputs):
    torch.manual_seed(7)
    expected = nn.Linear(inputs, outputs)
    weight, bias = torch.empty(outputs, inputs), torch.empty(outputs)
    torch.manual_seed(7)
    initialise(weight, bias, "default")
    assert torch.equal(weight, expected.weight)
    assert torch.equal(bias, expected.bias)


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("init", INITIALISATIONS)
def test_each_map_of_a_block_is_initialised_by_its_scheme(kind, init):
    """W_H is drawn first, then W_T, each as the square matrix that it is."""
    torch.manual_seed(3)
    block = kind(8, init=init)
    torch.manual_seed(3)
    for start in range(0, len(block.weight), 8):
        weight, bias = torch.empty(8, 8), torch.empty(8)
        initialise(weight, bias, init)
        assert torch.equal(block.weight[start : start + 8], weight)
        if start == 0:
            assert torch.equal(block.bias[:8], bias)


def test_the_default_block_is_the_draw_of_two_nn_linear():
    torch.manual_seed(3)
    block = HighwayBlock(8)
    torch.manual_seed(3)
    h, t = nn.Linear(8, 8), nn.Linear(8, 8)
    assert torch.equal(block.weight, torch.cat([h.weight, t.weight]))
    assert torch.equal(block.bias[:8], h.bias)


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("size", [0, -1, 2.0, "3", None, True])
def test_a_size_that_is_no_positive_whole_number_is_refused(kind, size):
    with pytest.raises(ValueError, match=f"in_features must be a whole number of at least 1, not {size!r}"):
        kind(size)


@pytest.mark.parametrize("kind", BLOCKS)
def test_unknown_names_are_answered_with_the_allowed_ones(kind):
    with pytest.raises(ValueError, match=f"unknown activation 'swish': .*{', '.join(ACTIVATIONS)}"):
        kind(3, "swish")
    with pytest.raises(ValueError, match=f"unknown initialisation 'zeros': .*{', '.join(INITIALISATIONS)}"):
        kind(3, init="zeros")
