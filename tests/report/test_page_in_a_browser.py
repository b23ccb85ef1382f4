"""The page in a real Chromium: it draws, sorts, copies, prints, asks for nothing, and reads well without eyes."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.browser import Browser, Tab
from tests.support.economy import drawing
from tests.support.made_results import a_bench, a_quality, write_run
from tests.support.pairs import TEXTS, pairs_of
from truncate_kit.analysis.profile import profile
from truncate_kit.models.loading import load_encoder
from truncate_kit.models.pipeline import save_encoder
from truncate_kit.report.page import write_page

AXE = Path(__file__).parents[1] / "support/axe.min.js"
DEMO = "TRUNCATE_KIT_DEMO"  # a workspace that the demo has made; CI names it


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def made(tiny_folder, tmp_path_factory):
    """The page of a run that has everything."""
    folder = tmp_path_factory.mktemp("pages")
    encoder, other = load_encoder(tiny_folder("bert")), load_encoder(tiny_folder("electra"))
    save_encoder(encoder, folder / "lean")
    seen = profile(encoder, TEXTS, reference=other, pairs=pairs_of(TEXTS))
    notes = "</script><img src=x onerror=document.title='broken'>", "Scored on other pairs than those of --data."
    bench = replace(a_bench(), quality=a_quality(1, 3), notes=notes)
    with drawing():
        return Path(write_page(write_run(folder / "run", folder / "lean", profile=seen, bench=bench)).page)


@pytest.fixture
def tab(browser, made):
    return Tab(browser).open(made)


@pytest.fixture(params=["made", "demo"])
def page(request):
    if request.param == "made":
        return request.getfixturevalue("made")
    if DEMO not in os.environ:
        pytest.skip(f"needs a workspace that the demo has made, named in {DEMO}")
    return Path(os.environ[DEMO]) / "report.html"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_it_opens_without_a_word_to_console_or_network_and_passes_axe(browser, page, scheme, width):
    tab = Tab(browser, width=width, scheme=scheme).open(page)
    assert "broken" not in tab.evaluate("document.title")
    sizes = "[svg.getBoundingClientRect().height, svg.querySelectorAll('path, use').length, svg.ariaLabel.length]"
    for height, parts, label in tab.evaluate(f"[...document.querySelectorAll('svg')].map(svg => {sizes})"):
        assert min(height / 15, parts, label) > 10
    for details in ("true", "false"):
        tab.evaluate(f"document.querySelectorAll('details').forEach(one => one.open = {details})")
    assert tab.problems == []
    tab.evaluate(AXE.read_text(encoding="utf-8") + ";0")
    tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    found = tab.evaluate("axe.run(document).then(found => found.violations)")
    assert [(row["id"], row["impact"], row["nodes"][0]["html"][:200]) for row in found] == []


def column(tab, place):
    """The cells of a column of the first table, from above."""
    rows = "[...document.querySelector('#speed table').tBodies[0].rows]"
    return tab.evaluate(f"{rows}.map(row => row.cells[{place}].textContent)")


def test_a_heading_sorts_by_number_both_ways_by_mouse_and_keyboard(tab):
    heading = "document.querySelectorAll('#speed thead button')[1]"
    before = column(tab, 1)
    value = {cell: float(cell.replace(",", "")) for cell in before if cell != "–"}
    rising = sorted(value, key=lambda cell: value[cell])
    assert rising != list(value)
    # A score that another graph beats stands in brackets.
    least = f"document.querySelector('#speed table').tBodies[0].rows[{before.index(rising[0])}].cells[1]"
    rising[0] = f"({rising[0]})"
    tab.evaluate(f"{least}.textContent = '{rising[0]}'")
    missing = ["–"] * (len(before) - len(value))
    tab.evaluate(f"{heading}.click()")
    assert column(tab, 1) == rising + missing
    tab.evaluate(f"{heading}.focus()")
    tab.press("Enter", 13)
    assert column(tab, 1) == rising[::-1] + missing
    state = "document.querySelector('#speed thead [aria-sort]').getAttribute('aria-sort')"
    assert tab.evaluate(state) == "descending"


def test_lines_are_copied_as_they_are(browser, tab):
    browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
    button = "document.querySelector('#loading .copy')"
    tab.evaluate(f"{button}.click()")
    tab.evaluate("new Promise(done => setTimeout(done, 300))")
    assert tab.evaluate(f"{button}.textContent") == "Copied"
    copied = tab.evaluate("navigator.clipboard.readText()")
    assert copied == tab.evaluate("document.querySelector('#loading pre').textContent")
    assert copied.startswith("truncate-kit encode texts.txt --model ")


def test_a_browser_without_a_clipboard_selects_the_lines(tab):
    tab.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    tab.evaluate("document.querySelector('#loading .copy').click()")
    assert tab.evaluate("getSelection().toString()").startswith("truncate-kit encode texts.txt")


def test_the_first_tab_skips_to_the_results(tab):
    tab.press("Tab", 9)
    assert tab.evaluate("document.activeElement.getAttribute('href')") == "#main"
    assert tab.evaluate("document.activeElement.getBoundingClientRect().left") >= 0


def test_the_theme_can_be_changed_and_is_the_readers_at_first(browser, made, tab):
    paper = "getComputedStyle(document.body).backgroundColor"
    assert tab.evaluate(paper) == "rgb(255, 255, 255)"
    dark = Tab(browser, scheme="dark").open(made)
    assert dark.evaluate(paper) != "rgb(255, 255, 255)"
    dark.evaluate("document.getElementById('theme').click()")
    assert dark.evaluate(paper) == "rgb(255, 255, 255)"
    ink = "getComputedStyle(document.querySelector('svg text')).fill"
    tab.evaluate("document.getElementById('theme').click()")
    assert tab.evaluate(ink) != "rgb(0, 0, 0)"  # charts follow


def test_a_phone_needs_no_scrolling_to_the_side(browser, page):
    tab = Tab(browser, width=390, height=844).open(page)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.evaluate("[...document.querySelectorAll('figure svg')].every(svg => svg.clientWidth > 300)")
    # Lean against full is read without a swipe, and no word of it is broken or runs into the next cell.
    assert tab.evaluate("getComputedStyle(document.querySelector('#against table')).display") == "block"
    assert tab.evaluate("document.querySelector('#against table').role") == "table"  # which blocks do not have
    cells = "[...document.querySelectorAll('#against :is(th, td)')]"
    assert tab.evaluate(f"{cells}.length") > 20
    assert tab.evaluate(f"{cells}.every(one => one.scrollWidth <= one.clientWidth)")
    assert tab.evaluate("document.querySelector('#against td:last-child').getBoundingClientRect().right") <= 390


def test_no_line_breaks_within_an_option(browser, made):
    tab = Tab(browser, width=390).open(made)
    lines = """(() => {
        let most = 0;
        for (let width = 250; width < 390; width += 7) {
            document.body.style.width = `${width}px`;
            document.querySelectorAll(".option").forEach(one => most = Math.max(most, one.getClientRects().length));
        }
        return most;
    })()"""
    assert tab.evaluate(lines) == 1


def test_it_prints_with_every_table_open(browser, made, tmp_path):
    tab = Tab(browser, scheme="dark").open(made)
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    tab.printed(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.evaluate("document.querySelectorAll('details[open]').length") == 0
