"""`python -m spacy elmo mixes`: how the components of a trained pipeline mix the layers of ELMo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import ConfigError, Errors, PipelineError
from . import elmo_cli
from .messages import errors_as_messages
from .output_files import refuse_directory, whole_file
from .pipelines import saved_pipeline

if TYPE_CHECKING:
    from spacy.language import Language

    from ..pipeline.mixes import LayerMix


@elmo_cli.command("mixes")
def mixes_cli(
    model: str = typer.Argument(..., help="Path or name of a saved spaCy pipeline."),
    plot: Path = typer.Option(None, help="File for a picture: .png, .svg or .pdf. Needs matplotlib."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Show the share of each layer in the mix of each component, and gamma."""
    import srsly
    from wasabi.printer import Printer

    with errors_as_messages():
        mixes = mixes_of(saved_pipeline(model))
        if plot is not None:
            plot_mixes(mixes, plot)
    if as_json:
        print(srsly.json_dumps([mix._asdict() for mix in mixes], indent=2))
        return
    header, rows = mix_table(mixes)
    Printer(line_max=100).table(rows, header=header, divider=True, aligns=["l", *"r" * (len(header) - 1)])
    if plot is not None:
        print(f"Wrote {plot}")


def mixes_of(nlp: Language) -> list[LayerMix]:
    """RETURNS (list[LayerMix]): The mixes of a pipeline.

    RAISES (PipelineError): E453 if there are none.
    """
    from ..pipeline.mixes import layer_mixes

    mixes = layer_mixes(nlp)
    if not mixes:
        raise PipelineError(Errors.E453.format(model=nlp.meta["name"], pipes=nlp.component_names))
    return mixes


def mix_table(mixes: Sequence[LayerMix]) -> tuple[list[str], list[list[str]]]:
    """RETURNS (tuple): The header and the rows of a table with a row a mix."""
    n_layers = max(len(mix.shares) for mix in mixes)
    header = ["component", *(f"layer {layer}" for layer in range(n_layers)), "gamma"]
    rows = []
    for mix in mixes:
        shares = [f"{share:.3f}" for share in mix.shares] + [""] * (n_layers - len(mix.shares))
        rows.append([mix.title, *shares, f"{mix.gamma:.3f}"])
    return header, rows


def plot_mixes(mixes: Sequence[LayerMix], path: Path) -> None:
    """Draw the shares as figure 2 of Peters et al. (2018) does: a column a mix, a row a layer, the last layer on top. A share
    that is less than equal is hatched, and one that is more than twice that is dotted.

    mixes (Sequence[LayerMix]): From `layer_mixes`.
    path (Path): File to write; its suffix says the format.
    RAISES (ElmoError): E454 without matplotlib, E455 for a format that it does not know, E406 if it cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(Errors.E454.format(path=path)) from error
    refuse_directory(path)
    n_layers = max(len(mix.shares) for mix in mixes)
    figure = Figure(figsize=(1.5 + 0.9 * len(mixes), 1.5 + 0.6 * n_layers), layout="constrained")
    if path.suffix[1:] not in figure.canvas.get_supported_filetypes():
        raise ConfigError(Errors.E455.format(path=path, suffix=path.suffix))
    _draw(figure.subplots(), mixes, n_layers)
    with whole_file(path) as beside:
        figure.savefig(beside, format=path.suffix[1:], dpi=150)


def _draw(axes: Any, mixes: Sequence[LayerMix], n_layers: int) -> None:
    from matplotlib.patches import Rectangle

    for column, mix in enumerate(mixes):
        for layer, share in enumerate(mix.shares):
            equal = 1 / len(mix.shares)
            hatch = "---" if share < equal else "..." if share > 2 * equal else None
            shade = str(round(1 - 0.6 * share, 3))
            axes.add_patch(Rectangle((column, layer), 1, 1, facecolor=shade, edgecolor="0.6", hatch=hatch))
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            axes.text(column + 0.5, layer + 0.5, f"{share:.2f}", ha="center", va="center", bbox=box)
    titles = [f"{mix.title}\nγ = {mix.gamma:.2f}" for mix in mixes]
    axes.set_xlim(0, len(mixes))
    axes.set_ylim(0, n_layers)
    axes.set_xticks([column + 0.5 for column in range(len(mixes))], titles, rotation=45, ha="right")
    axes.set_yticks([layer + 0.5 for layer in range(n_layers)], [f"layer {layer}" for layer in range(n_layers)])
    axes.tick_params(length=0)
