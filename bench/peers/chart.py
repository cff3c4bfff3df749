"""Horizontal bars as SVG, for light and for dark pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

__all__ = ["Bar", "Panel", "draw"]

_SCHEMES = {
    "light": {
        "page": "#ffffff",
        "text": "#1f2328",
        "quiet": "#59636e",
        "peer": "#8c959f",
        "ours": "#0969da",
        "limit": "#d1d9e0",
    },
    "dark": {
        "page": "#0d1117",
        "text": "#f0f6fc",
        "quiet": "#9198a1",
        "peer": "#656c76",
        "ours": "#4493f8",
        "limit": "#3d444d",
    },
}
_WIDTH, _LABEL, _RIGHT = 860, 300, 100
_BAR, _STEP, _HEAD = 16, 24, 46


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    low: float
    high: float
    kind: str
    """"ours", "peer" or "limit": its colour."""


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str
    bars: Sequence[Bar]


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Write `path`-light.svg and `path`-dark.svg. Bars begin at zero; a thin line is the range of the repetitions."""
    for scheme, colours in _SCHEMES.items():
        path.with_name(f"{path.name}-{scheme}.svg").write_text(_svg(title, panels, colours))


def _svg(title: str, panels: Sequence[Panel], colours: dict[str, str]) -> str:
    parts: list[str] = []
    y = 16.0
    for panel in panels:
        largest = max(bar.high for bar in panel.bars)
        scale = (_WIDTH - _LABEL - _RIGHT) / largest
        parts.append(_text(16, y + 18, f"{panel.title}, {panel.unit}", colours["text"], size=15, weight="600"))
        y += _HEAD - 12
        for bar in panel.bars:
            middle = y + _BAR / 2
            end = _LABEL + bar.value * scale
            weight = "600" if bar.kind == "ours" else "400"
            parts.append(_text(_LABEL - 8, middle + 4, bar.label, colours["text"], anchor="end", weight=weight))
            parts.append(_rectangle(_LABEL, y, max(1.0, end - _LABEL), _BAR, colours[bar.kind]))
            low, high = _LABEL + bar.low * scale, _LABEL + bar.high * scale
            parts.append(_rectangle(low, middle - 0.75, max(0.5, high - low), 1.5, colours["text"]))
            parts.append(_text(max(end, high) + 8, middle + 4, _number(bar.value), colours["quiet"]))
            y += _STEP
        y += 20
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y:.0f}" viewBox="0 0 {_WIDTH} {y:.0f}" '
        f'role="img" aria-label="{escape(title)}" font-family="system-ui, -apple-system, Segoe UI, sans-serif">\n'
        f"<title>{escape(title)}</title>\n{_rectangle(0, 0, _WIDTH, y, colours['page'])}\n{body}\n</svg>\n"
    )


def _rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _text(
    x: float, y: float, text: str, colour: str, *, size: int = 13, anchor: str = "start", weight: str = "400"
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}">{escape(text)}</text>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
