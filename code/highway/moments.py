"""Forward moments at initialisation: what a stack of ReLU blocks does to the mean and the mean square of its states.

A block mixes y = T * H + C * x. Every function takes the expectation over the block's weights; m is the mean over the
units of a state and q its mean square norm. They assume that q strays little from its mean, which holds for wide
blocks, and that a pre-activation is Gaussian, which it is if the weights and biases are.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .theory import variances

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


class Mixing(NamedTuple):
    """The expectations that a block's two coefficients bring into its moments."""

    t: float  #: E[T]
    c: float  #: E[C]
    tt: float  #: E[T^2]
    cc: float  #: E[C^2]
    tc: float  #: E[T C]


def gate_moments(bias: float, spread: float) -> tuple[float, float]:
    """Return E[g] and E[g^2] of a gate g = sigmoid(bias + spread * u), u standard normal (Gauss-Hermite quadrature)."""
    gate = 1 / (1 + np.exp(-(bias + spread * NODES)))
    return float(WEIGHTS @ gate), float(WEIGHTS @ gate**2)


def constant(t: float, c: float) -> Callable[[float], Mixing]:
    """Return the mixing of a block whose coefficients are two numbers."""
    return lambda spread: Mixing(t, c, t * t, c * c, t * c)


def mixing(kind: str, gate_bias: float = -2.0) -> Callable[[float], Mixing]:
    """Return the mixing of a kind of block, as a function of the standard deviation of its gates' pre-activations.

    Kinds are those of `NETWORKS`; ValueError names them for another.
    """
    shut = 1 / (1 + math.exp(-gate_bias))
    constants = {"plain": (1.0, 0.0), "residual": (1.0, 1.0), "fixed": (shut, 1 - shut)}
    if kind in constants:
        return constant(*constants[kind])

    def coupled(spread: float) -> Mixing:
        t, tt = gate_moments(gate_bias, spread)
        return Mixing(t, 1 - t, tt, 1 - 2 * t + tt, t - tt)

    def free(spread: float) -> Mixing:
        (t, tt), (c, cc) = gate_moments(gate_bias, spread), gate_moments(-gate_bias, spread)
        return Mixing(t, c, tt, cc, t * c)

    gated = {"highway": coupled, "free": free}
    if kind not in gated:
        raise ValueError(f"unknown kind of block {kind!r}: choose one of {', '.join((*constants, *gated))}")
    return gated[kind]


def next_moments(
    mix: Callable[[float], Mixing],
    m: float,
    q: float,
    d: int,
    init: str,
) -> tuple[float, float]:
    """Return m and q behind a block of width d, from those before it."""
    v, v_b = variances(init, d, d)
    s = math.sqrt(v * q + v_b)  # deviation of a pre-activation of H
    h = s / math.sqrt(2 * math.pi)  # E[H]; E[H^2] is s^2 / 2
    e = mix(math.sqrt(v * q))
    m_next = e.c * m + e.t * h
    q_next = e.cc * q + 2 * e.tc * d * m * h + e.tt * d * s**2 / 2
    return m_next, q_next


def input_moments(square: float, inputs: int, d: int, init: str) -> tuple[float, float]:
    """Return m and q behind the input projection and its ReLU; `square` is the mean square norm of the inputs."""
    v, v_b = variances(init, inputs, d)
    s = math.sqrt(v * square + v_b)
    return s / math.sqrt(2 * math.pi), d * s**2 / 2


def forward_moments(
    mix: Callable[[float], Mixing],
    depth: int,
    m: float,
    q: float,
    d: int,
    init: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Return m and q before the first block and behind each: (L + 1,)."""
    found = [(m, q)]
    for _ in range(depth):
        found.append(next_moments(mix, *found[-1], d, init))
    means, squares = np.array(found).T
    return means, squares


def forward_differences(
    mix: Callable[[float], Mixing], squares: np.ndarray, difference: float, d: int, init: str
) -> np.ndarray:
    """Return the mean square distance of two states of one norm, before the first block and behind each one: (L + 1,).

    `squares` are the q of `forward_moments`, `difference` is the distance to begin with, squared. The gates of the two
    states are taken to be equal.
    """
    v, v_b = variances(init, d, d)
    found = [difference]
    for q in squares[:-1]:
        s_squared, e = v * q + v_b, mix(math.sqrt(v * q))
        half_angle = math.asin(min(1.0, math.sqrt(v * found[-1] / s_squared) / 2))
        proposals = d * (v * found[-1] / 2 - s_squared * kink(2 * half_angle) / math.pi)
        found.append(e.cc * found[-1] + e.tt * proposals)
    return np.array(found)


def kink(angle: float) -> float:
    """Return sin(a) - a cos(a), which subtraction would spoil for a small angle."""
    return angle**3 / 3 if angle < 1e-3 else math.sin(angle) - angle * math.cos(angle)


def growth(t: float, c: float, half_gain: float, blocks: int = 1000) -> tuple[float, float]:
    """Return u = m / sqrt(q / d) and the factor q_l / q_(l - 1) that many blocks without biases settle at.

    `t` and `c` are the coefficients, `half_gain` is d v / 2.
    """
    k = math.sqrt(half_gain / math.pi)
    u = k / math.sqrt(half_gain)  # of a ReLU layer's output
    for _ in range(blocks):
        factor = c**2 + t**2 * half_gain + 2 * t * c * k * u
        u = (c * u + t * k) / math.sqrt(factor)
    return u, factor
