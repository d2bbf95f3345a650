"""The whole classifiers: what they are made of, how large they are, and how deep they may be."""

import math

import pytest
import torch
from torch import nn

from highway.layers import (
    ACTIVATIONS,
    INITIALISATIONS,
    FixedGateBlock,
    FreeCarryBlock,
    HighwayBlock,
    PlainBlock,
    ResidualBlock,
)
from highway.networks import NETWORKS, FixedGateMLP, FreeCarryMLP, HighwayMLP, PlainMLP, ResidualMLP

BLOCK_OF = {
    HighwayMLP: HighwayBlock,
    PlainMLP: PlainBlock,
    ResidualMLP: ResidualBlock,
    FreeCarryMLP: FreeCarryBlock,
    FixedGateMLP: FixedGateBlock,
}


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("depth", [0, 1, 20])
def test_parameter_counts_of_the_book(depth):
    """A highway block of 50 units holds 2 (50 * 50 + 50) = 5,100 numbers, a plain one of 71 units 5,112."""
    assert size(HighwayMLP(784, 50, depth, 10)) == 784 * 50 + 50 + depth * 5100 + 50 * 10 + 10
    assert size(PlainMLP(784, 71, depth, 10)) == 784 * 71 + 71 + depth * 5112 + 71 * 10 + 10
    assert size(PlainMLP(784, 50, depth, 10)) == 784 * 50 + 50 + depth * 2550 + 50 * 10 + 10
    assert size(ResidualMLP(784, 50, depth, 10)) == size(PlainMLP(784, 50, depth, 10))
    assert size(FixedGateMLP(784, 50, depth, 10)) == size(PlainMLP(784, 50, depth, 10))
    assert size(FreeCarryMLP(784, 41, depth, 10)) == 784 * 41 + 41 + depth * 5166 + 41 * 10 + 10


@pytest.mark.parametrize("network", BLOCK_OF)
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_forward_is_projection_blocks_output(network, depth):
    torch.manual_seed(0)
    model, x = network(12, 5, depth, 4, activation="tanh"), torch.randn(7, 1, 3, 4)
    assert len(model.blocks) == depth
    assert all(type(block) is BLOCK_OF[network] for block in model.blocks)
    state = torch.relu(x.reshape(7, 12) @ model.input.weight.T + model.input.bias)
    for block in model.blocks:
        state = block(state)
    logits = model(x)
    assert logits.shape == (7, 4)
    torch.testing.assert_close(logits, state @ model.output.weight.T + model.output.bias)
    torch.testing.assert_close(model(x.flatten(1)), logits)


@pytest.mark.parametrize("network", BLOCK_OF)
def test_options_reach_every_layer(network):
    def numbers(init):
        torch.manual_seed(0)
        model = network(400, 300, 2, 200, activation="elu", init=init)
        assert [block.activation for block in model.blocks] == ["elu", "elu"]
        return model

    default, he = numbers("default"), numbers("he")
    for model, variance in ((default, 1 / 3), (he, 2)):
        for layer in (model.input, *model.blocks, model.output):
            weight = layer.weight
            assert weight.std().item() == pytest.approx(math.sqrt(variance / weight.shape[1]), rel=0.02)
    assert not he.input.bias.any()
    assert not he.output.bias.any()


def test_the_default_network_is_the_one_of_the_paper():
    model = HighwayMLP(6, 4, 2, 3)
    for block in model.blocks:
        assert torch.equal(block.bias[4:], torch.full((4,), -2.0))
        assert block.activation == "relu"


def test_gate_bias_reaches_every_block_and_leaves_all_else():
    def parameters(gate_bias):
        torch.manual_seed(2)
        return HighwayMLP(6, 4, 3, 3, gate_bias=gate_bias).state_dict()

    one, other = parameters(-1), parameters(-7.5)
    for name, value in one.items():
        if name.startswith("blocks") and name.endswith("bias"):
            assert torch.equal(value[:4], other[name][:4])
            assert torch.equal(value[4:], torch.full((4,), -1.0))
            assert torch.equal(other[name][4:], torch.full((4,), -7.5))
        else:
            assert torch.equal(value, other[name])


def test_blocks_do_not_share_weights():
    model = HighwayMLP(6, 4, 3, 3)
    assert len({parameter.data_ptr() for parameter in model.parameters()}) == 2 + 3 * 2 + 2
    assert not torch.equal(model.blocks[0].weight, model.blocks[1].weight)


def test_closed_gates_leave_the_network_without_blocks():
    torch.manual_seed(0)
    deep, shallow, x = HighwayMLP(6, 4, 30, 3, gate_bias=-50), PlainMLP(6, 4, 0, 3), torch.randn(9, 6)
    shallow.load_state_dict({k: v for k, v in deep.state_dict().items() if not k.startswith("blocks")})
    torch.testing.assert_close(deep(x), shallow(x))


def test_open_gates_leave_the_plain_network():
    torch.manual_seed(0)
    highway, plain, x = (
        HighwayMLP(6, 4, 3, 3, "tanh", gate_bias=50),
        PlainMLP(6, 4, 3, 3, "tanh"),
        torch.randn(9, 6),
    )
    state = highway.state_dict()
    plain.load_state_dict({k: v[:4] if k.startswith("blocks") else v for k, v in state.items()})
    torch.testing.assert_close(highway(x), plain(x))


def test_a_residual_block_adds_x_to_the_plain_block():
    torch.manual_seed(0)
    residual, plain, x = ResidualMLP(6, 4, 2, 3), PlainMLP(6, 4, 2, 3), torch.randn(9, 4)
    plain.load_state_dict(residual.state_dict())
    for ours, theirs in zip(residual.blocks, plain.blocks, strict=True):
        torch.testing.assert_close(ours(x), x + theirs(x))


def test_ten_thousand_blocks_build_and_learn():
    torch.manual_seed(0)
    model = HighwayMLP(4, 4, 10_000, 2, gate_bias=-math.log(10_000))
    nn.functional.cross_entropy(model(torch.randn(3, 4)), torch.tensor([0, 1, 0])).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    assert model.blocks[0].weight.grad.any()


@pytest.mark.parametrize("network", BLOCK_OF)
def test_the_seed_decides_the_weights(network):
    def weights(seed):
        torch.manual_seed(seed)
        return list(network(6, 4, 2, 3).parameters())

    assert all(map(torch.equal, weights(0), weights(0)))
    assert not any(map(torch.equal, weights(0), weights(1)))


def test_input_and_output_layers_are_drawn_as_initialise_draws():
    """In the default scheme both are nn.Linear's own distribution: no weight outside 1/sqrt(inputs)."""
    torch.manual_seed(0)
    model = PlainMLP(784, 50, 0, 10)
    for layer in (model.input, model.output):
        bound = 1 / math.sqrt(layer.in_features)
        assert 0.95 * bound < layer.weight.abs().max() <= bound * (1 + 1e-6)


@pytest.mark.parametrize("network", BLOCK_OF)
@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("value", [-1, 1.5, "2", None, True])
def test_sizes_that_are_no_whole_numbers_are_refused(network, position, value):
    sizes = [6, 4, 2, 3]
    sizes[position] = value
    name = ("input_size", "hidden_size", "number of layers", "num_classes")[position]
    least = 0 if position == 2 else 1
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least {least}, not {value!r}"):
        network(*sizes)


@pytest.mark.parametrize("position", [0, 1, 3])
def test_only_the_depth_may_be_zero(position):
    sizes = [6, 4, 0, 3]
    assert PlainMLP(*sizes)(torch.zeros(1, 6)).shape == (1, 3)
    sizes[position] = 0
    with pytest.raises(ValueError, match="at least 1, not 0"):
        PlainMLP(*sizes)


@pytest.mark.parametrize("network", BLOCK_OF)
def test_unknown_names_are_answered_with_the_allowed_ones(network):
    with pytest.raises(ValueError, match=f"unknown initialisation 'lecun': .*{', '.join(INITIALISATIONS)}"):
        network(6, 4, 0, 3, init="lecun")
    with pytest.raises(ValueError, match=f"unknown activation 'softmax': .*{', '.join(ACTIVATIONS)}"):
        network(6, 4, 1, 3, activation="softmax")


def test_every_network_has_a_name():
    assert list(NETWORKS.items()) == [
        ("highway", HighwayMLP),
        ("plain", PlainMLP),
        ("residual", ResidualMLP),
        ("free", FreeCarryMLP),
        ("fixed", FixedGateMLP),
    ]


@pytest.mark.parametrize("gate_bias", [-1, -7.5, None])
def test_gate_biases_reach_every_relative(gate_bias):
    """Without one they are -2, as in the highway network."""
    options = {} if gate_bias is None else {"gate_bias": gate_bias}
    expected = -2.0 if gate_bias is None else gate_bias
    for block in FreeCarryMLP(6, 4, 3, 3, **options).blocks:
        assert torch.equal(block.bias[4:8], torch.full((4,), float(expected)))
        assert torch.equal(block.bias[8:], torch.full((4,), -float(expected)))
    assert [block.gate_bias for block in FixedGateMLP(6, 4, 3, 3, **options).blocks] == [expected] * 3


@pytest.mark.parametrize("network", [FreeCarryMLP, FixedGateMLP])
def test_the_blocks_of_the_relatives_learn(network):
    torch.manual_seed(0)
    model = network(6, 4, 3, 3, activation="tanh")
    nn.functional.cross_entropy(model(torch.randn(5, 6)), torch.tensor([0, 1, 2, 0, 1])).backward()
    assert all(block.weight.grad.abs().sum(1).gt(0).all() for block in model.blocks)
