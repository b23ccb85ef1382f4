"""A figure of matplotlib as SVG inside a page: its text stays text, its colours follow the page's theme."""

import io
import re
import zlib
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from truncate_kit.report.panel import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, TIP, VERMILION
from truncate_kit.wording import harmless

_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
# The style sheet has each of them once for light and once for dark pages; black is the page's ink.
_THEMED = {
    "#000000": "currentColor",
    BLUE: "var(--blue)",
    SKY: "var(--sky)",
    GREEN: "var(--green)",
    VERMILION: "var(--vermilion)",
    ORANGE: "var(--orange)",
    PURPLE: "var(--purple)",
    GREY: "var(--grey)",
}
INK = "#010101"
"""A black that stays black, for what stands on a colour that stays too."""

_FAMILY = re.compile(r"(?<=font-family: )[^;]+|(?<=px) '[^;]+")  # as versions of matplotlib write it
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_ROUNDED = re.compile(r"(\d+\.\d\d)\d+")


def inline_svg(figure: Figure, name: str, label: str) -> Markup:
    """The figure as one `<svg>` element.

    Args:
        figure: What to draw; marks whose id begins with `TIP` say the rest of it under the mouse.
        name: Begins every id in it, so that figures on one page do not share any.
        label: What it shows, for who does not see it.
    """
    name = f"{name}-{zlib.crc32(label.encode()):x}"  # cells of a notebook share a page
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):  # the same figure gives the same bytes
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(file.getvalue())
    used = _used_ids(root)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):  # a style would be that of the whole page
                parent.remove(child)
        _adapt(parent, name, used)
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    root.set("role", "img")
    root.set("aria-label", label)
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _LINK)
    # The tree's own writer has escaped all text, but for what steers a terminal or turns the direction of writing.
    return Markup(harmless(ElementTree.tostring(root, encoding="unicode")))


def _used_ids(root: ElementTree.Element) -> set[str]:
    """What something in the figure refers to."""
    values = [value for element in root.iter() for value in element.attrib.values()]
    return {found for value in values for found in _REFERENCE.findall(value)} | {
        value[1:] for value in values if value.startswith("#")
    }


def _adapt(element: ElementTree.Element, name: str, used: set[str]) -> None:
    """Give one element ids of its own, the page's colours and font, and its tip."""
    identity = element.attrib.pop("id", "")
    if identity in used:
        element.set("id", f"{name}-{identity}")
    elif identity.startswith(TIP):
        title = ElementTree.Element(f"{{{_SVG}}}title")
        title.text = identity.removeprefix(TIP)
        element.insert(0, title)
    link = f"{{{_LINK}}}href"
    if element.get(link, "").startswith("#"):
        element.set(link, f"#{name}-{element.attrib[link][1:]}")
    for key, value in element.attrib.items():
        if key in ("style", "clip-path", "fill", "stroke"):
            element.set(key, _REFERENCE.sub(rf"url(#{name}-\1)", _themed(value)))
        elif key == "d":
            element.set(key, " ".join(_ROUNDED.sub(r"\1", value).split()))


def _themed(style: str) -> str:
    for fixed, themed in _THEMED.items():
        style = re.sub(fixed, themed, style, flags=re.IGNORECASE)
    return _FAMILY.sub(" var(--sans)", style)
