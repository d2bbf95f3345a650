"""What is measured in a network: each probe against the same quantity by another way."""

import copy
import gc
import math
import weakref
from decimal import Decimal

import pytest
import torch
from torch import nn
from torch.func import jacrev, vmap

from highway import probes
from highway.layers import ACTIVATIONS, HighwayBlock
from highway.networks import FixedGateMLP, FreeCarryMLP, HighwayMLP, PlainMLP, ResidualMLP
from highway.probes import (
    block_jacobian,
    block_states,
    carry_product,
    gate_activity,
    gate_biases,
    gradient_norms,
    lesioned,
    saved_bytes,
)

NETWORKS = (HighwayMLP, PlainMLP, ResidualMLP)


def network(kind=HighwayMLP, depth=3, **options):
    torch.manual_seed(0)
    return kind(6, 5, depth, 3, **options), torch.randn(8, 1, 2, 3), torch.randint(3, (8,))


def double_block(activation, gate_bias=-0.5):
    torch.manual_seed(1)
    return HighwayBlock(6, activation, gate_bias).double(), torch.randn(4, 6, dtype=torch.float64)


def rowwise_jacobian(function, x):
    """dy_i/dx_j of a function of one row, for each row of x: (n, d, d)."""
    return vmap(jacrev(function))(x)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_gradient_norms_are_those_of_backward(kind, depth):
    model, inputs, labels = network(kind, depth)
    norms = gradient_norms(model, inputs, labels, nn.CrossEntropyLoss())
    assert all(parameter.grad is None for parameter in model.parameters())
    nn.functional.cross_entropy(model(inputs), labels).backward()
    expected = {
        name: torch.cat([parameter.grad.flatten() for parameter in layer.parameters()]).norm().item()
        for name, layer in zip(
            ["input", *(f"block {i}" for i in range(1, depth + 1)), "output"],
            [model.input, *model.blocks, model.output],
            strict=True,
        )
    }
    assert list(norms) == list(expected)
    assert norms == pytest.approx(expected, rel=1e-5)
    assert min(norms.values()) > 0


def test_gradient_norms_leave_gradients_parameters_and_mode():
    model, inputs, labels = network()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    parameters = copy.deepcopy(model.state_dict())
    for mode in (True, False):
        gradient_norms(model.train(mode), inputs, labels, nn.CrossEntropyLoss())
        assert model.training is mode
    assert all(torch.equal(p.grad, gradient) for p, gradient in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(value, parameters[name]) for name, value in model.state_dict().items())


def test_gradients_too_small_to_be_squared_in_float32_still_have_a_norm():
    model, inputs, labels = network()
    norms = gradient_norms(model, inputs, labels, nn.CrossEntropyLoss())
    tiny = gradient_norms(
        model, inputs, labels, lambda logits, labels: nn.functional.cross_entropy(logits, labels) * 1e-30
    )
    assert tiny == pytest.approx({name: norm * 1e-30 for name, norm in norms.items()}, rel=1e-4, abs=0)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("depth", [0, 3])
def test_block_states_lead_from_the_input_to_the_logits(kind, depth):
    model, inputs, _ = network(kind, depth)
    states = block_states(model, inputs)
    assert states.shape == (depth + 1, 8, 5)
    assert not states.requires_grad
    torch.testing.assert_close(states[0], torch.relu(model.input(inputs.flatten(1))))
    for before, block, after in zip(states[:-1], model.blocks, states[1:], strict=True):
        torch.testing.assert_close(after, block(before))
    torch.testing.assert_close(model.output(states[-1]), model(inputs))


def test_gate_activity_is_the_sigmoid_of_the_second_half_of_each_block():
    model, inputs, _ = network()
    gates, states = gate_activity(model, inputs), block_states(model, inputs)
    assert gates.shape == (3, 8, 5)
    assert not gates.requires_grad
    for gate, state, block in zip(gates, states[:-1], model.blocks, strict=True):
        expected = 1 / (1 + torch.exp(-(state @ block.weight[5:].T + block.bias[5:])))
        torch.testing.assert_close(gate, expected)


def test_gates_lie_between_0_and_1_and_reach_them_at_extreme_biases():
    model, inputs, _ = network(gate_bias=-2)
    gates = gate_activity(model, inputs)
    assert ((gates > 0) & (gates < 1)).all()
    closed, inputs, _ = network(gate_bias=-50)
    torch.testing.assert_close(gate_activity(closed, inputs), torch.zeros(3, 8, 5), rtol=0, atol=1e-20)
    opened, inputs, _ = network(gate_bias=50)
    assert torch.equal(gate_activity(opened, inputs), torch.ones(3, 8, 5))


def test_a_network_without_blocks_has_no_gates():
    model, inputs, _ = network(depth=0)
    assert gate_activity(model, inputs).shape == (0, 8, 5)
    assert gate_biases(model).shape == (0, 5)


def test_gate_biases_are_a_copy_of_b_t():
    model, _, _ = network(gate_bias=-3)
    with torch.no_grad():
        model.blocks[1].bias[5:] = torch.arange(5.0)
    biases = gate_biases(model)
    assert torch.equal(biases[0], torch.full((5,), -3.0))
    assert torch.equal(biases[1], torch.arange(5.0))
    biases += 1
    assert torch.equal(model.blocks[1].bias[5:], torch.arange(5.0))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_three_terms_sum_to_the_jacobian(activation):
    block, x = double_block(activation)
    torch.testing.assert_close(sum(block_jacobian(block, x)), rowwise_jacobian(block, x), rtol=0, atol=1e-14)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_each_term_is_the_derivative_by_one_path(activation):
    """Hold two of H, the carried x and T fixed at once, and differentiate by the third."""
    block, x = double_block(activation)
    transform, carry, gate = block_jacobian(block, x)
    for row in range(len(x)):
        h, t = (value.detach() for value in block.candidate_and_gate(x[row]))
        through_h = jacrev(lambda x, t=t: t * block.candidate_and_gate(x)[0])(x[row])
        through_x = jacrev(lambda x, t=t: (1 - t) * x)(x[row])
        through_t = jacrev(lambda x, h=h, at=x[row]: block.candidate_and_gate(x)[1] * (h - at))(x[row])
        torch.testing.assert_close(transform[row], through_h, rtol=0, atol=1e-14)
        torch.testing.assert_close(carry[row], through_x, rtol=0, atol=1e-14)
        torch.testing.assert_close(gate[row], through_t, rtol=0, atol=1e-14)


def test_the_limits_of_the_jacobian_are_those_of_the_paper():
    """I at T = 0 and H' at T = 1: its equation 5."""
    closed, x = double_block("tanh", gate_bias=-50)
    nothing = torch.zeros(4, 6, 6, dtype=torch.float64)
    identity = nothing + torch.eye(6)
    for term, limit in zip(block_jacobian(closed, x), (nothing, identity, nothing), strict=True):
        torch.testing.assert_close(term, limit, rtol=0, atol=1e-20 if limit is nothing else 1e-15)
    opened, x = double_block("tanh", gate_bias=50)
    of_h = rowwise_jacobian(lambda x: torch.tanh(opened.weight[:6] @ x + opened.bias[:6]), x)
    for term, limit in zip(block_jacobian(opened, x), (of_h, nothing, nothing), strict=True):
        torch.testing.assert_close(term, limit, rtol=0, atol=1e-15)


TABLE = {
    0: ("2.0e-3", "1.9e-6", "1.8e-15", "1.6e-30"),
    -1: (".060", "2.6e-3", "2.2e-7", "3.4e-14"),
    -2: (".319", ".090", "2.0e-3", "3.5e-6"),
    -3: (".646", ".397", ".092", "8.1e-3"),
    -4: (".849", ".708", ".411", ".166"),
    -6: (".978", ".954", ".886", ".783"),
}


@pytest.mark.parametrize("gate_bias", TABLE)
def test_carry_products_to_the_digits_worked_out_by_hand(gate_bias):
    for depth, digits in zip((9, 19, 49, 99), TABLE[gate_bias], strict=True):
        last_place = 10.0 ** Decimal(digits).as_tuple().exponent
        assert abs(carry_product(gate_bias, depth) - float(digits)) <= last_place / 2


@pytest.mark.parametrize("depth", [0, 1, 7])
def test_carry_product_is_what_a_stack_carries(depth):
    """With all weights 0, H is 0 and T is sigmoid(b): all that leaves the stack was carried."""
    model, inputs, _ = network(depth=depth)
    with torch.no_grad():
        for block in model.blocks:
            block.weight.zero_()
            block.bias[:5] = 0
    states = block_states(model, inputs)
    assert carry_product(-2, 0) == 1
    torch.testing.assert_close(states[-1], states[0] * carry_product(-2, depth))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_lesioned_block_has_its_gate_shut(number):
    model, inputs, _ = network(activation="tanh")
    whole, shut = model(inputs), copy.deepcopy(model)
    with torch.no_grad():
        shut.blocks[number - 1].weight[5:] = 0
        shut.blocks[number - 1].bias[5:] = -1000  # T is 0 exactly
    with lesioned(model, number) as wounded:
        assert wounded is model
        assert torch.equal(model(inputs), shut(inputs))
        assert not torch.equal(model(inputs), whole)
    assert torch.equal(model(inputs), whole)


def test_a_lesion_heals_after_an_exception():
    model, inputs, _ = network()
    names, blocks, whole = list(model.state_dict()), list(model.blocks), model(inputs)
    with pytest.raises(KeyboardInterrupt), lesioned(model, 2):
        raise KeyboardInterrupt
    assert list(model.state_dict()) == names
    assert all(now is before for now, before in zip(model.blocks, blocks, strict=True))
    assert torch.equal(model(inputs), whole)


def test_lesions_add_up():
    model, inputs, _ = network()
    whole = model(inputs)
    with lesioned(model, 1), lesioned(model, 2), lesioned(model, 3):
        torch.testing.assert_close(model(inputs), model.output(torch.relu(model.input(inputs.flatten(1)))))
    assert torch.equal(model(inputs), whole)


@pytest.mark.parametrize("number", [0, -1, 4])
def test_a_lesion_needs_a_block_that_exists(number):
    model, _, _ = network()
    with pytest.raises(ValueError, match=f"block must be from 1 to 3, not {number}"), lesioned(model, number):
        pytest.fail("the body must not run")


def test_measuring_leaves_the_model_as_it_was():
    model, inputs, _ = network()
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    block_states(model, inputs)
    gate_activity(model, inputs)
    gate_biases(model)
    block_jacobian(model.blocks[0], block_states(model, inputs)[0])
    with lesioned(model, 1):
        model(inputs)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gate_bias_of_minus_log_depth_carries_about_one_part_in_e():
    """(1 + 1/L)^-L falls towards 1/e as L grows."""
    for depth in (100, 1000, 10_000):
        assert carry_product(-math.log(depth), depth) == pytest.approx(math.exp(-1), rel=1 / depth)


@pytest.mark.parametrize("probe", [probes.gate_biases, lambda model: probes.gate_activity(model, torch.zeros(1, 6))])
def test_a_network_without_gates_is_refused(probe):
    with pytest.raises(ValueError, match="gates need highway blocks, and this network has a PlainBlock"):
        probe(PlainMLP(6, 4, 2, 3))


@pytest.mark.parametrize(
    ("kind", "per_block"),  # what backward needs of a block, in states: H, T and y, which is x of the next block
    [(PlainMLP, 1), (ResidualMLP, 2), (FixedGateMLP, 2), (HighwayMLP, 3), (FreeCarryMLP, 4)],
)
@pytest.mark.parametrize("depth", [0, 1, 7])
def test_saved_bytes_are_the_states_that_backward_needs(kind, per_block, depth):
    """Every state is kept once, though the next product, a sum and an activation may all ask for it."""
    model, inputs, _ = network(kind, depth)
    state = 8 * 5 * 4  # examples, units, bytes of a float32
    assert saved_bytes(model, inputs) == (1 + per_block * depth) * state
    assert saved_bytes(model.double(), inputs.double()) == (1 + per_block * depth) * state * 2


def test_saved_bytes_leave_the_model_and_what_is_saved_for_backward():
    model, inputs, labels = network()
    expected = gradient_norms(model, inputs, labels, nn.CrossEntropyLoss())
    before = copy.deepcopy(model.state_dict())
    saved_bytes(model, inputs)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert gradient_norms(model, inputs, labels, nn.CrossEntropyLoss()) == expected
    with torch.no_grad():
        assert saved_bytes(model, inputs) == 0


def test_saved_bytes_let_go_of_what_they_counted():
    model, inputs, _ = network(HighwayMLP, 1)
    kept = []
    act = model.blocks[0].act

    class Watch:
        """Lives as long as the graph does."""

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.watched = Watch()
            kept.append(weakref.ref(context.watched))
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient

    model.blocks[0].act = lambda x: act(Watched.apply(x))
    saved_bytes(model, inputs)
    gc.collect()
    assert [reference() for reference in kept] == [None], "the graph is still there"
