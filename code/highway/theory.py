"""What arithmetic says about plain networks before they are trained: gains, kernels, random walks, losses.

Nothing here draws a random number. Every function treats a network whose weights have mean zero and variance v and
whose biases have mean zero and variance v_b, all independent, as `highway.layers.initialise` draws them.
"""

import math

import numpy as np
import torch
from torch import Tensor

from .layers import INITIALISATIONS, get_activation

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(200)  # an even number: none at 0, where ReLU has its kink
NODES = torch.from_numpy(_NODES)
WEIGHTS = torch.from_numpy(_WEIGHTS / math.sqrt(2 * math.pi))


def variances(init: str, inputs: int, outputs: int) -> tuple[float, float]:
    """Return (v, v_b), the variances of a weight and of a bias under the scheme `init`.

    `inputs` and `outputs` are the layer's sizes. Raises ValueError for an unknown scheme.
    Source: the table of `highway.layers.initialise`.
    """
    if init not in INITIALISATIONS:
        raise ValueError(f"unknown initialisation {init!r}: choose one of {', '.join(INITIALISATIONS)}")
    v = INITIALISATIONS[init](inputs, outputs) ** 2
    return v, v if init == "default" else 0.0


def mean_square(activation: str, variance: Tensor | float) -> Tensor:
    """Return `E f(z)^2` for z ~ N(0, `variance`), by Gauss-Hermite quadrature, in the shape of `variance`.

    Raises ValueError for an unknown activation.
    """
    f = get_activation(activation)
    return (f(_points(variance)).square() * WEIGHTS).sum(-1)


def slope_mean_square(activation: str, variance: Tensor | float) -> Tensor:
    """Return `E f'(z)^2` for z ~ N(0, `variance`), by Gauss-Hermite quadrature, in the shape of `variance`.

    1/2 for ReLU at any variance. Raises ValueError for an unknown activation.
    """
    f, z = get_activation(activation), _points(variance).detach().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(f(z).sum(), z)
    return (slope.square() * WEIGHTS).sum(-1)


def _points(variance: Tensor | float) -> Tensor:
    return torch.as_tensor(variance, dtype=torch.float64).sqrt().unsqueeze(-1) * NODES


def relu_kernel(covariance: Tensor) -> Tensor:
    """Return `E relu(z_i) relu(z_j)` for z ~ N(0, `covariance`), both (n, n)::

        sqrt(s_ii s_jj) (sin t + (pi - t) cos t) / (2 pi),     cos t = s_ij / sqrt(s_ii s_jj)

    Source: Cho and Saul 2009, the arc-cosine kernel of degree 1.
    """
    length = covariance.diagonal().sqrt()
    scale = length[:, None] * length
    cosine = (covariance / scale).clamp(-1, 1).fill_diagonal_(1)
    angle = cosine.arccos()
    return scale * (angle.sin() + (math.pi - angle) * cosine) / (2 * math.pi)


def relu_distances(covariance_own: Tensor, distance: Tensor) -> Tensor:
    """Return `E |relu(z_i) - relu(z_j)|^2` for one unit: half of `distance`, less what the kink takes, (n, n)::

        D_ij / 2 - sqrt(s_i s_j) (sin t - t cos t) / pi,     cos t = (s_i + s_j - D_ij) / (2 sqrt(s_i s_j))

    `covariance_own` (n,) holds the variances s_i of z_i, `distance` (n, n) `D_ij = E |z_i - z_j|^2`. The same as
    s_i/2 + s_j/2 - 2 `relu_kernel`, and exact for distances that are small beside the variances.
    """
    length = covariance_own.sqrt()
    scale = length[:, None] * length
    versine = ((distance - (length[:, None] - length).square()) / (2 * scale)).clamp(0, 2)  # 1 - cos t
    angle = 2 * (versine / 2).sqrt().arcsin()
    return distance / 2 - scale * (angle.sin() - angle * angle.cos()) / math.pi


def forward_distances(inputs: Tensor, init: str, width: int, depth: int) -> tuple[Tensor, Tensor]:
    """Return what to expect of the states of a wide plain ReLU network, for n `inputs` (n, ...).

    The first is q (depth + 1, n), the mean square norm of every state, as of `forward_squares`; the second D
    (depth + 1, n, n), the mean square distance of every two states. The input projection, of block 0, has a ReLU too.
    Raises ValueError for an unknown initialisation. Source: Cho and Saul 2009, Poole et al. 2016.
    """
    pixels = inputs.flatten(1).double()
    square, distance = pixels.square().sum(1), torch.cdist(pixels, pixels).square()
    fan_in, squares, distances = pixels.shape[1], [], []
    for _ in range(depth + 1):
        v, v_b = variances(init, fan_in, width)
        before = v * square + v_b
        square, distance = width / 2 * before, width * relu_distances(before, v * distance)
        squares.append(square)
        distances.append(distance)
        fan_in = width
    return torch.stack(squares), torch.stack(distances)


def spread(distances: Tensor) -> Tensor:
    """Return the root mean square distance from the mean, given all squared distances (..., n, n): half their mean."""
    return (distances.mean((-2, -1)) / 2).sqrt()


def forward_squares(inputs: Tensor, activation: str, init: str, width: int, depth: int) -> tuple[Tensor, Tensor]:
    """Return what to expect of a plain network on its way forward, for each of the n `inputs` (n, ...).

    The first is q (depth + 1, n), the mean square norm of every state; q_0 belongs to the input projection, which has
    a ReLU. The second is s2 (depth, n), the variance of a pre-activation of every block::

        s2_l = v q_{l-1} + v_b,     q_l = d E f(z)^2,     z ~ N(0, s2_l)

    Raises ValueError for an unknown activation or initialisation.
    """
    pixels = inputs.flatten(1).double()
    v, v_b = variances(init, pixels.shape[1], width)
    squares = [width / 2 * (v * pixels.square().sum(1) + v_b)]
    v, v_b = variances(init, width, width)
    before = []
    for _ in range(depth):
        before.append(v * squares[-1] + v_b)
        squares.append(width * mean_square(activation, before[-1]))
    empty = squares[0].new_empty(0, len(pixels))
    return torch.stack(squares), torch.stack(before) if before else empty


def backward_gain(activation: str, init: str, width: int, variance: Tensor | float) -> Tensor:
    """Return `d v E f'(z)^2` for z ~ N(0, `variance`): the factor of the mean square gradient in one plain block.

    Raises ValueError for an unknown activation or initialisation. Source: Glorot and Bengio 2010, section 4.2.1;
    He et al. 2015, section 2.2.
    """
    v, _ = variances(init, width, width)
    return width * v * slope_mean_square(activation, variance)


def log_gain_moments(width: int) -> tuple[float, float]:
    """Return mean and variance of ln S for one ReLU block: S = (2 / d) sum_i m_i g_i^2, d = `width`.

    m_i are fair coins and g_i standard normal, all independent; S has mean 1 and variance 5/d. Given k units that
    are on, sum m_i g_i^2 is chi-square with k degrees of freedom, whose logarithm has mean digamma(k/2) + ln 2 and
    variance trigamma(k/2). The case k = 0, in which nothing passes, is left out.
    """
    k = torch.arange(1, width + 1, dtype=torch.float64)
    log_share = torch.lgamma(torch.tensor(width + 1.0)) - torch.lgamma(k + 1) - torch.lgamma(width - k + 1)
    share = torch.softmax(log_share.double(), 0)
    mean_k = torch.digamma(k / 2) + math.log(4 / width)
    mean = (share * mean_k).sum()
    variance = (share * (torch.polygamma(1, k / 2) + (mean_k - mean).square())).sum()
    return mean.item(), variance.item()


def constant_loss(shares: Tensor) -> float:
    """Return the least mean cross-entropy, in nats, of a classifier whose logits do not depend on its input.

    It is the entropy of the class `shares` (k,), which must be positive and are divided by their sum.
    """
    shares = shares.double() / shares.sum()
    return -(shares * shares.log()).sum().item()
