"""The card of a notebook: the figures of the answer, escaped, self-contained, readable on any paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p import Prediction, load_gpu, predict_energy
from pie_p.card import COLOURS, prediction_card
from pie_p.wording import PART_WORDS, SCOPE_WORDS, quantity, share

TAGS = {"div", "style", "span", "b", "i", "ul", "li", "dl", "dt", "dd", "details", "summary", "table", "tbody", "tr", "th", "td", "code"}
CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
VOID = {"br", "img", "hr", "meta", "link", "input"}


class Page(HTMLParser):
    """Tags, attributes and text of a piece of HTML; an unbalanced tag is a mistake."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def predicted(**more: Any) -> Prediction:
    return predict_energy("llama-3.1-8b", **{"gpu": "h100-sxm-80gb", "prompt_tokens": 200, "output_tokens": 100, **more})


MANY: list[dict[str, Any]] = [
    {},
    {"tp": 2, "batch": 16},
    {"scope": "host"},
    {"scope": "facility", "pue": 1.3, "exclusive_host": True},
    {"output_tokens": 0},
    {"predictor": "physics"},
    {"batch": 5000, "dtype": "fp8", "gpu": "a100-sxm-80gb"},
]


@pytest.mark.parametrize("more", MANY, ids=str)
def test_it_shows_total_interval_scope_parts_phases_warnings_and_provenance(more: dict[str, Any]) -> None:
    p = predicted(**more)
    text = Page(p._repr_html_()).text
    assert f"{quantity(p.energy_j, 'J')} per request" in text
    if p.spread is not None:
        low_j, high_j = p.interval(0.9)
        assert f"90 % interval {quantity(low_j, 'J')} to {quantity(high_j, 'J')}" in text
    else:
        assert "no tested interval" in text
    assert SCOPE_WORDS[p.scope] in text
    for name, value in p.breakdown.to_dict().items():
        assert f"{PART_WORDS[name][0]} {quantity(value, 'J')} {share(value, p.energy_j)}" in text
    for phase in ("prefill", "decode"):
        own = getattr(p, phase).total_j
        assert f"{phase} {quantity(own, 'J')} {share(own, p.energy_j)}" in text
    for word in (*p.warnings, p.engine, p.cluster, p.predictor["name"], p.predictor["sha256"][:12], p.deployment.llm.name):
        assert word in text
    assert "None" not in text


@pytest.mark.parametrize("more", MANY, ids=str)
def test_bars_are_as_wide_as_the_parts_of_the_energy(more: dict[str, Any]) -> None:
    p = predicted(**more)
    html = p._repr_html_()
    bars = re.findall(r'<div class="pp-bar[^>]*>(.*?)</div>', html)
    assert len(bars) == 3
    for bar, parts in zip(bars, (p.breakdown, p.prefill, p.decode), strict=True):
        widths = {colour: float(width) for width, colour in re.findall(r"width:([\d.]+)%;background:(#\w+)", bar)}
        for name, value in parts.to_dict().items():
            assert widths.get(COLOURS[name], 0.0) == pytest.approx(100 * max(value, 0.0) / p.energy_j, abs=0.001)


def test_the_largest_places_come_first_and_the_rest_is_summed() -> None:
    p = predicted(tp=2)
    text = Page(p._repr_html_()).text
    largest = max(p.tree(4).items(), key=lambda item: item[1])
    assert f"the largest operators and waits {largest[0]} {quantity(largest[1], 'J')} {share(largest[1], p.energy_j)}" in text
    assert f"{len(p.tree(4)) - 8} more" in text


def test_it_needs_no_script_and_no_network_and_leaves_the_page_around_it_alone() -> None:
    html = predicted(tp=2)._repr_html_()
    page = Page(html)
    assert {tag for tag, _ in page.tags} <= TAGS
    assert not re.search(r"https?:|url\(|@import|javascript:|\son\w+=", html)
    style = re.search(r"<style>(.*)</style>", html, flags=re.DOTALL)
    assert style
    selectors = re.findall(r"(?:^|[}{])\s*([^{}@]+)\{", style[1])
    assert selectors
    assert all(part.strip().startswith(".pie-p") for selector in selectors for part in selector.split(","))


def test_paper_and_ink_come_from_the_same_place() -> None:
    """JupyterLab's and VS Code's variables, then the browser's preference: never the ink of one on the paper of another."""
    html = predicted()._repr_html_()
    assert "background:var(--jp-layout-color1,var(--vscode-editor-background,var(--pp-paper)))" in html
    assert "color:var(--jp-ui-font-color1,var(--vscode-editor-foreground,var(--pp-ink)))" in html
    assert "@media (prefers-color-scheme:dark){.pie-p{--pp-paper:" in html


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, contrast ratio of two colours."""

    def luminance(colour: str) -> float:
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_and_bars_can_be_read_on_light_and_on_dark() -> None:
    style = predicted()._repr_html_()
    papers = re.findall(r"--pp-paper:(#\w+);--pp-ink:(#\w+)", style)
    assert len(papers) == 2
    for paper, ink in papers:
        paper, ink = ("#ffffff" if each == "#fff" else each for each in (paper, ink))
        assert contrast(paper, ink) >= 7
        for colour in COLOURS.values():
            assert contrast(paper, colour) >= 2


def test_bars_are_spoken() -> None:
    p = predicted(scope="host")
    spoken = [attributes["aria-label"] for _, attributes in Page(p._repr_html_()).tags if attributes.get("role") == "img"]
    assert spoken[0] == "whole request: " + ", ".join(
        f"{PART_WORDS[name][0]} {quantity(value, 'J')}" for name, value in p.breakdown.to_dict().items()
    )
    assert [text.partition(":")[0] for text in spoken if text] == ["whole request", "prefill", "decode"]


@settings(max_examples=50)
@given(name=st.text(min_size=1, max_size=40).filter(str.strip))
def test_names_from_outside_are_text_and_nothing_else(name: str) -> None:
    own = load_gpu("h100-sxm-80gb").model_copy(update={"name": name})
    tags = [tag for tag, _ in Page(predicted(gpu=own)._repr_html_()).tags]
    assert tags == [tag for tag, _ in Page(predicted()._repr_html_()).tags] or len(tags) >= 20


def test_markup_in_a_name_stays_text() -> None:
    evil = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"
    own = load_gpu("h100-sxm-80gb").model_copy(update={"name": evil})
    page = Page(predicted(gpu=own)._repr_html_())
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert evil in page.text


def test_a_prediction_without_its_working_has_a_card_without_places() -> None:
    text = Page(prediction_card(predicted().to_dict())).text
    assert "largest operators" not in text
    assert "What the figures stand on" in text


def test_a_what_if_shows_both_answers_and_the_change_and_only_new_warnings() -> None:
    what = predicted(gpu="a100-sxm-80gb", batch=4).what_if(dtype="fp8")
    page = Page(what._repr_html_())
    ratio = what.ratio("energy_j")
    assert ratio is not None
    assert page.text.startswith(f"{100 * (ratio - 1):+.1f} % energy per request, if dtype bf16 -> fp8")
    for p in (what.before, what.after):
        assert quantity(p.energy_j, "J") in page.text
        assert quantity(p.latency_s, "s") in page.text
    [news] = [text for text in what.after.warnings if text not in what.before.warnings]
    assert news in page.text
    assert all(text not in page.text for text in what.before.warnings)
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", what._repr_html_())]
    assert sum(widths) == pytest.approx(100 * (1 + min(ratio, 1 / ratio)), abs=0.01)


# In a real browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium; nothing is downloaded for it."""
    pytest.importorskip("selenium", reason="selenium is not installed")
    if not (CHROMIUM.exists() and DRIVER.exists()):
        pytest.skip(f"no {CHROMIUM} with {DRIVER} here: apt-get install chromium chromium-driver")
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        driver = Chrome(options=options, service=Service(str(DRIVER)))
    except WebDriverException as error:
        pytest.skip(f"Chromium does not start here: {str(error.msg)[:200]}")
    yield driver
    driver.quit()


def shown(browser: Any, folder: Path, html: str, *, theme: str = "", prefers: str = "light", width: int = 800) -> None:
    """Open a card as the output of a cell, in a page whose theme sets these variables."""
    page = folder / "card.html"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><style>:root{{{theme}}}</style><div style="width:{width}px">{html}</div>', "utf-8"
    )
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": prefers}]})
    browser.get(page.as_uri())
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def ink_and_paper(browser: Any, selector: str) -> tuple[str, str]:
    """Colours that the browser computes, the ink mixed with the paper where it is see-through."""
    script = """const e = document.querySelector(arguments[0]), card = document.querySelector('.pie-p');
    const rgb = c => c.match(/[\\d.]+/g).slice(0, 3).map(Number);
    let share = 1; for (let n = e; n !== card.parentNode; n = n.parentNode) share *= Number(getComputedStyle(n).opacity);
    const paper = rgb(getComputedStyle(card).backgroundColor), ink = rgb(getComputedStyle(e).color);
    return [ink.map((c, i) => Math.round(share * c + (1 - share) * paper[i])), paper]"""
    ink, paper = browser.execute_script(script, selector)
    return tuple("#" + "".join(f"{channel:02x}" for channel in colour) for colour in (ink, paper))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("theme", "prefers", "dark"),
    [
        ("", "light", False),
        ("", "dark", True),
        ("--jp-layout-color1:white;--jp-ui-font-color1:rgba(0,0,0,.87)", "dark", False),  # JupyterLab's light theme on a dark desktop
        ("--jp-layout-color1:#111111;--jp-ui-font-color1:#ffffff", "light", True),
        ("--vscode-editor-background:#1e1e1e;--vscode-editor-foreground:#d4d4d4", "light", True),
    ],
    ids=["light", "dark", "JupyterLab light", "JupyterLab dark", "VS Code dark"],
)
def test_it_can_be_read_in_every_theme(browser: Any, tmp_path: Path, theme: str, prefers: str, dark: bool) -> None:
    """WCAG 2.2: 7 for text, 4.5 for remarks."""
    shown(browser, tmp_path, predicted(scope="facility", pue=1.2)._repr_html_(), theme=theme, prefers=prefers)
    ink, paper = ink_and_paper(browser, ".pp-big")
    assert contrast(ink, paper) >= 7
    assert contrast(paper, "#ffffff") > 7 if dark else contrast(paper, "#ffffff") < 1.2
    for selector in (".pp-dim", ".pp-facts dt", "summary"):
        assert contrast(*ink_and_paper(browser, selector)) >= 4.5, selector


@pytest.mark.parametrize("width", [320, 390, 800])
@pytest.mark.parametrize("what", ["prediction", "what-if"])
def test_nothing_sticks_out_of_it_at_any_width(browser: Any, tmp_path: Path, width: int, what: str) -> None:
    p = predicted(gpu="a100-sxm-80gb", batch=3000, dtype="fp8", scope="facility", pue=1.3)
    shown(
        browser, tmp_path, p._repr_html_() if what == "prediction" else p.what_if(gpu="h100-sxm-80gb", batch=10)._repr_html_(), width=width
    )
    script = """document.querySelectorAll('details').forEach(d => d.open = true);
    const card = document.querySelector('.pie-p').getBoundingClientRect();
    const out = [...document.querySelectorAll('.pie-p *')].filter(e => e.getBoundingClientRect().right > card.right);
    return out.map(e => e.outerHTML.slice(0, 90))"""
    assert browser.execute_script(script) == []


def test_the_keyboard_opens_what_is_folded(browser: Any, tmp_path: Path) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    shown(browser, tmp_path, predicted()._repr_html_())
    folded = "return [...document.querySelectorAll('details')].map(d => d.open)"
    assert browser.execute_script(folded) == [False, False]
    ActionChains(browser).send_keys(Keys.TAB, Keys.ENTER, Keys.TAB, Keys.ENTER).perform()
    assert browser.execute_script(folded) == [True, True]
