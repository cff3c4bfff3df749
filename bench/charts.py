"""Small line charts as SVG, one beside the other, for light and for dark pages."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Line", "draw_curves", "draw_lines"]

_COLOURS = {
    "light": {"ink": "#1f2328", "faint": "#d0d7de", "soft": "#59636e", "lines": ("#0969da", "#bc4c00", "#1a7f37")},
    "dark": {"ink": "#f0f6fc", "faint": "#3d444d", "soft": "#9198a1", "lines": ("#4493f8", "#f0883e", "#3fb950")},
}
_WIDTH, _HEIGHT, _MARGIN, _ACROSS = 300, 130, 46, 2
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    title: str
    points: Points


def draw_lines(title: str, lines: Sequence[Line], scheme: str) -> str:
    """Each line in a box of its own: numbers across by powers of ten, cost from zero up."""
    step_x, step_y = _WIDTH + 2 * _MARGIN, _HEIGHT + 70
    rows = -(-len(lines) // _ACROSS)
    boxes = [
        f'<g transform="translate({_MARGIN + (number % _ACROSS) * step_x},{64 + (number // _ACROSS) * step_y})">'
        f"{_box(line, scheme)}</g>"
        for number, line in enumerate(lines)
    ]
    return _page(title, _ACROSS * step_x, 64 + rows * step_y, boxes, scheme)


def _box(line: Line, scheme: str) -> str:
    colours = _COLOURS[scheme]
    across = [math.log10(x) for x, _ in line.points]
    low, high = min(across), max(across)
    top = 1.15 * max(y for _, y in line.points) or 1.0
    places = [
        (_WIDTH * (x - low) / max(high - low, 1e-9), _HEIGHT * (1 - y / top))
        for x, (_, y) in zip(across, line.points, strict=True)
    ]
    marks = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours["lines"][0]}"/>' for x, y in places)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    last = line.points[-1][1]
    return (
        f'<text y="-12" font-size="13" fill="{colours["ink"]}">{escape(line.title)}</text>'
        f'<path d="M0 0V{_HEIGHT}H{_WIDTH}" fill="none" stroke="{colours["faint"]}"/>'
        f'<polyline points="{path}" fill="none" stroke="{colours["lines"][0]}" stroke-width="2"/>{marks}'
        f'<text y="{_HEIGHT + 18}" font-size="11" fill="{colours["soft"]}">{_short(line.points[0][0])}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 18}" font-size="11" text-anchor="end" fill="{colours["soft"]}">'
        f"{_short(line.points[-1][0])}</text>"
        f'<text x="{_WIDTH}" y="{places[-1][1] - 8:.1f}" font-size="11" text-anchor="end" fill="{colours["soft"]}">'
        f"{last:.3g}</text>"
    )


def draw_curves(title: str, curves: Sequence[Line], scheme: str, *, across: str, low: float | None = None) -> str:
    """Several curves in one box, the first on top, named beside their ends. It begins at `low`, or at their least."""
    colours = _COLOURS[scheme]
    width, height = 560, 260
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    left, right, high = min(xs), max(xs), max(ys)
    low = min(ys) if low is None else low

    def place(x: float, y: float) -> tuple[float, float]:
        return width * (x - left) / (right - left), height * (high - y) / (high - low)

    parts = [f'<path d="M0 0V{height}H{width}" fill="none" stroke="{colours["faint"]}"/>']
    for curve, colour in reversed(list(zip(curves, colours["lines"], strict=False))):
        places = [place(x, y) for x, y in curve.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<text x="{width + 8}" y="{places[-1][1] + 4:.1f}" font-size="13" fill="{colour}">'
            f"{escape(curve.title)}</text>"
        )
    parts.extend(
        f'<text x="-6" y="{place(left, value)[1] + 4:.1f}" font-size="11" text-anchor="end" '
        f'fill="{colours["soft"]}">{value:.3g}</text>'
        for value in (low, high)
    )
    parts.append(
        f'<text x="{width}" y="{height + 18}" font-size="11" text-anchor="end" fill="{colours["soft"]}">'
        f"{right:,.0f} {escape(across)}</text>"
    )
    return _page(
        title, width + 3 * _MARGIN + 80, height + 110, [f'<g transform="translate(46,64)">{"".join(parts)}</g>'], scheme
    )


def _short(number: float) -> str:
    power = math.log10(number)
    return f"10^{power:.0f}" if number >= 10_000 and power == int(power) else f"{number:,.0f}"


def _page(title: str, width: float, height: float, parts: Sequence[str], scheme: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif">'
        f'<text x="16" y="28" font-size="17" font-weight="600" fill="{_COLOURS[scheme]["ink"]}">{escape(title)}</text>'
        f"{''.join(parts)}</svg>\n"
    )
