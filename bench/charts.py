"""A small line chart as SVG, for light and for dark pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Line", "draw_curves"]

_COLOURS = {
    "light": {"ink": "#1f2328", "faint": "#d0d7de", "soft": "#59636e", "lines": ("#0969da", "#bc4c00", "#1a7f37")},
    "dark": {"ink": "#f0f6fc", "faint": "#3d444d", "soft": "#9198a1", "lines": ("#4493f8", "#f0883e", "#3fb950")},
}
_MARGIN = 46
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    title: str
    points: Points


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


def _page(title: str, width: float, height: float, parts: Sequence[str], scheme: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif">'
        f'<text x="16" y="28" font-size="17" font-weight="600" fill="{_COLOURS[scheme]["ink"]}">{escape(title)}</text>'
        f"{''.join(parts)}</svg>\n"
    )
