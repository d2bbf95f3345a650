"""The formulas of the chapter "The gate", each against autograd, an exact sum or a simulation."""

import math
from functools import cache

import torch
from formulas import Formula, check, each
from torch import nn

from highway.layers import HighwayBlock
from highway.networks import HighwayMLP
from highway.probes import block_states, carry_product


def sigmoid(z):
    return 1 / (1 + torch.exp(-torch.as_tensor(z, dtype=torch.float64)))


Z = torch.linspace(-9, 9, 73, dtype=torch.float64)


def slope_by_autograd():
    z = Z.clone().requires_grad_()
    return torch.autograd.grad(torch.sigmoid(z).sum(), z)[0]


@cache
def block_and_state(d=7):
    """A block, a state, and H, T and both affine maps written out for that one state."""
    torch.manual_seed(0)
    block, x = HighwayBlock(d, gate_bias=-1).double(), torch.randn(d, dtype=torch.float64)
    (w_h, w_t), (b_h, b_t) = block.weight.detach().split(d), block.bias.detach().split(d)
    h, t = torch.relu(w_h @ x + b_h), sigmoid(w_t @ x + b_t)
    return block, x, h, t, w_t, b_t


def gate_of(weight=lambda w: w, bias=lambda b: b):
    _, x, _, _, w_t, b_t = block_and_state()
    return sigmoid(weight(w_t) @ x + bias(b_t))


def mixed(mix):
    _, x, h, t, _, _ = block_and_state()
    return mix(x, h, t)


@cache
def lstm():
    """A step of PyTorch's LSTM: the cell state after it, and i, f, g and the cell state before."""
    torch.manual_seed(1)
    cell = nn.LSTMCell(3, 5).double()
    u, h, c = (torch.randn(4, n, dtype=torch.float64) for n in (3, 5, 5))
    maps = u @ cell.weight_ih.T + cell.bias_ih + h @ cell.weight_hh.T + cell.bias_hh
    i, f, g, _ = maps.chunk(4, dim=1)
    after = cell(u, (h, c))[1]
    return after.detach(), i.sigmoid().detach(), f.sigmoid().detach(), g.tanh().detach(), c


def step(mix):
    _, i, f, g, c = lstm()
    return mix(i, f, g, c)


PRIOR = 0.2


@cache
def classes():
    """Two normal densities of one covariance, states drawn from both, and the second's posterior by Bayes' rule."""
    torch.manual_seed(2)
    root = torch.randn(3, 3, dtype=torch.float64)
    covariance = root @ root.T + torch.eye(3)
    means = torch.randn(2, 3, dtype=torch.float64)
    densities = torch.distributions.MultivariateNormal(means, covariance)
    x = densities.sample((50,)).flatten(0, 1)
    joint = densities.log_prob(x[:, None]).exp() * torch.tensor([1 - PRIOR, PRIOR])
    return x, means, covariance, joint[:, 1] / joint.sum(1)


def posterior(odds=1, normaliser=1, transpose=False):
    x, means, covariance, _ = classes()
    theta = torch.linalg.solve(covariance, means.T).T
    a = (theta * means).sum(1) / 2
    w = theta[1] - theta[0] if not transpose else theta[0] - theta[1]
    return sigmoid(x @ w + odds * math.log(PRIOR / (1 - PRIOR)) + normaliser * (a[0] - a[1]))


@cache
def poisson():
    """The same for a family that is not normal: counts, two Poisson rates for each of three units."""
    rates = torch.tensor([[1.0, 2.0, 0.5], [3.0, 1.0, 0.7]], dtype=torch.float64)
    torch.manual_seed(3)
    x = torch.poisson(rates.repeat(40, 1))
    joint = torch.distributions.Poisson(rates).log_prob(x[:, None]).sum(2).exp() * torch.tensor([1 - PRIOR, PRIOR])
    return x, rates, joint[:, 1] / joint.sum(1)


def poisson_posterior(odds=1, normaliser=1, sign=1):
    x, rates, _ = poisson()
    theta, a = rates.log(), rates.sum(1)
    return sigmoid(sign * x @ (theta[1] - theta[0]) + odds * math.log(PRIOR / (1 - PRIOR)) + normaliser * (a[0] - a[1]))


def normal_family(theta, a):
    """The log ratio of two normal densities, up to what does not depend on which, by the given theta and A."""
    x, means, covariance, _ = classes()
    thetas, values = theta(means, covariance), a(means, covariance)
    return x @ (thetas[1] - thetas[0]) - (values[1] - values[0])


def log_ratio():
    x, means, covariance, _ = classes()
    densities = torch.distributions.MultivariateNormal(means, covariance)
    return densities.log_prob(x[:, None]) @ torch.tensor([-1.0, 1.0], dtype=torch.float64)


def by_precision(means, covariance):
    return torch.linalg.solve(covariance, means.T).T


def half_square(means, covariance):
    return (by_precision(means, covariance) * means).sum(1) / 2


def choices(of):
    """A mean over the two choices of every unit: `of(value, h, x)` weighted by the posterior."""
    _, x, h, t, _, _ = block_and_state()
    return t * of(h, h, x) + (1 - t) * of(x, h, x)


def moments(mean, variance):
    _, x, h, t, _, _ = block_and_state()
    return torch.stack([mean(x, h, t), variance(x, h, t)])


def exact_moments():
    mean = choices(lambda v, h, x: v)
    return torch.stack([mean, choices(lambda v, h, x: v**2) - mean**2])


OTHER_GATE = 0.37


def excess():
    """What the constant gate OTHER_GATE costs over the best, a mean over units taken as the states, by the choices."""
    miss = choices(lambda v, h, x: (v - x - OTHER_GATE * (h - x)) ** 2)
    best = choices(lambda v, h, x: (v - mixed(lambda x, h, t: t * h + (1 - t) * x)) ** 2)
    return (miss - best).mean()


@cache
def stack():
    torch.manual_seed(4)
    blocks = HighwayMLP(784, 6, 5, 10, gate_bias=-1).double().blocks
    x = first = torch.randn(6, dtype=torch.float64)
    gates, proposals = [], []
    with torch.no_grad():
        for block in blocks:
            h, t = block.candidate_and_gate(x)
            gates.append(t), proposals.append(h)
            x = block(x)
    return first, gates, proposals, x


def unrolled(later=lambda gates, block: gates[block + 1 :], carry=lambda t: 1 - t):
    first, gates, proposals, _ = stack()
    total = math.prod(carry(t) for t in gates) * first
    for block, (t, h) in enumerate(zip(gates, proposals, strict=True)):
        total = total + t * math.prod((carry(k) for k in later(gates, block)), start=torch.ones(6).double()) * h
    return total


BIASES = torch.arange(-6.0, 1.0).double()

DIGIT = torch.rand(64, generator=torch.Generator().manual_seed(5))


@cache
def spread_of_pre_activations(init):
    """The variance of z - b over 300 draws of a projection and a block, for one image of 64 pixels."""
    torch.manual_seed(6)
    squares = []
    for _ in range(300):
        model = HighwayMLP(64, 100, 1, 10, init=init)
        with torch.no_grad():
            z = model.blocks[0].weight[100:] @ block_states(model, DIGIT[None])[0, 0]
        squares.append(z.square().mean())
    return torch.stack(squares).mean()


def measured_variance():
    return torch.stack([spread_of_pre_activations("default"), spread_of_pre_activations("he")])


def variance(bias=1 / 64, default=1 / 18, he=2.0):
    u2 = DIGIT.square().mean()
    return torch.stack([(u2 + bias) * default, he * u2])


SPREAD = 0.05


def normal_moments(b):
    """Mean and standard deviation of the sigmoid of a normal variable, by a sum over a fine grid."""
    e = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    weight = torch.exp(-(e**2) / 2)
    weight = weight / weight.sum()
    t = sigmoid(b[:, None] + SPREAD * e)
    mean = t @ weight
    return mean, ((t - mean[:, None]) ** 2 @ weight).sqrt()


def gate_moments(std=lambda t: t * (1 - t), mean=lambda t: t * (1 - t) * (1 - 2 * t) / 2):
    """In units in which the leading terms count: the spread over s, and the rise of the mean over s squared."""
    t = sigmoid(BIASES[:-1])
    return torch.stack([std(t), mean(t)])


def exact_gate_moments():
    mean, std = normal_moments(BIASES[:-1])
    return torch.stack([std / SPREAD, (mean - sigmoid(BIASES[:-1])) / SPREAD**2])


@cache
def independent_gates():
    torch.manual_seed(7)
    return sigmoid(-1 + torch.randn(400_000, 6).double())


FORMULAS = {
    "eq-gate": Formula(
        r"T(\mathbf{x}) = \sigma(\mathbf{W}_T \mathbf{x} + \mathbf{b}_T), \qquad \sigma(z) = \frac{1}{1 + e^{-z}},",
        right=gate_of,
        truth=lambda: block_and_state()[0].candidate_and_gate(block_and_state()[1])[1].detach(),
        wrong={
            "transpose": lambda: gate_of(weight=lambda w: w.T),
            "sign of the bias": lambda: gate_of(bias=lambda b: -b),
            "no bias": lambda: gate_of(bias=lambda b: 0 * b),
            "softmax": lambda: torch.softmax(block_and_state()[4] @ block_and_state()[1] + block_and_state()[5], 0),
        },
    ),
    "eq-highway": Formula(
        r"\mathbf{y} = T(\mathbf{x}) \odot H(\mathbf{x}) + (1 - T(\mathbf{x})) \odot \mathbf{x}.",
        right=lambda: mixed(lambda x, h, t: t * h + (1 - t) * x),
        truth=lambda: block_and_state()[0](block_and_state()[1]).detach(),
        wrong={
            "gate on the carry": lambda: mixed(lambda x, h, t: (1 - t) * h + t * x),
            "sign": lambda: mixed(lambda x, h, t: t * h - (1 - t) * x),
            "carry not gated": lambda: mixed(lambda x, h, t: t * h + x),
        },
    ),
    "eq-complement": Formula(
        r"1 - \sigma(z) = \frac{e^{-z}}{1 + e^{-z}} = \frac{1}{1 + e^{z}} = \sigma(-z),",
        right=lambda: torch.stack([torch.exp(-Z) / (1 + torch.exp(-Z)), 1 / (1 + torch.exp(Z)), sigmoid(-Z)]),
        truth=lambda: (1 - sigmoid(Z)).expand(3, -1),
        wrong={"sign": lambda: sigmoid(Z).expand(3, -1), "minus": lambda: -sigmoid(-Z).expand(3, -1)},
    ),
    "eq-sigmoid-slope": Formula(
        r"\sigma'(z) = \frac{e^{-z}}{(1 + e^{-z})^2} = \sigma(z)\,\big(1 - \sigma(z)\big),",
        right=lambda: torch.stack([torch.exp(-Z) / (1 + torch.exp(-Z)) ** 2, sigmoid(Z) * (1 - sigmoid(Z))]),
        truth=lambda: slope_by_autograd().expand(2, -1),
        wrong={
            "no square": lambda: (torch.exp(-Z) / (1 + torch.exp(-Z))).expand(2, -1),
            "slope of tanh": lambda: (1 - sigmoid(Z) ** 2).expand(2, -1),
        },
    ),
    "eq-tails": Formula(
        r"e^{z}\,(1 - e^{z}) < \sigma(z) < e^{z} .",
        right=lambda: ((Z.exp() * (1 - Z.exp()) < sigmoid(Z)) & (sigmoid(Z) < Z.exp())).double(),
        truth=lambda: torch.ones_like(Z),
        wrong={
            "sign of the lower bound": lambda: (Z.exp() * (1 + Z.exp()) < sigmoid(Z)).double(),
            "too tight below": lambda: (Z.exp() * (1 - Z.exp() / 2) < sigmoid(Z)).double(),
            "sign of z": lambda: (sigmoid(Z) < torch.exp(-Z)).double(),
        },
    ),
    "eq-carousel": Formula(
        r"\mathbf{c}_k = \mathbf{f}_k \odot \mathbf{c}_{k-1} + \mathbf{i}_k \odot \mathbf{g}_k .",
        right=lambda: step(lambda i, f, g, c: f * c + i * g),
        truth=lambda: lstm()[0],
        wrong={
            "gates exchanged": lambda: step(lambda i, f, g, c: i * c + f * g),
            "no forget gate": lambda: step(lambda i, f, g, c: c + i * g),
            "coupled": lambda: step(lambda i, f, g, c: (1 - i) * c + i * g),
        },
    ),
    "eq-posterior": Formula(
        r"\begin{aligned} P(B = 1 \mid \mathbf{x}) &= \sigma(\mathbf{w}^\top \mathbf{x} + b), \\ "
        r"\mathbf{w} &= \boldsymbol\theta_1 - \boldsymbol\theta_0, \\ "
        r"b &= \ln \frac{p}{1 - p} + A(\boldsymbol\theta_0) - A(\boldsymbol\theta_1) . \end{aligned}",
        right=lambda: torch.cat([posterior(), poisson_posterior()]),
        truth=lambda: torch.cat([classes()[3], poisson()[2]]),
        wrong={
            "sign of the odds": lambda: torch.cat([posterior(odds=-1), poisson_posterior(odds=-1)]),
            "no odds": lambda: torch.cat([posterior(odds=0), poisson_posterior(odds=0)]),
            "sign of A": lambda: torch.cat([posterior(normaliser=-1), poisson_posterior(normaliser=-1)]),
            "no A": lambda: torch.cat([posterior(normaliser=0), poisson_posterior(normaliser=0)]),
            "sign of w": lambda: torch.cat([posterior(transpose=True), poisson_posterior(sign=-1)]),
        },
        rtol=1e-10,
    ),
    "eq-posterior-normal": Formula(
        r"\boldsymbol\theta_k = \boldsymbol\Sigma^{-1} \boldsymbol\mu_k, \qquad "
        r"A(\boldsymbol\theta_k) = \tfrac12\, \boldsymbol\mu_k^\top \boldsymbol\Sigma^{-1} \boldsymbol\mu_k .",
        right=lambda: normal_family(by_precision, half_square),
        truth=log_ratio,
        wrong={
            "no half": lambda: normal_family(by_precision, lambda m, c: 2 * half_square(m, c)),
            "sign": lambda: normal_family(by_precision, lambda m, c: -half_square(m, c)),
            "not inverted": lambda: normal_family(lambda m, c: m @ c, half_square),
        },
        rtol=1e-10,
        atol=1e-12,
    ),
    "eq-odds": Formula(
        r"\frac{T}{1 - T} = e^{\mathbf{w}^\top \mathbf{x} + b} = e^{b}\, e^{\mathbf{w}^\top \mathbf{x}} .",
        right=lambda: torch.exp(block_and_state()[4] @ block_and_state()[1]) * block_and_state()[5].exp(),
        truth=lambda: block_and_state()[3] / (1 - block_and_state()[3]),
        wrong={
            "sign of b": lambda: torch.exp(block_and_state()[4] @ block_and_state()[1] - block_and_state()[5]),
            "sum": lambda: torch.exp(block_and_state()[4] @ block_and_state()[1]) + block_and_state()[5].exp(),
        },
    ),
    "eq-mixture-moments": Formula(
        r"\begin{aligned} \mathbb{E}[V \mid \mathbf{x}] &= T_i H_i + (1 - T_i)\, x_i = y_i , \\ "
        r"\operatorname{Var}[V \mid \mathbf{x}] &= T_i\,(1 - T_i)\,(H_i - x_i)^2 , \end{aligned}",
        right=lambda: moments(lambda x, h, t: t * h + (1 - t) * x, lambda x, h, t: t * (1 - t) * (h - x) ** 2),
        truth=exact_moments,
        wrong={
            "carry not gated": lambda: moments(lambda x, h, t: t * h + x, lambda x, h, t: t * (1 - t) * (h - x) ** 2),
            "no carry gate": lambda: moments(lambda x, h, t: t * h + (1 - t) * x, lambda x, h, t: t * (h - x) ** 2),
            "no square": lambda: moments(lambda x, h, t: t * h + (1 - t) * x, lambda x, h, t: t * (1 - t) * (h - x)),
        },
    ),
    "eq-cost": Formula(
        r"\mathbb{E}\big[(V - x_i - t\,(H_i - x_i))^2\big] - \mathbb{E}\big[(V - y_i)^2\big] "
        r"= \mathbb{E}\big[(t - T_i)^2\,(H_i - x_i)^2\big] .",
        right=lambda: mixed(lambda x, h, t: ((OTHER_GATE - t) ** 2 * (h - x) ** 2).mean()),
        truth=excess,
        wrong={
            "no square": lambda: mixed(lambda x, h, t: ((OTHER_GATE - t).abs() * (h - x) ** 2).mean()),
            "variance": lambda: mixed(lambda x, h, t: (t * (1 - t) * (h - x) ** 2).mean()),
        },
    ),
    "eq-unrolled": Formula(
        r"\mathbf{x}_L = \Big( \prod_{\ell=1}^{L} (1 - T_\ell) \Big) \odot \mathbf{x}_0 "
        r"+ \sum_{\ell=1}^{L} \Big( T_\ell \odot \prod_{k=\ell+1}^{L} (1 - T_k) \Big) \odot H_\ell .",
        right=unrolled,
        truth=lambda: stack()[3],
        wrong={
            "product from l": lambda: unrolled(later=lambda gates, block: gates[block:]),
            "product of earlier blocks": lambda: unrolled(later=lambda gates, block: gates[:block]),
            "gate in place of carry gate": lambda: unrolled(carry=lambda t: t),
        },
    ),
    "eq-carry-product": Formula(
        r"(1 - \sigma(b))^L = (1 + e^{b})^{-L} ,",
        right=lambda: torch.stack([(1 - sigmoid(BIASES)) ** 19, (1 + BIASES.exp()) ** -19]),
        truth=lambda: torch.tensor([carry_product(b, 19) for b in BIASES.tolist()], dtype=torch.float64).expand(2, -1),
        wrong={
            "sign of b": lambda: ((1 + torch.exp(-BIASES)) ** -19).expand(2, -1),
            "one block more": lambda: ((1 + BIASES.exp()) ** -20).expand(2, -1),
        },
    ),
    "eq-memory": Formula(
        r"\frac{1}{\ln(1 + e^{b})} \approx e^{-b} \quad \text{blocks},",
        right=lambda: torch.stack([
            (1 - sigmoid(BIASES)) ** (1 / torch.log1p(BIASES.exp())) * math.e,
            torch.log1p(torch.exp(BIASES - 9)) * torch.exp(-(BIASES - 9)),
        ]),
        truth=lambda: torch.ones(2, len(BIASES)),
        wrong={
            "sign of b": lambda: torch.stack([
                (1 - sigmoid(BIASES)) ** (1 / torch.log1p(torch.exp(-BIASES))) * math.e,
                torch.log1p(torch.exp(BIASES - 9)) * torch.exp(BIASES - 9),
            ]),
            "half-life": lambda: torch.stack([
                (1 - sigmoid(BIASES)) ** (math.log(2) / torch.log1p(BIASES.exp())) * math.e,
                torch.ones(len(BIASES)).double(),
            ]),
        },
        rtol=1e-3,
    ),
    "eq-initial-variance": Formula(
        r"s^2 = v\; \mathbb{E} \lVert \mathbf{x}_0 \rVert^2 = \begin{cases} "
        r"\dfrac{\overline{u^2} + 1/m}{18} & \text{PyTorch's default,} \\[1.5ex] "
        r"2\, \overline{u^2} & \text{He,} \end{cases}",
        right=variance,
        truth=measured_variance,
        wrong={
            "no bias": lambda: variance(bias=0),
            "ReLU keeps all": lambda: variance(default=1 / 9, he=4.0),
            "third in place of sixth": lambda: variance(default=1 / 6),
            "half of He": lambda: variance(he=1.0),
        },
        rtol=0.03,
    ),
    "eq-initial-gate": Formula(
        r"\begin{aligned} \operatorname{std} T &\approx \sigma(b)\,\big(1 - \sigma(b)\big)\, s , \\ "
        r"\mathbb{E}\, T &\approx \sigma(b) "
        r"+ \tfrac12\, \sigma(b)\,\big(1 - \sigma(b)\big)\big(1 - 2\sigma(b)\big)\, s^2 . \end{aligned}",
        right=gate_moments,
        truth=exact_gate_moments,
        wrong={
            "no half": lambda: gate_moments(mean=lambda t: t * (1 - t) * (1 - 2 * t)),
            "sign of the bend": lambda: gate_moments(mean=lambda t: -t * (1 - t) * (1 - 2 * t) / 2),
            "no carry gate": lambda: gate_moments(std=lambda t: t),
            "no bend": lambda: gate_moments(mean=lambda t: t * (1 - t) / 2),
        },
        rtol=5e-3,
    ),
    "eq-mean-carry": Formula(
        r"\mathbb{E} \prod_{\ell=1}^{L} (1 - T_\ell) = (1 - \mathbb{E}\, T)^L ,",
        right=lambda: (1 - independent_gates().mean()) ** 6,
        truth=lambda: (1 - independent_gates()).prod(1).mean(),
        wrong={
            "gate at its bias": lambda: torch.tensor(carry_product(-1, 6)),
            "power inside": lambda: (1 - independent_gates()).pow(6).mean(),
            "mean of T to the power": lambda: 1 - independent_gates().mean() ** 6,
        },
        rtol=5e-3,
    ),
}  # fmt: skip


@each(FORMULAS)
def test_the_formula_of_the_text(label, formula):
    check(label, formula)
