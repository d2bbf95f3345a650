"""The formulas of the chapter `Why depth is hard`, each against autograd, an integral or a simulation."""

import math
from functools import cache

import pytest
import torch
from formulas import Formula, check, each
from torch.nn import functional as F

from highway import data, probes, theory
from highway.layers import PlainBlock
from highway.networks import PlainMLP

D = 6


@cache
def stack(activation="tanh", depth=4):
    """Blocks, the states before and after them, and the gradients of a random linear loss."""
    torch.manual_seed(0)
    blocks = [PlainBlock(D, activation).double() for _ in range(depth)]
    states = [torch.randn(D, dtype=torch.float64, requires_grad=True)]
    for block in blocks:
        states.append(block(states[-1]))
    deltas = torch.autograd.grad(states[-1] @ torch.arange(1.0, D + 1).double(), states)
    return blocks, [state.detach() for state in states], deltas


@cache
def jacobians():
    blocks, states, _ = stack()
    return [torch.func.jacrev(block)(x).detach() for block, x in zip(blocks, states[:-1], strict=True)]


def one(activation="tanh"):
    blocks, states, _ = stack(activation)
    block, x = blocks[0], states[0]
    return block.weight.detach(), block.bias.detach(), x, block


def slope(weight, bias, x):
    return 1 - (weight @ x + bias).tanh().square()


def product(matrices):
    result = torch.eye(D, dtype=torch.float64)
    for matrix in matrices:
        result = result @ matrix
    return result


@cache
def simulated_gain(v_times_d=1.7, variance=0.8, width=40, draws=4000):
    """Mean of |J^T delta|^2 for tanh under the stated independence, with delta and slopes drawn anew."""
    torch.manual_seed(1)
    weight = torch.randn(draws, width, width).double() * math.sqrt(v_times_d / width)
    slopes = 1 - (math.sqrt(variance) * torch.randn(draws, width).double()).tanh().square()
    delta = torch.randn(draws, width).double() * 3
    squares = ((slopes * delta)[:, None] @ weight).square().sum((1, 2))
    return (squares.mean() / delta.square().sum(1).mean()).reshape(1)


@cache
def relu_gains():
    """Measured gains of ReLU blocks for the three initialisations, over many blocks and with their own biases."""
    gains = []
    for init in ("default", "xavier", "he"):
        torch.manual_seed(2)
        ratios = []
        for _ in range(300):
            block = PlainBlock(60, "relu", init)
            x, delta = torch.rand(60, requires_grad=True), torch.randn(60)
            (back,) = torch.autograd.grad(block(x), x, delta)
            ratios.append(back.square().sum() / delta.square().sum())
        gains.append(torch.stack(ratios).mean())
    return torch.stack(gains)


@cache
def forward_states():
    """Square norms of the states of a wide tanh network for a faint image, where biases count, and a bright one."""
    torch.manual_seed(3)
    model = PlainMLP(20, 1500, 3, 10, "tanh")
    images = torch.tensor([0.05, 8.0])[:, None].expand(2, 20)
    return probes.block_states(model, images).square().sum(2).double()


def forward(bias=1, activation="tanh"):
    q = [forward_states()[0]]
    for _ in range(3):
        q.append(1500 * theory.mean_square(activation, (q[-1] + bias) / (3 * 1500)))
    return torch.stack(q)


@cache
def points():
    torch.manual_seed(4)
    return torch.randn(30, D, dtype=torch.float64)


def pairs(divisor):
    distance = (points()[:, None] - points()).square().sum(2)
    return distance.sum() / divisor


THETA = torch.tensor([0.2, 0.9, 1.6, 2.5], dtype=torch.float64)


@cache
def kernel_integral():
    """E relu(z) relu(z') by a fine sum over the angle, for s = 2 and s' = 3."""
    phi = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000 * 2 * math.pi
    both = phi.cos().relu() * (phi - THETA[:, None]).cos().relu()
    return 2 * 3 * 2 * both.mean(1)  # E r^2 = 2


@cache
def wide_distance():
    """Two states through one very wide He-like ReLU block with biases: v = 3/d, v_b = 0.5."""
    torch.manual_seed(5)
    x, y = torch.randn(2, D, dtype=torch.float64)
    weight = torch.randn(500_000, D, dtype=torch.float64) * math.sqrt(3 / D)
    bias = torch.randn(500_000, dtype=torch.float64) * math.sqrt(0.5)
    distance = ((weight @ x + bias).relu() - (weight @ y + bias).relu()).square().mean() * D
    return x, y, distance.reshape(1)


def distance(kink=1.0, half=0.5):
    x, y, _ = wide_distance()
    v, v_b = 3 / D, 0.5
    s, t = (v * x @ x + v_b).sqrt(), (v * y @ y + v_b).sqrt()
    theta = ((v * x @ y + v_b) / (s * t)).acos()
    cut = D * s * t / math.pi * (theta.sin() - theta * theta.cos())
    return (half * D * v * (x - y).square().sum() - kink * cut).reshape(1)


@cache
def random_gains():
    """S of many ReLU blocks, by forward differentiation at a point that is not the direction."""
    torch.manual_seed(6)
    d, draws = 20, 30_000
    x, u = torch.rand(d), torch.randn(d)
    weight = torch.randn(draws, d, d) * math.sqrt(2 / d)
    moved = (weight @ u) * (weight @ x > 0)
    gains = moved.square().sum(1) / u.square().sum()
    return torch.stack([gains.mean(), gains.var()]).double()


@cache
def walk():
    """ln of the norm after 4 blocks of 40 units over its root mean square: mean and variance over many stacks."""
    torch.manual_seed(7)
    d, draws, depth = 40, 3000, 4
    x, u = torch.rand(draws, d, 1), torch.randn(draws, d, 1)
    start = u.norm(dim=1)
    for _ in range(depth):
        weight = torch.randn(draws, d, d) * math.sqrt(2 / d)
        z = weight @ x
        x, u = z.relu(), (weight @ u) * (z > 0)
    logs = (u.norm(dim=1) / start).log().double()
    return torch.stack([logs.mean(), logs.var()])


SHARES = torch.tensor([0.3, 0.25] + [0.05] * 8 + [0.05], dtype=torch.float64)[:10]
SHARES = SHARES / SHARES.sum()


@cache
def best_constant():
    logits = torch.zeros(10, dtype=torch.float64)
    for _ in range(5000):
        logits -= logits.softmax(0) - SHARES
    return torch.stack([-(SHARES * logits.log_softmax(0)).sum(), torch.tensor(math.log(10), dtype=torch.float64)])


@cache
def initial_loss():
    torch.manual_seed(8)
    logits = 0.4 * torch.randn(200_000, 10, dtype=torch.float64)
    return F.cross_entropy(logits, torch.randint(10, (200_000,))).reshape(1)


def loss_excess(share):
    return torch.tensor([math.log(10) + share * 0.4**2], dtype=torch.float64)


FORMULAS = {
    "eq-plain": Formula(
        r"\mathbf{y} = H(\mathbf{x}), \qquad H(\mathbf{x}) = f(\mathbf{W}_H \mathbf{x} + \mathbf{b}_H).",
        lambda: (lambda w, b, x, _: (w @ x + b).tanh())(*one()),
        lambda: (lambda w, b, x, block: block(x).detach())(*one()),
        {
            "transposed": lambda: (lambda w, b, x, _: (w.T @ x + b).tanh())(*one()),
            "no bias": lambda: (lambda w, b, x, _: (w @ x).tanh())(*one()),
        },
    ),
    "eq-delta": Formula(
        r"""\boldsymbol\delta_{\ell - 1} = \mathbf{J}_\ell^\top \boldsymbol\delta_\ell, \qquad
\mathbf{J}_\ell = \frac{\partial \mathbf{x}_\ell}{\partial \mathbf{x}_{\ell - 1}} .""",
        lambda: torch.stack([j.T @ delta for j, delta in zip(jacobians(), stack()[2][1:], strict=True)]),
        lambda: torch.stack(stack()[2][:-1]),
        {
            "not transposed": lambda: torch.stack([j @ x for j, x in zip(jacobians(), stack()[2][1:], strict=True)]),
            "forward": lambda: torch.stack([j.T @ x for j, x in zip(jacobians(), stack()[2][:-1], strict=True)]),
        },
    ),
    "eq-plain-jacobian": Formula(
        r"\mathbf{J} = \operatorname{diag}(f'(\mathbf{z}))\, \mathbf{W}_H .",
        lambda: (lambda w, b, x, _: slope(w, b, x).diag() @ w)(*one()),
        lambda: jacobians()[0],
        {
            "slope on the right": lambda: (lambda w, b, x, _: w @ slope(w, b, x).diag())(*one()),
            "transposed": lambda: (lambda w, b, x, _: slope(w, b, x).diag() @ w.T)(*one()),
        },
    ),
    "eq-product": Formula(
        r"""\boldsymbol\delta_0 = \mathbf{J}_1^\top \mathbf{J}_2^\top \cdots \mathbf{J}_L^\top \boldsymbol\delta_L
= (\mathbf{J}_L \cdots \mathbf{J}_2 \mathbf{J}_1)^\top \boldsymbol\delta_L .""",
        lambda: torch.stack([
            product([j.T for j in jacobians()]) @ stack()[2][-1], product(jacobians()[::-1]).T @ stack()[2][-1]
        ]),
        lambda: torch.stack([stack()[2][0]] * 2),
        {
            "other order": lambda: torch.stack([product(jacobians()).T @ stack()[2][-1]] * 2),
            "not transposed": lambda: torch.stack([product(jacobians()[::-1]) @ stack()[2][-1]] * 2),
        },
    ),
    "eq-backward-gain": Formula(
        r"""\mathbb{E}\,\lVert \mathbf{J}^\top \boldsymbol\delta \rVert^2
= d\, v\; \mathbb{E}\big[f'(z)^2\big]\; \mathbb{E}\,\lVert \boldsymbol\delta \rVert^2 .""",
        lambda: 1.7 * theory.slope_mean_square("tanh", 0.8).reshape(1),
        simulated_gain,
        {
            "no slope": lambda: torch.tensor([1.7]),
            "no weights": lambda: theory.slope_mean_square("tanh", 0.8).reshape(1),
            "mean slope squared": lambda: 1.7 * (theory.mean_square("tanh", 0.8) - 1).square().reshape(1),
        },
        rtol=0.02,
    ),
    "eq-plain-gain": Formula(
        r"""\tfrac12\, d\, v = \begin{cases}
\tfrac16 & \text{PyTorch's default, } v = 1/(3d), \\
\tfrac12 & \text{Xavier, } v = 1/d, \\
1 & \text{He, } v = 2/d .
\end{cases}""",
        lambda: torch.tensor([1 / 6, 1 / 2, 1]),
        relu_gains,
        {
            "no half": lambda: torch.tensor([1 / 3, 1, 2]),
            "default as 1/d": lambda: torch.tensor([1 / 2, 1 / 2, 1]),
            "a quarter": lambda: torch.tensor([1 / 12, 1 / 4, 1 / 2]),
        },
        rtol=0.06,
    ),
    "eq-forward-gain": Formula(
        r"""s_\ell^2 = v\, q_{\ell - 1} + v_b, \qquad
q_\ell = d\; \mathbb{E}\big[f(z)^2\big], \quad z \sim \mathcal{N}(0, s_\ell^2) .""",
        forward,
        forward_states,
        {"no bias": lambda: forward(bias=0), "no activation": lambda: forward(activation="identity")},
        rtol=0.15,
    ),
    "eq-spread": Formula(
        r"""S^2 = \frac1n \sum_i \lVert \mathbf{x}^{(i)} - \bar{\mathbf{x}} \rVert^2
= \frac{1}{2 n^2} \sum_{i,j} \lVert \mathbf{x}^{(i)} - \mathbf{x}^{(j)} \rVert^2 .""",
        lambda: pairs(2 * 30**2),
        lambda: (points() - points().mean(0)).square().sum(1).mean(),
        {"no half": lambda: pairs(30**2), "pairs of different ones": lambda: pairs(2 * 30 * 29)},
    ),
    "eq-relu-kernel": Formula(
        r"""\mathbb{E}\big[\operatorname{relu}(z)\operatorname{relu}(z')\big]
= \frac{s s'}{2 \pi} \big( \sin\theta + (\pi - \theta) \cos\theta \big) .""",
        lambda: 6 / (2 * math.pi) * (THETA.sin() + (math.pi - THETA) * THETA.cos()),
        kernel_integral,
        {
            "sign": lambda: 6 / (2 * math.pi) * (THETA.sin() - (math.pi - THETA) * THETA.cos()),
            "no pi": lambda: 6 / (2 * math.pi) * (THETA.sin() - THETA * THETA.cos()),
            "half": lambda: 6 / (4 * math.pi) * (THETA.sin() + (math.pi - THETA) * THETA.cos()),
        },
        rtol=1e-7,
    ),
    "eq-distance": Formula(
        r"""\mathbb{E}\, \lVert \mathbf{y} - \mathbf{y}' \rVert^2
= \underbrace{\tfrac12\, d\, v\, \lVert \mathbf{x} - \mathbf{x}' \rVert^2}_{\text{the gain}}
- \underbrace{\frac{d\, s s'}{\pi} \big( \sin\theta - \theta \cos\theta \big)}_{\text{what the kink takes}} .""",
        distance,
        lambda: wide_distance()[2],
        {
            "no kink": lambda: distance(kink=0),
            "sign": lambda: distance(kink=-1),
            "half the kink": lambda: distance(kink=0.5),
            "no half": lambda: distance(half=1),
        },
        rtol=0.01,
    ),
    "eq-random-gain": Formula(
        r"""S = \frac2d \sum_{i=1}^{d} m_i\, g_i^2, \qquad
\mathbb{E}\, S = 1, \quad \operatorname{Var} S = \frac5d ,""",
        lambda: torch.tensor([1, 5 / 20]),
        random_gains,
        {
            "no coin": lambda: torch.tensor([1, 2 / 20]),
            "coin alone": lambda: torch.tensor([1, 1 / 20]),
            "coins of a normal gradient alone": lambda: torch.tensor([1, 3 / 20]),
            "mean one half": lambda: torch.tensor([0.5, 5 / 20]),
        },
        rtol=0.03,
    ),
    "eq-log-spread": Formula(
        r"""\mathbb{E}\, \ln \frac{\lVert \mathbf{u}_L \rVert}{\operatorname{rms} \lVert \mathbf{u}_L \rVert}
\approx -\frac{5L}{4d}, \qquad
\operatorname{Var} \ln \lVert \mathbf{u}_L \rVert \approx \frac{5L}{4d} .""",
        lambda: torch.tensor([-5 * 4 / 160, 5 * 4 / 160]),
        walk,
        {
            "positive mean": lambda: torch.tensor([5 * 4 / 160, 5 * 4 / 160]),
            "squared norm": lambda: torch.tensor([-5 * 4 / 80, 5 * 4 / 40]),
            "2/d": lambda: torch.tensor([-2 * 4 / 160, 2 * 4 / 160]),
        },
        rtol=0.2,
    ),
    "eq-ln10": Formula(
        r"""\min_{p} \Big( - \sum_{k} \pi_k \ln p_k \Big) = - \sum_{k} \pi_k \ln \pi_k \le \ln 10 ,""",
        lambda: torch.tensor([theory.constant_loss(SHARES), theory.constant_loss(torch.ones(10))], dtype=torch.float64),
        best_constant,
        {
            "uniform": lambda: torch.tensor([math.log(10)] * 2, dtype=torch.float64),
            "base two": lambda: torch.tensor([theory.constant_loss(SHARES), math.log(10)]) / math.log(2),
        },
        atol=1e-9,
    ),
    "eq-initial-loss": Formula(
        r"""\mathbb{E}\, \mathcal{L} \approx \ln 10 + \tfrac{9}{20}\, s^2, \qquad s^2 = v\, q_L + v_b ,""",
        lambda: loss_excess(9 / 20),
        initial_loss,
        {
            "one half": lambda: loss_excess(1 / 2),
            "nine tenths": lambda: loss_excess(9 / 10),
            "sign": lambda: loss_excess(-9 / 20),
        },
        rtol=0,
        atol=0.004,
    ),
}  # fmt: skip


@each(FORMULAS)
def test_the_formula_of_the_text(label, formula):
    check(label, formula)


@pytest.mark.skipif(not data.mnist_is_present(), reason="the counts of the page are those of MNIST itself")
def test_the_counts_of_the_page_are_those_of_the_training_split():
    from formulas import BOOK

    counts = torch.bincount(data.mnist("train").tensors[1]).tolist()
    assert str(counts) in (BOOK / "highway" / "why-depth-is-hard.md").read_text(encoding="utf-8")
