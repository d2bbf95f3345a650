"""Gather the numbered results of the chapters on one page and in one LaTeX file: `make formulas`.

Formulas and their numbers are read from the chapters, so the sheet cannot say anything else; what each one means is
written here.
"""

import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "book" / "back" / "formulas.md"
LATEX = ROOT / "book" / "_static" / "highway-formulas.tex"

INTRODUCTION = """\
(formulas)=
# Formula sheet

The numbered results of the chapters on one page. Each number leads to the derivation, with its assumptions and the cell
that checks it. The symbols are those of the page {ref}`notation`. The same sheet is a
{download}`LaTeX file <../_static/highway-formulas.tex>`.
"""

SHEET = {
    "book/highway/why-depth-is-hard": {
        "eq-plain": "A plain block makes its output from scratch; the activation $f$ acts on every unit.",
        "eq-delta": "The gradient with respect to the state goes back through one block.",
        "eq-plain-jacobian": r"The Jacobian of a plain block, at the pre-activations $\mathbf{z}$.",
        "eq-product": "Through a stack it meets the product of the Jacobians.",
        "eq-backward-gain": "What a plain block does to the squared norm, on average over weights of variance $v$.",
        "eq-plain-gain": "The same for ReLU, under three initialisations.",
        "eq-forward-gain": "The mean square norm of the state, block by block.",
        "eq-relu-kernel": r"The product of two ReLU units whose pre-activations have the angle $\theta$.",
        "eq-distance": "What a ReLU block does to the distance of two states.",
        "eq-log-spread": "How far one network of $L$ ReLU blocks strays from the average: depth over width.",
        "eq-ln10": "The best loss of a classifier that ignores its input is the entropy of the class shares.",
        "eq-initial-loss": "The loss before training, for logits of variance $s^2$.",
    },
    "book/highway/gate": {
        "eq-gate": "The transform gate.",
        "eq-highway": "The highway block.",
        "eq-sigmoid-slope": "The slope of the sigmoid from its value.",
        "eq-posterior": "The gate as a posterior: log-odds that are affine in the state.",
        "eq-mixture-moments": "The block's output is the mean of a two-way mixture.",
        "eq-unrolled": "A stack, unrolled: every unit is a weighted mean of its first value and all later proposals.",
        "eq-carry-product": "What $L$ gates at their bias carry.",
        "eq-initial-gate": "Spread and mean of a fresh gate, for a pre-activation of standard deviation $s$.",
    },
    "book/highway/jacobian": {
        "eq-highway-jacobian": "The Jacobian of a highway block, in full.",
        "eq-jacobian-limits": "Its two limits, the papers' equation 5.",
        "eq-highway-gain": "What a highway block does to the squared norm of a gradient, on average.",
        "eq-gate-term": "What the gate's own term adds to it; $m^2$ is the mean of $(H_i - x_i)^2$.",
        "eq-singular-bounds": r"Bounds on the singular values; $\mathbf{M}$ is the Jacobian without the carried term.",
        "eq-product-bound": "Bounds on what comes back through a stack.",
        "eq-log-gain": "The logarithm of the gain a block.",
        "eq-depth-aware": "The depth-aware bias keeps a fixed share at any depth.",
        "eq-contour": "The bias at which $L$ blocks return the share $r$ of a gradient.",
        "eq-gate-gradient": "The gradients of a block's own weights carry the factor $T$.",
        "eq-peak": "The bias that gives the first block the largest gradient.",
    },
    "book/highway/carry": {
        "eq-four-ways": "Four ways to combine a proposal and an input.",
        "eq-lerp": "The coupled one is an interpolation.",
        "eq-between": "So its output lies between, and no entry grows beyond the larger of the two.",
        "eq-unbiased": "Two unbiased estimates of $A$ combine to an unbiased one if their weights sum to 1.",
        "eq-best-gate": "The gate of least variance.",
        "eq-forward-moments": "The state's mean and mean square through one block, for any of the four.",
        "eq-residual-growth": "The growth of a residual stack.",
        "eq-difference-gain": "What a block with fixed coefficients does to the distance of two states.",
    },
    "book/highway/building": {
        "eq-stacked": "Both affine maps as one matrix product, one example a row.",
        "eq-params": "Equal parameters a block.",
    },
    "book/highway/gradients": {
        "eq-gradient-norm": "The gradient norm of a layer.",
    },
}
"""Page of the book -> label of an equation -> what it says, in plain text and mathematics between dollar signs."""


def equations(page: str) -> dict[str, str]:
    """Return the labelled equations of a page, in order."""
    text = (ROOT / f"{page}.md").read_text(encoding="utf-8")
    return dict(re.findall(r"\{math\}\n:label: (\S+)\n(.*?)\n *```", text, re.DOTALL))


def title(page: str) -> tuple[str, str]:
    """Return the label and the title of a page."""
    text = (ROOT / f"{page}.md").read_text(encoding="utf-8")
    return re.search(r"^\(([\w-]+)\)=\n# (.+)$", text, re.MULTILINE).groups()


def chapter_numbers() -> dict[str, int]:
    """Return the number of every chapter, as the site counts them."""
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    numbered = [chapter["file"] for part in contents["parts"] if part.get("numbered") for chapter in part["chapters"]]
    return {file: number for number, file in enumerate(numbered, start=1)}


def page() -> str:
    """Return the formula sheet as a page of the book."""
    lines = [INTRODUCTION]
    for file, entries in SHEET.items():
        label, heading = title(file)
        lines += [f"## {heading}", "", f"From the chapter {{ref}}`{label}`.", ""]
        found = equations(file)
        for name, meaning in entries.items():
            lines += [f"{{eq}}`{name}` {meaning}", "", "```{math}", *_lines(found[name]), "```", ""]
    return "\n".join(lines)


def latex() -> str:
    """Return the formula sheet as a LaTeX document, each equation under the number that it has in the book."""
    lines = [
        r"\documentclass[11pt]{article}", r"\usepackage[a4paper,margin=25mm]{geometry}",
        r"\usepackage{amsmath,amssymb}", r"\setlength{\parindent}{0pt}", r"\begin{document}",
        r"\section*{Highway Networks: formula sheet}",
        "The numbered results of the book \\emph{Highway Networks}, under their numbers there. Text: CC BY 4.0.", "",
    ]  # fmt: skip
    numbers = chapter_numbers()
    for file, entries in SHEET.items():
        found = equations(file)
        lines += [rf"\subsection*{{{numbers[file]}\quad {_plain(title(file)[1])}}}", ""]
        for name, meaning in entries.items():
            number = f"{numbers[file]}.{list(found).index(name) + 1}"
            lines += [
                meaning, r"\begin{equation}", rf"\tag{{{number}}}\label{{{name}}}", *_lines(found[name]),
                r"\end{equation}", "",
            ]  # fmt: skip
    return "\n".join([*lines, r"\end{document}", ""])


def _lines(formula: str) -> list[str]:
    return [line.strip() for line in formula.splitlines()]


def _plain(heading: str) -> str:
    return heading.replace("&", r"\&").replace("%", r"\%")


if __name__ == "__main__":
    try:
        PAGE.write_text(page(), encoding="utf-8", newline="\n")
        LATEX.write_text(latex(), encoding="utf-8", newline="\n")
    except (OSError, KeyError) as error:
        sys.exit(f"formula_sheet: {error!r}")
