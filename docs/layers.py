"""Draw the layers of the architecture as SVG, light and dark, from the import contracts: `make docs`."""

from __future__ import annotations

import ast
import tomllib
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
IMAGES: Final = ROOT / "docs" / "images"
WIDTH: Final = 960
ROW: Final = 66
GAP: Final = 12
#: The most characters of a caption that fit on a pixel of a box.
CHARACTERS_PER_PIXEL: Final = 1 / 6.1


class Theme(NamedTuple):
    """Colours of one picture."""

    name: str
    page: str
    box: str
    edge: str
    title: str
    text: str


THEMES: Final = (
    Theme("light", "#ffffff", "#f3f5f9", "#b8c2d3", "#14213d", "#47536b"),
    Theme("dark", "#0d1117", "#161b22", "#3b4657", "#e6edf3", "#9aa7b8"),
)


def layers() -> list[list[str]]:
    """Return the layers of the import contract, top first; packages of one layer are siblings."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    stack = next(each for each in contracts if each["type"] == "layers")["layers"]
    return [[part.strip("() ") for part in layer.replace(":", "|").split("|")] for layer in stack]


def caption(package: str) -> str:
    """Return the first sentence of the docstring of ``package``."""
    source = (ROOT / package.replace(".", "/") / "__init__.py").read_text()
    return (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].replace("\n", " ")


def _wrapped(text: str, width: float) -> list[str]:
    limit, lines = int(width * CHARACTERS_PER_PIXEL), [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > limit:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    if len(lines) > 2:
        lines = [lines[0], lines[1][: limit - 1].rstrip() + "…"]
    return lines


def _box(package: str, x: float, y: float, width: float, theme: Theme) -> list[str]:
    drawn = [
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{ROW}" rx="8" fill="{theme.box}" stroke="{theme.edge}"/>',
        f'<text x="{x + 14:g}" y="{y + 24:g}" font-size="15" font-weight="600" fill="{theme.title}">{package}/</text>',
    ]
    for number, line in enumerate(_wrapped(caption(package), width - 28)):
        drawn.append(
            f'<text x="{x + 14:g}" y="{y + 44 + 17 * number:g}" font-size="12" fill="{theme.text}">{escape(line)}</text>'
        )
    return drawn


def picture(theme: Theme) -> str:
    """Return the SVG: a row for each layer; imports go downward only."""
    rows = layers()
    height = (len(rows) + 1) * (ROW + GAP) - GAP + 24
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        ' font-family="system-ui, sans-serif" role="img" aria-label="Layers of Tangram, top to bottom">',
        f'<rect width="{WIDTH}" height="{height}" fill="{theme.page}"/>',
    ]
    y = 0.0
    top = [["tangram_client"], *rows]
    for layer in top:
        width = (WIDTH - 2 - GAP * (len(layer) - 1)) / len(layer)
        for place, package in enumerate(layer):
            drawn += _box(package, 1 + place * (width + GAP), y + 1, width, theme)
        y += ROW + GAP
        if layer == ["tangram_client"]:
            drawn.append(
                f'<text x="{WIDTH / 2:g}" y="{y + 4:g}" font-size="12" text-anchor="middle" fill="{theme.text}">'
                "HTTP and websockets; below this line a package imports only packages that are lower</text>"
            )
            y += 22
    drawn.append("</svg>")
    return "\n".join(drawn) + "\n"


def path(theme: Theme) -> Path:
    """Return the file of the picture in ``theme``."""
    return IMAGES / f"layers-{theme.name}.svg"


if __name__ == "__main__":
    for each in THEMES:
        path(each).write_text(picture(each))
