"""The plots of the chapter on the gate. As in `figures`, each takes plain data and returns the Figure."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from .figures import OTHERS
from .style import INK, PALETTE

FLOOR = 1e-10
"""The lower end of the axis of `plot_gate_and_carry`; as little as that is drawn as nothing."""


def plot_gate_and_carry(
    z: np.ndarray,
    gate: np.ndarray,
    gates: Mapping[float, float],
    carried: Mapping[float, Sequence[float]],
) -> Figure:
    """Plot the gate against its pre-activation, and beside it what is carried through 0, 1, 2 ... blocks.

    `gate` is the curve over `z`; `gates` maps a bias to its point on the curve, and `carried` the same biases to what
    is left after each block. Raises ValueError where the two do not name the same biases, or none.
    """
    if not gates or list(gates) != list(carried):
        raise ValueError("gates and carried must name the same biases, at least one")
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.2, 3.1))
    left.plot(z, gate, color=INK, linewidth=1.2)
    looks = zip(
        cycle((PALETTE["highway"], *OTHERS)), cycle(("-", (0, (5, 2)), (0, (2, 1.5)))), cycle("osD"), strict=False
    )
    for (bias, value), (colour, dash, marker) in zip(gates.items(), looks, strict=False):
        name = f"b = {bias:g}".replace("-", "\N{MINUS SIGN}")
        left.plot([bias], [value], linestyle="none", marker=marker, markersize=7, color=colour)
        right.plot(
            np.arange(len(carried[bias])), carried[bias], color=colour, linestyle=dash, marker=marker,
            markevery=[len(carried[bias]) - 1], markersize=7, label=name,
        )  # fmt: skip
    left.set(xlabel="pre-activation z", ylabel="gate T", ylim=(-0.02, 1.02))
    right.set(yscale="log", ylim=(FLOOR, 2), xlabel="block", ylabel="carried")
    figure.legend(loc="outside upper center", ncols=min(4, len(gates)))
    return figure
