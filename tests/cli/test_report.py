"""`python -m spacy elmo report`: the page of a run, whatever state the run is in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from spacy_elmo.cli.line_charts import HEIGHT, WIDTH, Series, buckets, line_chart, log_ticks, number, ticks
from spacy_elmo.cli.report import report_page
from spacy_elmo.cli.run_record import read_run
from spacy_elmo.errors import TrainingError
from spacy_elmo.weights.safetensors_stream import pieces
from tests.cli.conftest import Command

HTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"

LINES = [
    {"step": 0, "sentences": 1234, "words": 56789, "longest_line_words": 77, "environment": {"torch": "2.x"}},
    {"step": 20, "words": 2000, "loss": 6.5, "rate": 0.001, "gradient_norm": 3.0, "skipped": 0, "seconds": 1.0},
    {"step": 40, "words": 4000, "loss": 5.5, "rate": 0.002, "gradient_norm": 2.0, "skipped": 1, "seconds": 3.0},
    {"step": 40, "words": 4000, "held_out": "abc", "perplexity_forward": 250.0, "perplexity_backward": 260.0,
     "perplexity_joint": 255.0, "perplexity_words": 500, "perplexity_joint:news": 200.0, "perplexity_joint:web": 300.0},
    {"step": 60, "words": 6000, "loss": 4.5, "rate": 0.001, "gradient_norm": 1.0, "skipped": 1, "seconds": 5.0},
    {"step": 60, "words": 6000, "held_out": "abc", "perplexity_forward": 150.0, "perplexity_backward": 160.0,
     "perplexity_joint": 155.0, "perplexity_words": 500, "perplexity_joint:news": 100.0, "perplexity_joint:web": 210.0},
]  # fmt: skip


def write_run(directory: Path, *lines: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    (directory / "metrics.jsonl").write_text(text, encoding="utf-8")
    return directory


def write_checkpoint(run: Path, step: int, **parts: object) -> None:
    empty = {"config": {}, "settings": {}, "chosen": {}, "words": 0, "words_an_epoch": 0, "position": []}
    data = pieces({"x": torch.zeros(1)}, {"progress": json.dumps({**empty, "step": step, **parts})})
    (run / "checkpoints").mkdir(exist_ok=True)
    (run / "checkpoints" / f"step-{step:08}.safetensors").write_bytes(b"".join(data))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", *LINES)


def sections(page: str) -> dict[str, ElementTree.Element]:
    """The sections of a page by their titles; the page must be well-formed."""
    root = ElementTree.fromstring(page)
    return {section.findtext(f"{HTML}h2") or "": section for section in root.iter(f"{HTML}section")}


def rows(section: ElementTree.Element) -> dict[str, str]:
    cells = [[cell.text or "" for cell in row] for row in section.iter(f"{HTML}tr")]
    return {name: value for name, value in cells}


def page_of(directory: Path) -> dict[str, ElementTree.Element]:
    return sections(report_page(read_run(directory)))


def test_every_place_where_a_run_has_been(tmp_path: Path) -> None:
    moved = {"step": 1040, "environment": {"torch": "2.y"}}
    found = page_of(write_run(tmp_path / "run", *LINES, moved))
    places = {title: rows(section) for title, section in found.items() if title.startswith("Environment")}
    assert places == {"Environment": {"torch": "2.x"}, "Environment from step 1,040": {"torch": "2.y"}}


def test_command_writes_a_page_with_all_that_is_there(run: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "report", run)
    assert result.exit_code == 0, result.output
    found = sections((run / "report.html").read_text(encoding="utf-8"))
    charts = [title for title, section in found.items() if section.find(f"{SVG}svg") is not None]
    assert charts == [
        *("Loss", "Held-out perplexity", "Held-out perplexity by domain"),
        *("Learning rate", "Gradient norm", "Speed", "Skipped"),
    ]
    assert rows(found["Text"]) == {"sentences": "1,234", "words": "56,789", "longest_line_words": "77"}
    assert rows(found["Environment"]) == {"torch": "2.x"}


def test_other_place_and_nothing_left_beside(run: Path, tmp_path: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "report", run, tmp_path / "out" / "page.html")
    assert result.exit_code == 0 and "page.html" in result.output
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["page.html"]
    assert not (run / "report.html").exists()


def test_summary(run: Path) -> None:
    found = rows(page_of(run)["Summary"])
    assert found["steps"] == "60" and found["words read"] == "6,000" and found["time of training"] == "0:00:05"
    assert found["words a second, median"] == "1,000"
    assert (found["loss, first"], found["loss, mean of the last 3 logged"]) == ("6.5000", "5.5000")
    assert found["held-out perplexity, forward, last"] == "150.00"
    assert found["held-out perplexity, joint, best"] == "155.00 at step 60"
    assert found["steps skipped, their gradient not finite"] == "1"


def test_page_needs_nothing_else(run: Path) -> None:
    page = report_page(read_run(run))
    root = ElementTree.fromstring(page)
    assert not {element.tag for element in root.iter()} & {
        f"{HTML}{tag}" for tag in ("script", "link", "img", "iframe")
    }
    attributes = [name for element in root.iter() for name in element.attrib]
    assert not {"src", "href"} & set(attributes) and "url(" not in page
    assert "default-src 'none'" in page and "prefers-color-scheme: dark" in page and "@media print" in page


def test_what_a_run_says_is_no_markup(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>&\x00\x1b"
    lines = [{"step": 0, evil: evil}, {"step": 20, evil: 1}, {"step": 40, evil: 2}]
    lines.append({"step": 40, "perplexity_joint:" + evil: 3.0})
    run = write_run(tmp_path / "<b>run&", *lines)
    page = report_page(read_run(run))
    assert "<script" not in page and "<b>" not in page
    texts = "".join(ElementTree.fromstring(page).itertext())
    assert "<script>alert('x')</script>&\N{REPLACEMENT CHARACTER}" in texts and "<b>run&" in texts


@pytest.mark.parametrize(
    "broken",
    [
        '{"step": 80, "lo',
        '{"step": 80, "loss": NaN}\n',
        '{"step": 80, "loss": Infinity}\n',
        '{"step": "80", "loss": 1}\n',
        '{"step": -1, "loss": 1}\n',
        '{"step": true, "loss": 1}\n',
        '{"step": 80, "loss": "1"}\n',
        '{"step": 80, "loss": 1' + "0" * 400 + "}\n",
        "[80, 1]\n",
        "[" * 100_000 + "\n",
        '{"step": 80, "loss": 1, "x": "' + "x" * 2**21 + '"}\n',
        "\n\n",
    ],
)
def test_lines_that_are_not_whole_are_passed_over(tmp_path: Path, broken: str) -> None:
    whole = read_run(write_run(tmp_path / "a", *LINES))
    found = read_run(write_run(tmp_path / "b", *LINES[:3], broken.rstrip("\n") + "\n", *LINES[3:], broken))
    assert found.points("loss") == whole.points("loss") == [(20, 6.5), (40, 5.5), (60, 4.5)]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    run = write_run(tmp_path, LINES[1])
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(b'\xff\xfe\x00{"step": 3}\n')
    assert read_run(run).points("loss") == [(20, 6.5)]


def test_step_that_was_measured_twice_counts_once(tmp_path: Path) -> None:
    again = {"step": 20, "loss": 6.0}
    assert read_run(write_run(tmp_path, *LINES[:3], again)).points("loss") == [(20, 6.0), (40, 5.5)]


def test_run_without_measurements(tmp_path: Path) -> None:
    found = page_of(write_run(tmp_path / "run"))
    assert list(found) == ["Summary"] and rows(found["Summary"]) == {"measurements": "none yet"}


def test_time_of_a_run_whose_clock_began_anew(tmp_path: Path) -> None:
    seconds = [{"step": 20 * (index + 1), "words": 2000 * (index + 1), "seconds": value} for index, value in enumerate([10.0, 20.0, 5.0, 10.0])]  # fmt: skip
    record = read_run(write_run(tmp_path, *seconds))
    assert record.seconds() == 30
    assert record.words_per_second() == [(40, 200.0), (80, 400.0)]


def test_rollback_is_marked(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *LINES, {"step": 50, "rolled_back_to": 40, "loss": 9.0})
    found = page_of(run)
    titles = [line.findtext(f"{SVG}title") for line in found["Loss"].iter(f"{SVG}line") if line.get("class") == "mark"]
    assert titles == ["Step 50: rolled back to step 40"]
    assert rows(found["Summary"])["rollbacks"] == "1"


def test_config_is_that_of_the_newest_checkpoint_that_can_be_read(run: Path) -> None:
    for step, cells in ((20, 11), (40, 12)):
        write_checkpoint(run, step, config={"cells": cells}, settings={"peak_rate": 0.5})
    (run / "checkpoints" / "step-00000060.safetensors").write_bytes(b"\x08\x00")
    found = page_of(run)
    assert rows(found["BiLM"]) == {"cells": "12"} and rows(found["Training"]) == {"peak_rate": "0.5"}


def test_text_is_told_of_by_what_was_met_and_by_the_checkpoint(run: Path) -> None:
    write_checkpoint(run, 40, corpus={"shards": 3})
    found = rows(page_of(run)["Text"])
    assert found == {"sentences": "1,234", "words": "56,789", "longest_line_words": "77", "shards": "3"}


def test_what_was_chosen_for_its_speed_is_no_text(tmp_path: Path) -> None:
    choice = {"step": 0, "precision": "bfloat16", "words_per_second": {"bfloat16 steps": 1500.0}, "failed": {}}
    found = page_of(write_run(tmp_path, LINES[0], choice))
    assert "precision" not in rows(found["Text"]) and rows(found["Chosen"]) == {"precision": "bfloat16"}
    assert rows(found["Words per second"]) == {"bfloat16 steps": "1500"} and "Failed" not in found


def test_settings_are_not_rounded(run: Path) -> None:
    write_checkpoint(run, 40, settings={"decay": 0.99999, "scale": 65536.0})
    assert rows(page_of(run)["Training"]) == {"decay": "0.99999", "scale": "65,536"}


def test_config_of_weights_without_checkpoints(run: Path) -> None:
    (run / "config.json").write_text('{"format": 1, "bilm": {"filters": [[1, 32], [2, 64]]}}', encoding="utf-8")
    assert rows(page_of(run)["BiLM"]) == {"filters": "[1, 32], [2, 64]"}


def test_directory_that_is_no_run(tmp_path: Path, spacy_command: Command) -> None:
    result = spacy_command("elmo", "report", tmp_path)
    assert result.exit_code == 1 and "[ELMO-E460]" in result.output and "metrics.jsonl" in result.output
    assert not (tmp_path / "report.html").exists()
    with pytest.raises(TrainingError, match="E460"):
        read_run(tmp_path / "nowhere")


def chart_of(*series: Series, log: bool = False) -> ElementTree.Element:
    return ElementTree.fromstring(line_chart("title", series, "step", log))


def coordinates(element: ElementTree.Element, name: str = "polyline") -> list[list[tuple[float, float]]]:
    found = []
    for line in element.iter(f"{SVG}{name}"):
        pairs = (pair.split(",") for pair in line.attrib["points"].split())
        found.append([(float(x), float(y)) for x, y in pairs])
    return found


def test_line_goes_where_the_numbers_are() -> None:
    ((first, middle, last),) = coordinates(chart_of(Series("a", [(0, 0), (5, 1), (10, 4)])))
    assert first[0] < middle[0] < last[0] and middle[0] == pytest.approx((first[0] + last[0]) / 2, abs=0.1)
    assert first[1] > middle[1] > last[1], "on a page y grows downwards"
    assert first[1] - middle[1] == pytest.approx((first[1] - last[1]) / 4, abs=0.2)


def test_logarithmic_axis() -> None:
    ((low, middle, high),) = coordinates(chart_of(Series("a", [(0, 10), (1, 100), (2, 1000), (3, 0)]), log=True))
    assert low[1] - middle[1] == pytest.approx(middle[1] - high[1], abs=0.2)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "points",
    [
        [(5, 3)],
        [(1, 2), (2, 2)],
        [(1, 1e-9), (2, 1e9)],
        [(x, 2 + x % 7) for x in range(5000)],
        [(0, 1e99)],
        [(0, 1e-320), (1, 1)],
    ],
)
def test_everything_is_within_the_picture(points: list[tuple[float, float]], log: bool) -> None:
    chart = chart_of(Series("a", points), log=log)
    for kind in ("polyline", "polygon"):
        for line in coordinates(chart, kind):
            assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in line)
    for text in chart.iter(f"{SVG}text"):
        assert 0 <= float(text.attrib["x"]) <= WIDTH and 0 <= float(text.attrib["y"]) <= HEIGHT


def test_leap_beyond_the_axis_ends_at_it() -> None:
    chart = chart_of(Series("a", [(step, 1e6 if step == 2500 else step % 2) for step in range(5000)]))
    highest, mean = (min(y for _, y in coordinates(chart, kind)[0]) for kind in ("polygon", "polyline"))
    assert 0 < highest < mean, "on a page y grows downwards"


def test_many_points_are_a_line_in_a_band() -> None:
    chart = chart_of(Series("a", [(step, step % 2) for step in range(10_000)]))
    assert len(coordinates(chart)[0]) <= 300 and len(coordinates(chart, "polygon")) == 1
    hover = [circle.findtext(f"{SVG}title") for circle in chart.iter(f"{SVG}circle")]
    assert hover[0] == "a: 0.5 at 16 (mean of 34, 0 to 1)"


def test_buckets_hold_every_point() -> None:
    found = buckets([(x, -x) for x in range(7)], most=3)
    assert [(bucket.x, bucket.low, bucket.high, bucket.size) for bucket in found] == [
        (1, -2, 0, 3), (4, -5, -3, 3), (6, -6, -6, 1),
    ]  # fmt: skip


def test_legend_and_tooltips_have_the_names() -> None:
    chart = chart_of(Series("a<b", [(0, 1), (1500, 2)]), Series("c", [(0, 3), (1500, 1)]))
    assert [text.text for text in chart.iter(f"{SVG}text") if text.get("class") == "legend"] == ["a<b", "c"]
    assert "a<b: 2 at 1,500" in [title.text for title in chart.iter(f"{SVG}title")]


def test_legend_of_many_names_is_squeezed() -> None:
    chart = chart_of(*(Series("a domain of text", [(0, value)]) for value in range(1, 10)))
    legend = [text.attrib for text in chart.iter(f"{SVG}text") if text.get("class") == "legend"]
    ends = [float(text["x"]) + float(text["textLength"]) for text in legend]
    starts = [float(text["x"]) for text in legend[1:]] + [WIDTH]
    assert all(end < start for end, start in zip(ends, starts))


@pytest.mark.parametrize("log", [False, True])
def test_labels_of_an_axis_differ(log: bool) -> None:
    chart = chart_of(Series("a", [(20, 45.001), (40, 45.03)]), log=log)
    found = [text.text for text in chart.iter(f"{SVG}text") if text.get("text-anchor") == "end"]
    assert len(set(found)) == len(found) > 2


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.00123456, "0.001235"), (9999.7, "10,000"), (12345.6, "12,346"), (1e15, "1e+15")]
)
def test_numbers_for_a_reader(value: float, text: str) -> None:
    assert number(value) == text


def test_nothing_to_draw() -> None:
    assert line_chart("title", [Series("a", []), Series("b", [(1, 0), (2, 1e300)])], "step", log=True) == ""


@pytest.mark.parametrize(("low", "high"), [(0, 1), (4.1, 6.9), (0.0001, 0.003), (-3, 12_345), (95, 1e6)])
def test_ticks_are_round_and_few(low: float, high: float) -> None:
    for found in (ticks(low, high), log_ticks(max(low, 1e-5), high)):
        assert 2 <= len(found) <= 12 and all(low <= value <= high for value in found) and found == sorted(found)
        assert all(len(re.sub(r"[.0-]|e.*", "", f"{value:.6g}")) <= 3 for value in found)
