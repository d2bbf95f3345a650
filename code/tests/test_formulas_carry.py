"""The formulas of the chapter on the carry gate, against the blocks, autograd, enumeration and simulation."""

import math
from functools import cache

import torch
from formulas import Formula, check, each
from torch import nn

from highway.layers import FixedGateBlock, FreeCarryBlock, HighwayBlock, PlainBlock, ResidualBlock
from highway.networks import NETWORKS
from highway.probes import saved_bytes

D = 7
SHUT = 1 / (1 + math.exp(2))


@cache
def four_blocks():
    torch.manual_seed(0)
    x = torch.randn(5, D, dtype=torch.float64)
    kinds = (HighwayBlock, FreeCarryBlock, ResidualBlock, FixedGateBlock)
    return x, [kind(D).double() for kind in kinds]


def affine(block, x):
    """Every map of a block, one after the other, before its nonlinearity."""
    return [x @ w.T + b for w, b in zip(block.weight.split(D), block.bias.split(D), strict=True)]


def four_ways(coupled=None, free=None, residual=None, fixed=None):
    """The outputs of the four blocks by the formula; an argument replaces how one of them mixes h and x."""
    x, blocks = four_blocks()
    (h, t), (h2, t2, c2), (h3,), (h4,) = (affine(block, x) for block in blocks)
    t, t2, c2 = torch.sigmoid(t), torch.sigmoid(t2), torch.sigmoid(c2)
    mixtures = (
        (coupled or (lambda h, x: t * h + (1 - t) * x))(torch.relu(h), x),
        (free or (lambda h, x: t2 * h + c2 * x))(torch.relu(h2), x),
        (residual or (lambda h, x: h + x))(torch.relu(h3), x),
        (fixed or (lambda h, x: SHUT * h + (1 - SHUT) * x))(torch.relu(h4), x),
    )
    return torch.stack(mixtures).detach()


def coupled_parts():
    x, (block, *_) = four_blocks()
    with torch.no_grad():
        return (x, *block.candidate_and_gate(x), block(x))


def between(lower, upper):
    x, h, _, y = coupled_parts()
    largest = torch.maximum(x.abs().max(1).values, h.abs().max(1).values)[:, None]
    return torch.cat([y.clamp(lower(x, h), upper(x, h)), y.abs().max(1, keepdim=True).values.clamp(max=largest)], 1)


SD_X, SD_H, A = 1.3, 0.6, 2.5


def outcomes():
    """Two independent errors of two equally likely values each: every combination once."""
    return torch.tensor([[i * SD_X, j * SD_H] for i in (-1, 1) for j in (-1, 1)], dtype=torch.float64)


def error(t, c):
    e_x, e_h = outcomes().T
    return t * (A + e_h) + c * (A + e_x) - A


def best_gate_by_autograd():
    """The variance of a coupled mixture is quadratic in t: one step of Newton's method finds its minimum."""

    def variance(t):
        return error(t, 1 - t).square().mean()

    start = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(variance(start), start, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, start)
    best = start - slope / curvature
    return torch.stack([variance(start), best, variance(best)]).detach()


def best_gate(variance=None, best=None, smallest=None):
    v_x, v_h, t = SD_X**2, SD_H**2, 0.3
    return torch.tensor([
        t**2 * v_h + (1 - t) ** 2 * v_x if variance is None else variance(v_x, v_h, t),
        v_x / (v_x + v_h) if best is None else best(v_x, v_h),
        v_x * v_h / (v_x + v_h) if smallest is None else smallest(v_x, v_h),
    ])  # fmt: skip


NUMBERS = torch.arange(1, 51, dtype=torch.float64)

WIDTH = 50
RELU_MEAN = 1 / math.sqrt(2 * math.pi)


@cache
def simulated_moments():
    """m' and q' of a coupled and of a free block, from 1,500 draws of the weights of each unit."""
    torch.manual_seed(1)
    x = torch.relu(torch.randn(WIDTH, dtype=torch.float64) + 0.3)
    state = x.repeat(1500)  # the unit that a row of weights belongs to
    v, v_b, found = 1.5 / WIDTH, 0.4, []
    for free in (False, True):
        z = [(torch.randn(len(state), WIDTH, dtype=torch.float64) * math.sqrt(v)) @ x for _ in range(3)]
        h = torch.relu(z[0] + math.sqrt(v_b) * torch.randn(len(state), dtype=torch.float64))
        t = torch.sigmoid(z[1] - 0.5)
        y = t * h + (torch.sigmoid(z[2] + 0.5) if free else 1 - t) * state
        found += [y.mean(), WIDTH * y.square().mean()]
    return x, v, v_b, torch.stack(found)


def predicted_moments(half=0.5, cross=2.0, width=WIDTH, mean=RELU_MEAN, bias=True, constant=False):
    x, v, v_b, _ = simulated_moments()
    m, q = x.mean(), x.square().sum()
    s = torch.sqrt(v * q + (v_b if bias else 0))
    u = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    weight = torch.exp(-(u**2) / 2) / torch.exp(-(u**2) / 2).sum()
    spread = 0 if constant else torch.sqrt(v * q)
    t, found = torch.sigmoid(-0.5 + spread * u), []
    for free in (False, True):
        c = torch.sigmoid(0.5 + spread * u) if free else 1 - t
        tc = (weight @ t) * (weight @ c) if free else weight @ (t * c)
        found.append((weight @ c) * m + (weight @ t) * s * mean)
        found.append((weight @ c**2) * q + cross * tc * width * m * s * mean + (weight @ t**2) * WIDTH * s**2 * half)
    return torch.stack(found)


@cache
def wide_residual_stack():
    """The first ratios q_l / q_(l - 1), and u, of a wide residual stack without biases, a mean over eight inputs."""
    torch.manual_seed(2)
    d = 1500
    x = torch.relu(torch.randn(8, d))
    found = []
    for _ in range(5):
        block = ResidualBlock(d, init="he")
        with torch.no_grad():
            y = block(x)
        before, after = x.square().sum(1), y.square().sum(1)
        found += [(after / before).mean(), (y.mean(1) / (after / d).sqrt()).mean()]
        x = y
    start = 1 / math.sqrt(math.pi)
    return start, torch.stack(found)


def residual_growth(cross=2.0, under=math.pi, half=1.0):
    """With d v = 2; `under` is what d v stands over in the root, times d v / 2."""
    u, _ = wide_residual_stack()
    found = []
    for _ in range(5):
        factor = 1 + half + cross * u * math.sqrt(1 / under)
        u = (u + math.sqrt(1 / under)) / math.sqrt(factor)
        found += [factor, u]
    return torch.tensor(found)


@cache
def two_states():
    """What a block with constant coefficients does to two states of one length, far apart and near: 30 draws each."""
    torch.manual_seed(3)
    d, t, c = 400, 0.9, 0.4
    x, found = torch.relu(torch.randn(d, dtype=torch.float64)), []
    for distance in (1.0, 1e-4):
        other = x + distance * torch.randn(d, dtype=torch.float64)
        other = other * x.norm() / other.norm()
        squares = []
        for _ in range(30):
            h = PlainBlock(d, init="he").double()
            with torch.no_grad():
                y, y_other = (t * h(state) + c * state for state in (x, other))
                squares.append(torch.stack([(y - y_other).square().sum(), (h(x) - h(other)).square().sum()]))
        found.append((x, other, *torch.stack(squares).mean(0)))
    return t, c, found


def differences(of_input=lambda t, c: c**2, of_proposal=lambda t, c: t**2, half=0.5):
    """The middle of the formula for both pairs, and its right side for the near one; d v is 2."""
    t, c, found = two_states()
    values = []
    for x, other, _, proposals in found:
        square = (x - other).square().sum()
        values.append(of_input(t, c) * square + of_proposal(t, c) * proposals)
    return torch.stack([*values, (of_input(t, c) + half * 2 * of_proposal(t, c)) * square])


def measured_differences():
    (_, _, far, _), (_, _, near, _) = two_states()[2]
    return torch.stack([far, near, near])


@cache
def drawn_losses():
    """The mean loss under an output layer with Gaussian weights and biases, over many draws of it."""
    torch.manual_seed(4)
    d, v, v_b = 4, 0.5, 2.0
    state = torch.tensor([1.0, 0.5, 0.0, 1.5], dtype=torch.float64)
    weight = math.sqrt(v) * torch.randn(30_000, 10, d, dtype=torch.float64)
    bias = math.sqrt(v_b) * torch.randn(30_000, 10, dtype=torch.float64)
    labels = torch.randint(10, (30_000,))
    return v, v_b, state.square().sum(), nn.functional.cross_entropy(weight @ state + bias, labels)


def initial_loss(variance):
    v, v_b, q, _ = drawn_losses()
    u = torch.randn(50_000, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return torch.logsumexp(variance(v, v_b, q).sqrt() * u, dim=1).mean()


GAIN = 4.0


@cache
def drawn_growth():
    """q' / q of a coupled block, mean over 300 draws, for a centred state: short, of norm 15 and very long."""
    torch.manual_seed(6)
    d = 100
    x = torch.randn(d // 2, dtype=torch.float64)
    x = torch.cat([x, -x]) / (x.norm() * math.sqrt(2))  # m is exactly 0, so that the cross term is
    found = []
    for norm in (1.0, 15.0, 1e6):
        ratios = []
        for _ in range(300):
            block = HighwayBlock(d, init="he").double()
            with torch.no_grad():
                block.weight[:d] *= math.sqrt(GAIN)
                ratios.append(block(norm * x).square().sum() / norm**2)
        found.append(torch.stack(ratios).mean())
    return torch.stack(found)


def open_gates(
    carried=lambda t: (1 - t) ** 2, taken=lambda t: t**2, gain=GAIN, limit=lambda g: (1 + g) / 2
):  # fmt: skip
    u = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    weight = torch.exp(-(u**2) / 2) / torch.exp(-(u**2) / 2).sum()
    found = []
    for norm in (1.0, 15.0):
        t = torch.sigmoid(-2 + math.sqrt(2 / 100) * norm * u)
        found.append(weight @ carried(t) + gain * (weight @ taken(t)))
    return torch.stack([*found, torch.tensor(limit(gain), dtype=torch.float64)])


KEPT = {"plain": 1, "residual": 2, "fixed": 2, "highway": 3, "free": 4}
SIZES = [(kind, width, depth) for kind in KEPT for width, depth in ((6, 0), (5, 3), (9, 11))]


def bytes_kept(kept=KEPT, last=1):
    return torch.tensor([4 * 12 * width * (kept[kind] * depth + last) for kind, width, depth in SIZES])


def bytes_saved():
    inputs = torch.rand(12, 4)
    return torch.tensor([saved_bytes(NETWORKS[kind](4, w, depth, 3), inputs) for kind, w, depth in SIZES])


FORMULAS = {
    "eq-four-ways": Formula(
        r"""
\begin{gathered}
\mathbf{y} = T \odot H(\mathbf{x}) + C \odot \mathbf{x}, \\
(T, C) = \begin{cases}
\big(\sigma(\mathbf{W}_T \mathbf{x} + \mathbf{b}_T),\; 1 - T\big) & \text{coupled,} \\
\big(\sigma(\mathbf{W}_T \mathbf{x} + \mathbf{b}_T),\;
\sigma(\mathbf{W}_C \mathbf{x} + \mathbf{b}_C)\big) & \text{free,} \\
(1,\; 1) & \text{residual,} \\
\big(\sigma(b),\; 1 - \sigma(b)\big) & \text{fixed.}
\end{cases}
\end{gathered}""",
        four_ways,
        lambda: torch.stack([block(four_blocks()[0]) for block in four_blocks()[1]]).detach(),
        {
            "coupled gates exchanged": lambda: four_ways(coupled=lambda h, x: coupled_parts()[2] * (x - h) + h),
            "free gate coupled": lambda: four_ways(
                free=lambda h, x: torch.lerp(x, h, torch.sigmoid(affine(four_blocks()[1][1], x)[1]))
            ),
            "residual without its input": lambda: four_ways(residual=lambda h, x: h),
            "fixed gates exchanged": lambda: four_ways(fixed=lambda h, x: (1 - SHUT) * h + SHUT * x),
        },
    ),
    "eq-lerp": Formula(
        r"T \odot H + (1 - T) \odot \mathbf{x} = \mathbf{x} + T \odot (H - \mathbf{x}),",
        lambda: (lambda x, h, t, y: x + t * (h - x))(*coupled_parts()),
        lambda: coupled_parts()[3],
        {
            "sign": lambda: (lambda x, h, t, y: x - t * (h - x))(*coupled_parts()),
            "from the other end": lambda: (lambda x, h, t, y: h + t * (x - h))(*coupled_parts()),
        },
    ),
    "eq-between": Formula(
        r"""
\min(x_i, H_i) \le y_i \le \max(x_i, H_i), \qquad
\lVert \mathbf{y} \rVert_\infty \le \max\big( \lVert \mathbf{x} \rVert_\infty, \lVert H \rVert_\infty \big).""",
        lambda: between(torch.minimum, torch.maximum),
        lambda: between(lambda x, h: torch.full_like(x, -math.inf), lambda x, h: torch.full_like(x, math.inf)),
        {
            "exchanged": lambda: between(torch.maximum, torch.minimum),
            "below the input": lambda: between(torch.minimum, lambda x, h: x),
            "above the proposal": lambda: between(lambda x, h: h, torch.maximum),
        },
    ),
    "eq-unbiased": Formula(
        r"\mathbb{E}[\, y - A \mid A \,] = (t + c - 1)\, A .",
        lambda: torch.tensor([(t + c - 1) * A for t, c in ((0.2, 0.8), (0.5, 0.9), (1.0, 1.0))]),
        lambda: torch.stack([error(t, c).mean() for t, c in ((0.2, 0.8), (0.5, 0.9), (1.0, 1.0))]),
        {
            "without - 1": lambda: torch.tensor([(t + c) * A for t, c in ((0.2, 0.8), (0.5, 0.9), (1.0, 1.0))]),
            "sign": lambda: torch.tensor([(t - c) * A for t, c in ((0.2, 0.8), (0.5, 0.9), (1.0, 1.0))]),
        },
        rtol=1e-6,  # the right side is rounded to float32
        atol=1e-6,
    ),
    "eq-best-gate": Formula(
        r"""
\begin{gathered}
\operatorname{Var}(y \mid A) = t^2 \sigma_H^2 + (1 - t)^2 \sigma_x^2, \\
t^* = \frac{\sigma_x^2}{\sigma_x^2 + \sigma_H^2}, \qquad
\operatorname{Var}^* = \frac{\sigma_x^2 \sigma_H^2}{\sigma_x^2 + \sigma_H^2} .
\end{gathered}""",
        best_gate,
        best_gate_by_autograd,
        {
            "weights exchanged": lambda: best_gate(variance=lambda v_x, v_h, t: t**2 * v_x + (1 - t) ** 2 * v_h),
            "weights not squared": lambda: best_gate(variance=lambda v_x, v_h, t: t * v_h + (1 - t) * v_x),
            "share of the other": lambda: best_gate(best=lambda v_x, v_h: v_h / (v_x + v_h)),
            "standard deviations": lambda: best_gate(best=lambda v_x, v_h: SD_X / (SD_X + SD_H)),
            "the smaller variance": lambda: best_gate(smallest=min),
        },
        rtol=1e-6,
    ),
    "eq-running-mean": Formula(
        r"T_\ell = \frac{1}{\ell + 1} = \sigma(-\ln \ell) .",
        lambda: 1 / (NUMBERS + 1),
        lambda: torch.sigmoid(-NUMBERS.log()),
        {"one off": lambda: 1 / NUMBERS, "sign": lambda: torch.sigmoid(NUMBERS.log())},
    ),
    "eq-forward-moments": Formula(
        r"""
\begin{aligned}
\mathbb{E}\, m' &= \mathbb{E}[C]\, m + \mathbb{E}[T]\, \frac{s}{\sqrt{2\pi}}, \\
\mathbb{E}\, q' &= \mathbb{E}[C^2]\, q + 2\, \mathbb{E}[T C]\, d\, m\, \frac{s}{\sqrt{2\pi}}
+ \mathbb{E}[T^2]\, \frac{d s^2}{2},
\end{aligned}""",
        predicted_moments,
        lambda: simulated_moments()[3],
        {
            "no cross term": lambda: predicted_moments(cross=0),
            "cross term once": lambda: predicted_moments(cross=1),
            "cross term without d": lambda: predicted_moments(width=1),
            "mean of |z|": lambda: predicted_moments(mean=math.sqrt(2 / math.pi)),
            "without 2 pi": lambda: predicted_moments(mean=0.5),
            "all of the mean square": lambda: predicted_moments(half=1),
            "no biases": lambda: predicted_moments(bias=False),
            "gates at their bias": lambda: predicted_moments(constant=True),
        },
        rtol=0.012,
    ),
    "eq-residual-growth": Formula(
        r"""
\frac{q_\ell}{q_{\ell - 1}} = 1 + \frac{d v}{2} + 2\, u_{\ell - 1} \sqrt{\frac{d v}{2 \pi}}, \qquad
u_\ell = \Big( u_{\ell - 1} + \sqrt{\frac{d v}{2 \pi}} \Big) \sqrt{\frac{q_{\ell - 1}}{q_\ell}} .""",
        residual_growth,
        lambda: wide_residual_stack()[1],
        {
            "folklore": lambda: residual_growth(cross=0),
            "cross term once": lambda: residual_growth(cross=1),
            "2 pi": lambda: residual_growth(under=2 * math.pi),
            "d v for d v / 2": lambda: residual_growth(half=2),
        },
        rtol=0.03,
    ),
    "eq-difference-gain": Formula(
        r"""
\mathbb{E}\, \lVert \mathbf{y} - \mathbf{y}' \rVert^2
= c^2 \lVert \mathbf{x} - \mathbf{x}' \rVert^2 + t^2\, \mathbb{E}\, \lVert H - H' \rVert^2
\le \Big( c^2 + \tfrac12\, d\, v\, t^2 \Big) \lVert \mathbf{x} - \mathbf{x}' \rVert^2 .""",
        differences,
        measured_differences,
        {
            "not halved": lambda: differences(half=1),
            "weights exchanged": lambda: differences(lambda t, c: t**2, lambda t, c: c**2),
            "not squared": lambda: differences(lambda t, c: c, lambda t, c: t),
            "cross term kept": lambda: differences(lambda t, c: c**2 + t * c, lambda t, c: t**2 + t * c),
        },
        rtol=0.03,
    ),
    "eq-first-loss": Formula(
        r"""
\mathbb{E}\, \mathcal{L} = \mathbb{E}\, \ln \sum_{k=1}^{10} e^{S u_k}, \qquad S^2 = v\, q_L + v_b , \qquad
u_k \sim \mathcal{N}(0, 1) .""",
        lambda: initial_loss(lambda v, v_b, q: v * q + v_b),
        lambda: drawn_losses()[3],
        {
            "no biases": lambda: initial_loss(lambda v, v_b, q: v * q),
            "no weights": lambda: initial_loss(lambda v, v_b, q: torch.as_tensor(v_b)),
            "variance for deviation": lambda: initial_loss(lambda v, v_b, q: (v * q + v_b) ** 2),
        },
        rtol=0.01,
    ),
    "eq-open-gates": Formula(
        r"""
\frac{q'}{q} \ge \mathbb{E}[(1 - T)^2] + g\, \mathbb{E}[T^2] \;\longrightarrow\; \frac{1 + g}{2}
\qquad \text{as } \lVert \mathbf{x} \rVert \to \infty .""",
        open_gates,
        drawn_growth,
        {
            "the carried part not squared": lambda: open_gates(carried=lambda t: 1 - t),
            "the gate not squared": lambda: open_gates(taken=lambda t: t),
            "without the carried part in the limit": lambda: open_gates(limit=lambda g: g / 2),
            "all gates open in the limit": lambda: open_gates(limit=lambda g: g),
            "gain not of the proposal": lambda: open_gates(gain=1.0),
        },
        rtol=0.03,
    ),
    "eq-kept-bytes": Formula(
        r"""
\text{bytes} = 4\, n\, d\, (k L + 1), \qquad
k = \begin{cases} 1 & \text{plain,} \\ 2 & \text{residual, fixed,} \\
3 & \text{coupled,} \\ 4 & \text{free.} \end{cases}""",
        bytes_kept,
        bytes_saved,
        {
            "without the last state": lambda: bytes_kept(last=0),
            "1 - T stored": lambda: bytes_kept(KEPT | {"highway": 4}),
            "plain keeps its proposal twice": lambda: bytes_kept(KEPT | {"plain": 2}),
            "free as coupled": lambda: bytes_kept(KEPT | {"free": 3}),
        },
    ),
}


def test_the_bound_on_a_difference_holds_far_from_equality_too():
    t, c, [(x, other, far, _), _] = two_states()
    assert far < 0.95 * (c**2 + t**2) * (x - other).square().sum()


@each(FORMULAS)
def test_the_formula_of_the_text(label, formula):
    check(label, formula)
