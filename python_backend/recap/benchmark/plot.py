"""One picture of a benchmark: MAT by family, MAT and speedup by node count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from recap.benchmark.figures import ArmFigures

COLOURS = {"recap": "#c0392b", "token_recycling": "#2c7fb8", "prompt_lookup": "#7f8c8d"}
NAMES = {
    "recap": "RECAP",
    "token_recycling": "token recycling (rank-cost tree)",
    "prompt_lookup": "prompt lookup",
}


def draw(figures: Sequence[ArmFigures], title: str, path: Path) -> None:
    """Writes the picture to `path`."""
    arms = [each for each in figures if each.method != "autoregressive"]
    # Figure and canvas by hand: pyplot would look for a screen.
    fig = Figure(figsize=(16, 4.8), layout="constrained")
    FigureCanvasAgg(fig)
    left, middle, right = fig.subplots(1, 3, width_ratios=(2, 1, 1))
    _draw_families(left, _largest(arms))
    for axis, value, name in (
        (middle, lambda each: each.mat, "MAT (tokens per pass)"),
        (right, lambda each: each.speedup.mean, "speedup, end to end"),
    ):
        _draw_by_nodes(axis, arms, value)
        axis.set_ylabel(name)
        axis.axhline(1, color="black", lw=0.8, ls=":")
    for each in arms:
        colour = COLOURS[each.method]
        s = each.speedup
        right.plot([each.nodes] * 2, [s.low, s.high], color=colour, lw=1)
    middle.legend(fontsize=8, loc="lower right")
    fig.suptitle(title)
    fig.savefig(path, dpi=110)


def _largest(arms: Sequence[ArmFigures]) -> list[ArmFigures]:
    """The arm of each method with the highest MAT."""
    best: dict[str, ArmFigures] = {}
    for each in arms:
        if each.method not in best or each.mat > best[each.method].mat:
            best[each.method] = each
    return list(best.values())


def _draw_families(axis: Axes, arms: Sequence[ArmFigures]) -> None:
    width = 0.8 / max(len(arms), 1)
    families = list(arms[0].mat_by_family)
    for number, each in enumerate(arms):
        places = [i + (number - (len(arms) - 1) / 2) * width for i in range(len(families))]
        values = [each.mat_by_family[family] for family in families]
        axis.bar(places, values, width, color=COLOURS[each.method], label=each.label)
    axis.set_xticks(range(len(families)), families, rotation=25, ha="right")
    axis.set_ylabel("MAT (tokens per pass)")
    axis.axhline(1, color="black", lw=0.8, ls=":")
    axis.legend(fontsize=8)


def _draw_by_nodes(
    axis: Axes, arms: Sequence[ArmFigures], value: Callable[[ArmFigures], float]
) -> None:
    for method in dict.fromkeys(each.method for each in arms):
        line = [e for e in arms if e.method == method and "published" not in e.label]
        line.sort(key=lambda each: each.nodes)
        axis.plot(
            [each.nodes for each in line],
            [value(each) for each in line],
            marker="o",
            color=COLOURS[method],
            label=NAMES[method],
        )
    for each in arms:
        if "published" in each.label:
            axis.plot(
                [each.nodes],
                [value(each)],
                marker="*",
                ms=10,
                ls="",
                color=COLOURS[each.method],
                label="token recycling (published tree)",
            )
    axis.set_xlabel("nodes per step")
