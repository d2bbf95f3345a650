"""The formulas of the chapter on the Jacobian against autograd, exact arithmetic and simulation."""

import functools
import math
import re

import pytest
import torch
from formulas import BOOK, Formula, check, each
from torch import Tensor

from highway import probes
from highway.jacobians import log_gain
from highway.layers import HighwayBlock
from highway.networks import HighwayMLP

GAIN = 1 / 6  # k of ReLU under PyTorch's default


@functools.cache
def batch(activation: str = "tanh", gate_bias: float = -1.0):
    """A block, inputs, gradients of its outputs, and H, T, f' and the pre-activation's weights."""
    torch.manual_seed(0)
    block = HighwayBlock(12, activation, gate_bias).double()
    x, delta = torch.randn(2, 7, 12, dtype=torch.float64)
    w_h, w_t = block.weight.detach().split(12)
    with torch.no_grad():
        h, t = block.candidate_and_gate(x)
    return block, x, delta, h, t, 1 - h**2, w_h, w_t


def autograd_jacobian() -> Tensor:
    block, x = batch()[:2]
    return torch.stack([torch.func.jacrev(block)(row) for row in x]).detach()


def jacobian(swap: bool = False, gate_term: float = 1.0, proposal_transposed: bool = False, squared: bool = True):
    _, x, _, h, t, slope, w_h, w_t = batch()
    slopes = (slope.unsqueeze(-1) * w_h).mT if proposal_transposed else slope.unsqueeze(-1) * w_h
    a, c = (1 - t, t) if swap else (t, 1 - t)
    through = (h - x) * t * ((1 - t) if squared else 1)
    return a.unsqueeze(-1) * slopes + torch.diag_embed(c) + gate_term * through.unsqueeze(-1) * w_t


def limits(far: float = 40.0, exchanged: bool = False) -> Tensor:
    """Jacobians of the block at a very negative and at a very positive bias."""
    block, x = batch()[:2]
    ends = []
    for b in (far, -far) if exchanged else (-far, far):
        other = HighwayBlock(12, "tanh").double()
        other.load_state_dict(block.state_dict())
        with torch.no_grad():
            other.bias[12:] = b
        ends.append(torch.stack([torch.func.jacrev(other)(row) for row in x]).detach())
    return torch.stack(ends)


def limit_values(second_transposed: bool = False) -> Tensor:
    *_, slope, w_h, _ = batch()
    slopes = slope.unsqueeze(-1) * w_h
    return torch.stack([torch.eye(12).double().expand_as(slopes), slopes.mT if second_transposed else slopes])


@functools.cache
def simulated_gains(bias: float = -1.0) -> Tensor:
    """E ||J^T delta||^2 / ||delta||^2 of the first two terms and of the third one, over Gaussian weights (He).

    The gates are set to sigma(b); masks come from other weights than the Jacobian's, as the derivation assumes.
    """
    torch.manual_seed(1)
    d, n, s = 30, 3000, 1 / (1 + math.exp(-bias))
    v = 2 / d
    x, delta = torch.rand(d).double(), torch.randn(d).double()
    w, other, w_t = v**0.5 * torch.randn(3, n, d, d, dtype=torch.float64)
    mask = (other @ x > 0).double()
    back = (1 - s) * delta + s * torch.einsum("nij,ni->nj", w, mask * delta)
    h = torch.relu(other @ x)
    through = torch.einsum("nij,ni->nj", w_t, (h - x) * s * (1 - s) * delta)
    whole = delta.square().sum()
    spread = ((h - x) ** 2 * delta**2).sum(1).mean() / whole  # m^2, weighted as the gradient weighs the units
    return torch.stack([
        back.square().sum(1).mean() / whole, through.square().sum(1).mean() / whole, spread,
    ])  # fmt: skip


def gain(cross: bool = False, half: bool = True, carry_squared: bool = True, bias: float = -1.0) -> Tensor:
    s = 1 / (1 + math.exp(-bias))
    carried = (1 - s) ** 2 if carry_squared else 1 - s
    return torch.tensor(carried + s**2 * (1.0 if half else 2.0) + (2 * s * (1 - s) if cross else 0))


def gate_term(power: int = 2, half: bool = False, bias: float = -1.0) -> Tensor:
    s = 1 / (1 + math.exp(-bias))
    return (s * (1 - s)) ** power * 2 * simulated_gains()[2] / (2 if half else 1)


@functools.cache
def terms(gate_bias: float = -1.0):
    torch.manual_seed(2)
    block = HighwayBlock(30, "relu", gate_bias, "xavier").double()
    x = torch.rand(40, 30, dtype=torch.float64)
    with torch.no_grad():
        return [*probes.block_jacobian(block, x)]


def inside(lower: Tensor, upper: Tensor) -> Tensor:
    values = torch.linalg.svdvals(sum(terms()))
    return ((lower <= values[:, -1]) & (values[:, 0] <= upper)).double()


def bounds(norm_of: str = "both", factor: float = 1.0, swap: bool = False) -> Tensor:
    transform, carry, gate = terms()
    rest = torch.linalg.matrix_norm({"both": transform + gate, "gate": gate}[norm_of], 2) * factor
    c = carry.diagonal(dim1=1, dim2=2)
    low, high = (c.amax(1), c.amin(1)) if swap else (c.amin(1), c.amax(1))
    return inside(low - rest, high + rest)


@functools.cache
def stack():
    """Ratios of the gradient's norm over 6 blocks for many random gradients, and the blocks' terms."""
    torch.manual_seed(3)
    model = HighwayMLP(10, 20, 6, 5, gate_bias=-3.0).double()
    x = torch.rand(1, 10, dtype=torch.float64)
    states = probes.block_states(model, x)
    with torch.no_grad():
        blocks = [probes.block_jacobian(block, s) for block, s in zip(model.blocks, states, strict=False)]
        product = torch.eye(20).double()
        for parts in blocks:
            product = sum(parts)[0] @ product
    return torch.linalg.svdvals(product), blocks


def stack_bounds(sign: int = 1, carry_only: bool = False) -> Tensor:
    values, blocks = stack()
    low, high = 1.0, 1.0
    for transform, carry, gate in blocks:
        rest = 0 if carry_only else sign * torch.linalg.matrix_norm(transform + gate, 2)[0]
        c = carry[0].diagonal()
        low, high = low * (c.min() - rest), high * (c.max() + rest)
    return torch.stack([low <= values[-1], values[0] <= high]).double()


BIASES = torch.tensor([-8.0, -3.0, -1.0, 0.0, 1.0], dtype=torch.float64)


def log_gain_forms() -> Tensor:
    s = torch.sigmoid(BIASES)
    return ((1 - s) ** 2 + GAIN * s**2).log() / 2


def log_gain_odds(sign: int = -1, half: float = 0.5, power: int = 2) -> Tensor:
    return sign * BIASES.exp().log1p() + half * (GAIN * (power * BIASES).exp()).log1p()


@functools.cache
def mean_slope() -> Tensor:
    torch.manual_seed(4)
    d, v = 6, 0.3
    x = torch.linspace(-1, 2, d, dtype=torch.float64)
    w = v**0.5 * torch.randn(1_000_000, d, dtype=torch.float64)  # one row at a time: all rows are alike
    row = (w * (w @ x > 0).double().unsqueeze(1)).mean(0)
    return row.expand(d, d)


def mean_slope_formula(power: float = 1.0, transposed: bool = False, constant: float = 2.0) -> Tensor:
    d, v = 6, 0.3
    x = torch.linspace(-1, 2, d, dtype=torch.float64)
    matrix = math.sqrt(v / (constant * math.pi)) * torch.ones(d, 1, dtype=torch.float64) * x / x.norm() ** power
    return matrix.mT if transposed else matrix


def slow(carry: bool = True, cosine: bool = True, root: bool = True) -> Tensor:
    d, v, s = 6, 0.3, 1 / (1 + math.exp(1.0))
    x = torch.linspace(-1, 2, d, dtype=torch.float64)
    c = (x.sum() / (math.sqrt(d) * x.norm())) if cosine else 1.0
    size = d * v / (2 * math.pi)
    return torch.as_tensor((1 - s if carry else 1) + s * c * (math.sqrt(size) if root else size))


def eigenvalue() -> Tensor:
    s = 1 / (1 + math.exp(1.0))
    mean = (1 - s) * torch.eye(6, dtype=torch.float64) + s * mean_slope_formula()
    values = torch.linalg.eigvals(mean).real
    return values[(values - (1 - s)).abs().argmax()]


DEPTHS = torch.tensor([1, 2, 10, 100, 1000], dtype=torch.float64)


def depth_aware(sign: int = -1, k: float = GAIN, power: int = 2) -> Tensor:
    kept = (1 + 1 / DEPTHS) ** (sign * DEPTHS) * (1 + k / DEPTHS**power) ** (DEPTHS / 2)
    carried = (1 + 1 / DEPTHS) ** -DEPTHS
    within = (carried > 1 / math.e) & (carried <= 0.5)
    return torch.cat([kept, within.double()])


def depth_aware_truth() -> Tensor:
    """From the product of matrices' expected gains, block after block."""
    kept = []
    for depth in DEPTHS.tolist():
        s = 1 / (1 + depth)  # sigma(-ln L)
        square = math.prod(((1 - s) ** 2 + GAIN * s**2) for _ in range(int(depth)))
        kept.append(math.sqrt(square))
    return torch.tensor([*kept, *[1.0] * len(kept)], dtype=torch.float64)


@functools.cache
def gate_mean() -> Tensor:
    """The integral of sigma(b + z) over a normal z, on a fine grid."""
    b, variance = -9.0, 0.5
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    weight = torch.exp(-(z**2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)
    return torch.trapezoid(torch.sigmoid(b + z) * weight, z)


def contour_points(plus: bool = True, exponent: float = 2.0, minus: float = 1.0, k: float = GAIN) -> Tensor:
    """The share of the gradient that the bias of the formula leaves, at two depths and two ratios."""
    kept = []
    for depth, ratio in ((20, 1e-2), (200, 1e-2), (200, 1e-8)):
        a = torch.tensor(ratio ** (exponent / depth), dtype=torch.float64)
        root = ((1 + k) * a - minus * k).sqrt()
        bias = ((1 - a) / (a + (root if plus else -root))).log()
        kept.append((depth * log_gain(bias, GAIN)).exp())
    return torch.stack(kept)


def weight_gradient(
    gate: bool = True, slope: bool = True, sign: int = 1, both: bool = True, transposed: bool = False
) -> Tensor:
    _, x, delta, h, t, f, *_ = batch()
    w_h = (delta * (t if gate else 1) * (f if slope else 1)).T @ x
    w_t = (delta * sign * (h - x) * t * ((1 - t) if both else 1)).T @ x
    return torch.stack([w_h.T, w_t.T] if transposed else [w_h, w_t])


def weight_gradient_truth() -> Tensor:
    block, x, delta = batch()[:3]
    return torch.autograd.grad(block(x), block.weight, delta)[0].reshape(2, 12, 12)


@functools.cache
def first_block_gradients() -> Tensor:
    """log of the gradient norm of block 1 at several biases, less that at the first: median over seeds."""
    found = []
    inputs, labels = torch.rand(20, 30, generator=torch.Generator().manual_seed(5)).double(), torch.arange(20) % 5
    for seed in range(3):
        norms = []
        for bias in FIRST_BIASES.tolist():
            torch.manual_seed(seed)
            model = HighwayMLP(30, 80, 40, 5, gate_bias=bias).double()
            norms.append(probes.gradient_norms(model, inputs, labels, torch.nn.CrossEntropyLoss())["block 1"])
        found.append(torch.tensor(norms, dtype=torch.float64).log())
    logs = torch.stack(found).median(0).values
    return logs - logs[0]


FIRST_BIASES = torch.tensor([-9.0, -6.0, -4.0, -3.0, -2.0], dtype=torch.float64)


def first_gradient(blocks: float = 39, gate: float = 1.0) -> Tensor:
    logs = gate * torch.sigmoid(FIRST_BIASES).log() + blocks * log_gain(FIRST_BIASES, GAIN)
    return logs - logs[0]


def peak(minus: float = 1.0, four: float = 4.0, sign: int = 1) -> Tensor:
    depths = torch.tensor([10, 40, 200], dtype=torch.float64)
    root = ((depths - minus) ** 2 - four * GAIN * depths).sqrt()
    return (2 / (depths - minus + sign * root)).log()


def peak_truth() -> Tensor:
    """The bias at which the slope of the curve, from autograd, changes its sign."""
    found = []
    for depth in (10, 40, 200):
        low, high = -8.0, -1.0
        for _ in range(80):
            b = torch.tensor((low + high) / 2, dtype=torch.float64, requires_grad=True)
            (slope,) = torch.autograd.grad(torch.sigmoid(b).log() + (depth - 1) * log_gain(b, GAIN), b)
            low, high = (b.item(), high) if slope > 0 else (low, b.item())
        found.append((low + high) / 2)
    return torch.tensor(found, dtype=torch.float64)


FORMULAS = {
    "eq-highway-jacobian": Formula(
        r"""\begin{aligned}
        \mathbf{J} ={} & \underbrace{\operatorname{diag}(T)\,
        \frac{\partial H}{\partial \mathbf{x}}}_{\text{through the proposal}}
        + \underbrace{\operatorname{diag}(1 - T)}_{\text{carried}} \\
        & + \underbrace{\operatorname{diag}\big((H - \mathbf{x}) \odot T \odot (1 - T)\big)\,
        \mathbf{W}_T}_{\text{through the gate}} .
        \end{aligned}""",
        right=jacobian,
        truth=autograd_jacobian,
        wrong={
            "T and 1 - T exchanged": lambda: jacobian(swap=True),
            "the gate's term missing": lambda: jacobian(gate_term=0),
            "the gate's sign": lambda: jacobian(gate_term=-1),
            "transposed": lambda: jacobian(proposal_transposed=True),
            "T for T (1 - T)": lambda: jacobian(squared=False),
        },
    ),
    "eq-jacobian-limits": Formula(
        r"""\lim_{b \to -\infty} \mathbf{J} = \mathbf{I}, \qquad
        \lim_{b \to +\infty} \mathbf{J} = \frac{\partial H}{\partial \mathbf{x}} .""",
        right=limit_values,
        truth=limits,
        wrong={
            "exchanged": lambda: limit_values().flip(0),
            "transposed": lambda: limit_values(second_transposed=True),
        },
    ),
    "eq-highway-gain": Formula(
        r"""\mathbb{E}\,\lVert \mathbf{J}^\top \boldsymbol\delta \rVert^2 \approx
        \Big( (1 - \sigma(b))^2 + \sigma(b)^2 \cdot \tfrac12\, d\, v \Big) \lVert \boldsymbol\delta \rVert^2 .""",
        right=gain,
        truth=lambda: simulated_gains()[0],
        wrong={
            "no half": lambda: gain(half=False),
            "the cross term kept": lambda: gain(cross=True),
            "carry not squared": lambda: gain(carry_squared=False),
        },
        rtol=0.02,
    ),
    "eq-gate-term": Formula(
        r"""\mathbb{E}\, \lVert \mathbf{J}_{\text{gate}}^\top \boldsymbol\delta \rVert^2
        \approx \sigma(b)^2 (1 - \sigma(b))^2\, d\, v\, m^2\, \lVert \boldsymbol\delta \rVert^2,""",
        right=gate_term,
        truth=lambda: simulated_gains()[1],
        wrong={
            "not squared": lambda: gate_term(power=1),
            "half of it": lambda: gate_term(half=True),
        },
        rtol=0.02,
    ),
    "eq-singular-bounds": Formula(
        r"""\min_i (1 - T_i) - \lVert \mathbf{M} \rVert \;\le\; \varsigma_{\min}(\mathbf{J})
        \;\le\; \varsigma_{\max}(\mathbf{J}) \;\le\; \max_i (1 - T_i) + \lVert \mathbf{M} \rVert .""",
        right=bounds,
        truth=lambda: torch.ones(40),
        wrong={
            "the norm's sign": lambda: bounds(factor=-1),
            "the proposal's term missing": lambda: bounds("gate"),
            "the norm missing": lambda: bounds(factor=0),
            "a tenth of the norm": lambda: bounds(factor=0.1),
        },
    ),
    "eq-product-bound": Formula(
        r"""\begin{aligned}
        \frac{\lVert \boldsymbol\delta_0 \rVert}{\lVert \boldsymbol\delta_L \rVert}
        & \;\ge\; \prod_{\ell=1}^{L} \big( \min_i (1 - T_{\ell i}) - \lVert \mathbf{M}_\ell \rVert \big), \\
        \frac{\lVert \boldsymbol\delta_0 \rVert}{\lVert \boldsymbol\delta_L \rVert}
        & \;\le\; \prod_{\ell=1}^{L} \big( \max_i (1 - T_{\ell i}) + \lVert \mathbf{M}_\ell \rVert \big) .
        \end{aligned}""",
        right=stack_bounds,
        truth=lambda: torch.ones(2),
        wrong={
            "the norms' sign": lambda: stack_bounds(sign=-1),
            "carry alone": lambda: stack_bounds(carry_only=True),
        },
    ),
    "eq-log-gain": Formula(
        r"""\begin{aligned}
        \Lambda(b) & = \tfrac12 \ln\!\big( (1 - \sigma(b))^2 + k\, \sigma(b)^2 \big) \\
        & = - \ln (1 + e^b) + \tfrac12 \ln (1 + k\, e^{2b}),
        \qquad k = d\, v\, \mathbb{E} [ f'(z)^2 ] .
        \end{aligned}""",
        right=log_gain_odds,
        truth=log_gain_forms,
        wrong={
            "a sign": lambda: log_gain_odds(sign=1),
            "no half": lambda: log_gain_odds(half=1),
            "e^b for e^2b": lambda: log_gain_odds(power=1),
        },
    ),
    "eq-mean-slope": Formula(
        r"""\mathbb{E} \left[ \frac{\partial H}{\partial \mathbf{x}} \right]
        = \sqrt{\frac{v}{2 \pi}}\; \mathbf{1}\, \frac{\mathbf{x}^\top}{\lVert \mathbf{x} \rVert} .""",
        right=mean_slope_formula,
        truth=mean_slope,
        wrong={
            "transposed": lambda: mean_slope_formula(transposed=True),
            "not normalised": lambda: mean_slope_formula(power=0),
            "pi for 2 pi": lambda: mean_slope_formula(constant=1),
            "zero": lambda: torch.zeros(6, 6),
        },
        rtol=0,
        atol=2e-3,
    ),
    "eq-slow-direction": Formula(
        r"""\lambda = 1 - \sigma(b) + \sigma(b)\, c\, \sqrt{\frac{d\, v}{2 \pi}} ,""",
        right=slow,
        truth=eigenvalue,
        wrong={
            "carry 1": lambda: slow(carry=False),
            "no cosine": lambda: slow(cosine=False),
            "no root": lambda: slow(root=False),
        },
        rtol=1e-10,
    ),
    "eq-depth-aware": Formula(
        r"""\begin{aligned}
        b = -\ln L \quad \Longrightarrow \quad
        & e^{L \Lambda(b)} = \Big( 1 + \frac1L \Big)^{\!-L} \Big( 1 + \frac{k}{L^2} \Big)^{\!L/2}, \\
        & \frac1e < \Big( 1 + \frac1L \Big)^{\!-L} \le \frac12 .
        \end{aligned}""",
        right=depth_aware,
        truth=depth_aware_truth,
        wrong={
            "a sign": lambda: depth_aware(sign=1),
            "without the weights": lambda: depth_aware(k=0),
            "k / L": lambda: depth_aware(power=1),
        },
    ),
    "eq-gate-mean": Formula(
        r"""\mathbb{E}\, \sigma(b + z) \approx e^{b + \tau^2 / 2} .""",
        right=lambda: torch.tensor(math.exp(-9 + 0.25)),
        truth=gate_mean,
        wrong={
            "the variance left out": lambda: torch.tensor(math.exp(-9)),
            "the whole variance": lambda: torch.tensor(math.exp(-9 + 0.5)),
            "a sign": lambda: torch.tensor(math.exp(-9 - 0.25)),
        },
        rtol=2e-3,
    ),
    "eq-contour": Formula(
        r"""b = \ln \frac{1 - a}{a + \sqrt{(1 + k)\, a - k}}, \qquad a = r^{2/L} .""",
        right=contour_points,
        truth=lambda: torch.tensor([1e-2, 1e-2, 1e-8], dtype=torch.float64),
        wrong={
            "the other solution": lambda: contour_points(plus=False),
            "r^(1/L)": lambda: contour_points(exponent=1),
            "a sign": lambda: contour_points(minus=-1),
            "without the weights": lambda: contour_points(k=0),
        },
        rtol=1e-9,
        atol=0,
    ),
    "eq-gate-gradient": Formula(
        r"""\begin{aligned}
        \frac{\partial \mathcal{L}}{\partial \mathbf{W}_H}
        & = \sum_n \big( \boldsymbol\delta_n \odot T_n \odot f'(\mathbf{z}_n) \big)\, \mathbf{x}_n^\top, \\
        \frac{\partial \mathcal{L}}{\partial \mathbf{W}_T}
        & = \sum_n \big( \boldsymbol\delta_n \odot (H_n - \mathbf{x}_n) \odot T_n \odot (1 - T_n) \big)\,
        \mathbf{x}_n^\top .
        \end{aligned}""",
        right=weight_gradient,
        truth=weight_gradient_truth,
        wrong={
            "no T": lambda: weight_gradient(gate=False),
            "no slope": lambda: weight_gradient(slope=False),
            "a sign": lambda: weight_gradient(sign=-1),
            "T for T (1 - T)": lambda: weight_gradient(both=False),
            "transposed": lambda: weight_gradient(transposed=True),
        },
    ),
    "eq-first-gradient": Formula(
        r"""g_1 \;\propto\; \sigma(b)\, e^{(L - 1)\, \Lambda(b)} .""",
        right=first_gradient,
        truth=first_block_gradients,
        wrong={
            "without the gate": lambda: first_gradient(gate=0),
            "without the stack": lambda: first_gradient(blocks=0),
            "the gate squared": lambda: first_gradient(gate=2),
            "half the stack": lambda: first_gradient(blocks=19.5),
        },
        rtol=0,
        atol=0.3,
    ),
    "eq-peak": Formula(
        r"""b^* = \ln \frac{2}{L - 1 + \sqrt{(L - 1)^2 - 4 k L}} \;\approx\; -\ln (L - 1) .""",
        right=peak,
        truth=peak_truth,
        wrong={
            "L for L - 1": lambda: peak(minus=0),
            "without the weights": lambda: peak(four=0),
            "the other solution": lambda: peak(sign=-1),
        },
        rtol=1e-9,
    ),
}


@each(FORMULAS)
def test_the_formula_of_the_text(label, formula):
    check(label, formula)


def test_every_equation_of_the_page_is_tested():
    page = (BOOK / "highway" / "jacobian.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\{math\}\n:label: (\S+)", page)) == set(FORMULAS)


@pytest.mark.parametrize("depth", [1, 3, 7, 40])
def test_the_carry_product_at_the_depth_aware_bias_falls_towards_1_over_e(depth):
    product = [probes.carry_product(-math.log(n), n) for n in (depth, depth + 1)]
    assert 0.5 >= product[0] > product[1] > 1 / math.e
