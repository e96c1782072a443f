"""`python -m spacy elmo report`: a training run on one page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from html import escape
from operator import itemgetter
from pathlib import Path
from typing import Any

import typer

from . import elmo_cli
from .line_charts import Series, line_chart, number
from .messages import errors_as_messages
from .output_files import refuse_directory, whole_file
from .run_record import RunRecord, read_run

_PERPLEXITY = "perplexity_"
_DIRECTIONS = ("forward", "backward")
# What has a chart of its own, is drawn together with something else, or only counts.
_DRAWN = ("loss", "rate", "gradient_norm", "words_per_second", "words", "seconds")
_RECENT = 20
# A config says 0.99999 where a chart may say 1.
_DIGITS_OF_SETTINGS = 8

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1e21; --soft: #5c6370; --grid: #e3e6ea; --card: #f7f8fa;
  --s0: #1f5fbf; --s1: #c2410c; --s2: #15803d; --s3: #7c3aed; --s4: #a16207; --s5: #be185d; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171c; --ink: #e6e8eb; --soft: #9aa3af; --grid: #2c323b; --card: #1b2027;
  --s0: #6ea8ff; --s1: #ff9a5c; --s2: #5fd38a; --s3: #b79bff; --s4: #e0b84a; --s5: #ff85b3; } }
body { margin: 0 auto; padding: 1.5rem; max-width: 86rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin: 0 0 .4rem; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 1rem; }
section { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; padding: .9rem 1rem; min-width: 0; }
table { border-collapse: collapse; width: 100%; } td { padding: .18rem 0; border-top: 1px solid var(--grid); vertical-align: top; }
tr:first-child td { border-top: 0; } td:first-child { color: var(--soft); padding-right: 1rem; }
td:last-child { text-align: right; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
p { color: var(--soft); margin: .3rem 0 0; font-size: .85rem; } svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--grid); } .axis { stroke: var(--soft); } .mark { stroke: var(--s1); stroke-width: 2; stroke-dasharray: 2 3; }
.tick, .legend { fill: var(--soft); font: 11.5px system-ui, sans-serif; } .legend { fill: var(--ink); font-size: 12.5px; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; } .hover { fill: transparent; } .hover:hover { fill: var(--grid); }
.s0 { stroke: var(--s0); } .s1 { stroke: var(--s1); } .s2 { stroke: var(--s2); } .s3 { stroke: var(--s3); } .s4 { stroke: var(--s4); }
.s5 { stroke: var(--s5); } .line.s1 { stroke-dasharray: 7 3; } .line.s2 { stroke-dasharray: 2 3; } .line.s3 { stroke-dasharray: 9 3 2 3; }
.dot { fill: var(--card); stroke-width: 1.5; } .band { stroke: none; opacity: .22; } .band.s0 { fill: var(--s0); }
.band.s1 { fill: var(--s1); } .band.s2 { fill: var(--s2); } .band.s3 { fill: var(--s3); } .band.s4 { fill: var(--s4); }
.band.s5 { fill: var(--s5); }
@media print { :root { --paper: #fff; --ink: #000; --soft: #444; --grid: #ccc; --card: #fff; --s0: #1f5fbf; --s1: #c2410c;
  --s2: #15803d; --s3: #7c3aed; --s4: #a16207; --s5: #be185d; } body { padding: 0; font-size: 11px; }
  main { grid-template-columns: 1fr 1fr; } section { break-inside: avoid; } }
"""


@elmo_cli.command("report")
def report_cli(
    run: Path = typer.Argument(..., help="Directory of a training run, at work or ended."),
    output: Path = typer.Argument(None, help="File to write. Default: report.html in that directory."),
) -> None:
    """Write a page with the curves of a training run, its text, config and environment. It needs no network and no script."""
    path = run / "report.html" if output is None else output
    with errors_as_messages():
        write_report(run, path)
    print(f"Wrote {path}")


def write_report(run: Path, output: Path) -> None:
    """Write the page of a training run.

    run (Path): The directory of the run.
    output (Path): The file, .html.
    RAISES (TrainingError): E460 if that is no run. (ElmoError): E406 if the file cannot be written.
    """
    refuse_directory(output)
    page = report_page(read_run(run))
    with whole_file(output) as fresh:
        fresh.write_text(page, encoding="utf-8")


def report_page(record: RunRecord) -> str:
    """RETURNS (str): The page of a training run: HTML that is well-formed XML, too."""
    parts = [_section("Summary", _table(dict(_summary(record)))), *_charts(record)]
    tables = [("text", record.corpus), *record.config.items()]
    for step, environment in sorted(record.environments.items()):
        tables.append((f"environment from step {step:,.0f}" if step else "environment", environment))
    parts += [_section(_title(name), _table(values)) for name, values in tables if values]
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>"
    name = _text(record.name)
    return (
        f'<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml"><head><meta charset="utf-8"/>{policy}'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"/><title>{name}: training run</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>Training run {name}</h1>\n<main>{''.join(parts)}</main></body></html>\n"
    )


def _charts(record: RunRecord) -> Iterator[str]:
    marks = [(step, f"Step {step:,.0f}: rolled back to step {back:,.0f}") for step, back in record.rollbacks]
    by_name = record.series
    domains = sorted({name.partition(":")[2] for name in by_name if name.startswith(f"{_PERPLEXITY}joint:")})
    norms = record.points("gradient_norm")
    charts: list[tuple[str, str, Sequence[Series], bool]] = [
        ("Loss", "Training text, nats a word", [Series("loss", record.points("loss"))], False),
        (
            "Held-out perplexity",
            "Full softmax, no dropout; logarithmic",
            [Series(direction, record.points(_PERPLEXITY + direction)) for direction in _DIRECTIONS],
            True,
        ),
        (
            "Held-out perplexity by domain",
            "Both directions together; logarithmic",
            [Series(domain, by_name[f"{_PERPLEXITY}joint:{domain}"]) for domain in domains],
            True,
        ),
        ("Learning rate", "", [Series("rate", record.points("rate"))], False),
        ("Gradient norm", "Before it is bounded", [Series("gradient norm", norms)], _is_wide(norms)),
        ("Speed", "", [Series("words a second", record.words_per_second())], False),
    ]
    others = [name for name in by_name if name not in _DRAWN and not name.startswith(_PERPLEXITY)]
    changing = [name for name in sorted(others) if len({value for _, value in by_name[name]}) > 1]
    charts += [(_title(name), "", [Series(name, by_name[name])], False) for name in changing]
    for title, caption, series, log in charts:
        named = [Series(_plain(each.name), each.points) for each in series]
        svg = line_chart(_plain(title), named, "step", log, marks)
        if svg:
            yield _section(title, svg + (f"<p>{caption}.</p>" if caption else ""))


def _summary(record: RunRecord) -> Iterator[tuple[str, str]]:
    steps = max((points[-1][0] for points in record.series.values()), default=None)
    if steps is None:
        yield "measurements", "none yet"
        return
    yield "steps", f"{steps:,.0f}"
    words, seconds = record.last("words"), record.seconds()
    if words is not None:
        yield "words read", f"{words:,.0f}"
    if seconds:
        yield "time of training", str(timedelta(seconds=round(seconds)))
    speed = [value for _, value in record.words_per_second()]
    if speed:
        yield "words a second, median", f"{sorted(speed)[len(speed) // 2]:,.0f}"
    losses = [value for _, value in record.points("loss")]
    if losses:
        yield "loss, first", f"{losses[0]:.4f}"
        recent = losses[-_RECENT:]
        yield f"loss, mean of the last {len(recent)} logged", f"{sum(recent) / len(recent):.4f}"
    yield from _perplexities(record)
    if (skipped := record.last("skipped")) is not None:
        yield "steps skipped, their gradient not finite", f"{skipped:,.0f}"
    if record.rollbacks:
        yield "rollbacks", f"{len(record.rollbacks):,}"


def _perplexities(record: RunRecord) -> Iterator[tuple[str, str]]:
    for name in (*_DIRECTIONS, "joint"):
        value = record.last(_PERPLEXITY + name)
        if value is not None:
            yield f"held-out perplexity, {name}, last", f"{value:.2f}"
    joint = record.points(f"{_PERPLEXITY}joint")
    if joint:
        step, best = min(joint, key=itemgetter(1))
        yield "held-out perplexity, joint, best", f"{best:.2f} at step {step:,.0f}"
    if (words := record.last(f"{_PERPLEXITY}words")) is not None:
        yield "held-out words, ends of sentences included", f"{words:,.0f}"


def _title(name: str) -> str:
    """As a name begins a heading: only its first letter is changed, since there is "biLM"."""
    return name[:1].upper() + name[1:].replace("_", " ")


def _section(title: str, content: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{content}</section>\n"


def _table(values: Mapping[str, Any]) -> str:
    rows = (f"<tr><td>{_text(name)}</td><td>{_text(_shown(value))}</td></tr>" for name, value in values.items())
    return f"<table>{''.join(rows)}</table>"


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value, _DIGITS_OF_SETTINGS)
    if isinstance(value, list):
        return ", ".join(f"[{_shown(part)}]" if isinstance(part, list) else _shown(part) for part in value)
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_shown(part)}" for name, part in value.items())
    return "none" if value is None else str(value)


def _text(value: str) -> str:
    return escape(_plain(value))


def _plain(value: str) -> str:
    """Text without what XML cannot hold, such as control characters that a file name may have."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in value)


def _is_wide(points: Sequence[tuple[float, float]]) -> bool:
    values = [value for _, value in points if value > 0]
    return bool(values) and max(values) > 50 * min(values)
