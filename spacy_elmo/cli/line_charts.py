"""Line charts as SVG, for a page of their own making: no library draws them, and no script runs in them.

Colours are classes (`s0`, `s1`, …) that the style sheet of the page fills, so that a chart is right on light, dark and paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import accumulate
from typing import NamedTuple

WIDTH, HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 32, 34, 42
_COLOURS = 6

# More points than a chart has room for are shown by the mean and the range of neighbours.
_MOST_POINTS = 300
_MARKED_POINTS = 60
# What is greater cannot be added up, and what is nearer to 0 has no place on a logarithmic axis.
_GREATEST = 1e100
_DIGITS, _MOST_DIGITS = 4, 12
_LETTER = 7.0
_Points = Sequence[tuple[float, float]]
_Marks = Sequence[tuple[float, str]]


class Series(NamedTuple):
    """name (str): For the legend. points (Sequence): x and y, x ascending, all finite."""

    name: str
    points: _Points


class Bucket(NamedTuple):
    """Neighbouring points: the mean of both coordinates, the least and the greatest y, and how many they are."""

    x: float
    y: float
    low: float
    high: float
    size: int


def line_chart(title: str, series: Sequence[Series], x_label: str, log: bool = False, marks: _Marks = ()) -> str:
    """Draw a chart.

    title (str): What is shown; read to those who do not see it.
    series (Sequence[Series]): The lines. With `log`, points that are not above 0 are left out.
    x_label (str): What the horizontal axis is.
    log (bool): Whether the vertical axis is logarithmic.
    marks (Sequence): Places on the horizontal axis, and what happened there.
    RETURNS (str): An `svg` element, well-formed XML; "" if there is no point to draw.
    """
    least = 1 / _GREATEST if log else -_GREATEST
    kept = [(name, [(x, y) for x, y in points if least < y < _GREATEST and x < _GREATEST]) for name, points in series]
    lines = [(name, buckets(points, _MOST_POINTS)) for name, points in kept if points]
    if not lines:
        return ""
    every = [bucket for _, line in lines for bucket in line]
    # A few leaps may go beyond the axis, so that the rest is seen.
    lows, highs = sorted(bucket.low for bucket in every), sorted(bucket.high for bucket in every)
    few = len(every) // 50
    ys = [*(bucket.y for bucket in every), lows[few], highs[-1 - few]]
    plot = _Plot([bucket.x for bucket in every], ys, log)
    parts = [*plot.axes(x_label), *plot.marks(marks)]
    for index, (name, line) in enumerate(lines):
        parts += plot.line(name, line, index)
    parts += _legend([name for name, _ in lines])
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(parts)}</svg>"
    )


def buckets(points: _Points, most: int) -> list[Bucket]:
    """Group neighbouring points where there are too many to draw.

    points (Sequence): x and y.
    most (int): Groups at most.
    RETURNS (list[Bucket]): As many points in each, but for the last.
    """
    size = max(1, math.ceil(len(points) / most))
    found = []
    for start in range(0, len(points), size):
        xs, ys = zip(*points[start : start + size])
        found.append(Bucket(sum(xs) / len(xs), sum(ys) / len(ys), min(ys), max(ys), len(xs)))
    return found


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """RETURNS (list[float]): About so many round numbers from low to high."""
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(factor for factor in (1, 2, 5, 10) if factor * unit >= 0.7 * rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """RETURNS (list[float]): Round numbers from low to high, for a logarithmic axis; both are above 0."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        found = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        found = [value for value in found if low <= value <= high]
        if len(found) >= 4:
            return found if len(found) <= 12 else found[:: math.ceil(len(found) / 12)]
    return [value for value in ticks(low, high) if value > 0]


def number(value: float, digits: int = _DIGITS) -> str:
    """RETURNS (str): A number for a reader, with so many digits; a large one without decimals."""
    if 9_999.5 <= abs(value) < 1e12:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def labels(values: Sequence[float]) -> list[str]:
    """RETURNS (list[str]): Numbers for a reader, with as few digits as tell them apart."""
    choices = ([number(value, digits) for value in values] for digits in range(_DIGITS, _MOST_DIGITS))
    return next((choice for choice in choices if len(set(choice)) == len(values)), list(map(number, values)))


class _Plot:
    """The area within the axes, and where numbers are on it."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float], log: bool) -> None:
        self.log = log
        self.left, self.right = _apart(min(xs), max(xs))
        low, high = min(map(self._scaled, ys)), max(map(self._scaled, ys))
        low, high = _apart(low, high)
        margin = 0.05 * (high - low)
        self.low, self.high = low - margin, high + margin
        if not log and min(ys) >= 0:
            self.low = max(0.0, self.low)

    def x(self, value: float) -> float:
        share = (value - self.left) / (self.right - self.left)
        return round(_LEFT + _within(share) * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        share = (self._scaled(value) - self.low) / (self.high - self.low)
        return round(HEIGHT - _BOTTOM - _within(share) * (HEIGHT - _TOP - _BOTTOM), 1)

    def axes(self, x_label: str) -> Iterator[str]:
        end, floor = WIDTH - _RIGHT, HEIGHT - _BOTTOM
        values = log_ticks(10**self.low, 10**self.high) if self.log else ticks(self.low, self.high)
        for y, label in zip(map(self.y, values), labels(values)):
            yield f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{end}" y2="{y}"/>'
            yield f'<text class="tick" x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{label}</text>'
        values = ticks(self.left, self.right)
        for x, label in zip(map(self.x, values), labels(values)):
            yield f'<line class="axis" x1="{x}" y1="{floor}" x2="{x}" y2="{floor + 4}"/>'
            yield f'<text class="tick" x="{x}" y="{floor + 18}" text-anchor="middle">{label}</text>'
        yield f'<line class="axis" x1="{_LEFT}" y1="{floor}" x2="{end}" y2="{floor}"/>'
        middle = (_LEFT + end) / 2
        yield f'<text class="tick" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>'

    def marks(self, marks: _Marks) -> Iterator[str]:
        for value, what in marks:
            if self.left <= value <= self.right:
                x = self.x(value)
                line = f'<line class="mark" x1="{x}" y1="{_TOP}" x2="{x}" y2="{HEIGHT - _BOTTOM}">'
                yield f"{line}<title>{escape(what)}</title></line>"

    def line(self, name: str, line: Sequence[Bucket], index: int) -> Iterator[str]:
        places = [(self.x(bucket.x), self.y(bucket.y)) for bucket in line]
        if any(bucket.size > 1 for bucket in line):
            above = [f"{self.x(bucket.x)},{self.y(bucket.high)}" for bucket in line]
            below = [f"{self.x(bucket.x)},{self.y(bucket.low)}" for bucket in reversed(line)]
            yield f'<polygon class="band {_colour(index)}" points="{" ".join([*above, *below])}"/>'
        path = " ".join(f"{x},{y}" for x, y in places)
        yield f'<polyline class="line {_colour(index)}" points="{path}"/>'
        for bucket, (x, y) in zip(line, places):
            if len(line) <= _MARKED_POINTS:
                yield f'<circle class="dot {_colour(index)}" cx="{x}" cy="{y}" r="2.5"/>'
            what = f"{name}: {number(bucket.y)} at {bucket.x:,.0f}"
            if bucket.size > 1:
                what += f" (mean of {bucket.size}, {number(bucket.low)} to {number(bucket.high)})"
            yield f'<circle class="hover" cx="{x}" cy="{y}" r="7"><title>{escape(what)}</title></circle>'

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value


def _legend(names: Sequence[str]) -> Iterator[str]:
    shares = [len(name) + 6 for name in names]
    unit = min(_LETTER, (WIDTH - _LEFT - _RIGHT) / sum(shares))
    for index, (name, start) in enumerate(zip(names, accumulate(shares, initial=0))):
        x = _LEFT + start * unit
        yield f'<line class="line {_colour(index)}" x1="{x:.1f}" y1="16" x2="{x + 3 * unit:.1f}" y2="16"/>'
        # Where there are too many names, or too long ones, they are squeezed rather than written over each other.
        squeezed = f' textLength="{len(name) * unit:.1f}" lengthAdjust="spacingAndGlyphs"' if unit < _LETTER else ""
        yield f'<text class="legend" x="{x + 4 * unit:.1f}" y="20"{squeezed}>{escape(name)}</text>'


def _colour(index: int) -> str:
    return f"s{index % _COLOURS}"


def _within(share: float) -> float:
    return min(1.0, max(0.0, share))


def _apart(low: float, high: float) -> tuple[float, float]:
    """Two numbers that are far enough from each other to stand at the ends of an axis."""
    if high - low > 1e-9 * max(abs(low), abs(high), 1e-12):
        return low, high
    room = abs(low) * 0.1 or 1.0
    return low - room, high + room
