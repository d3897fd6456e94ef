"""The page for people: in a real browser, its figures are those of the file, by mouse, keyboard and phone, and nothing leaves it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p import predict_energy, sweep
from pie_p.cli import main
from pie_p.errors import InputError
from pie_p.report_html import report_html, write_report
from pie_p.report_html.words import GLOSSARY, PLACES, PREDICTION_WORDS, SWEEP_WORDS
from pie_p.result_files import checked
from pie_p.wording import change

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
PREDICTION = predict_energy("mixtral-8x7b", gpu="h100-sxm-80gb", tp=2, pp=2, ep=2, batch=8, prompt_tokens=500, output_tokens=300)
PLANS = sweep("llama-3.1-70b", gpus=["h100-sxm-80gb", "b200-sxm-180gb"], tp=[2, 3, 4, 8], prompt_tokens=500, output_tokens=300)
MORE = {
    "tree": PREDICTION.tree(6),
    "what_if": [json.loads(json.dumps(PREDICTION.what_if(gpu="a100-sxm-80gb").to_dict()))],
    "footprint": PREDICTION.footprint(grid_g_per_kwh=380, price_per_kwh=0.2, currency="EUR").to_dict(),
}
ANSWERS: dict[str, dict[str, Any]] = {
    "prediction": PREDICTION.to_dict() | MORE,
    "sweep": json.loads(json.dumps(PLANS.to_dict())),
}


def page(answer: dict[str, Any]) -> str:
    return report_html(checked(answer, what="it"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both pages as files."""
    folder = tmp_path_factory.mktemp("pages")
    for name, answer in ANSWERS.items():
        (folder / f"{name}.html").write_text(page(answer), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in ANSWERS}


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
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    try:
        driver = Chrome(options=options, service=Service(str(DRIVER)))
    except WebDriverException as error:
        pytest.skip(f"Chromium does not start here: {str(error.msg)[:200]}")
    yield driver
    driver.quit()


def opened(browser: Any, place: Path, *, width: int = 1100, dark: bool = False) -> Any:
    """The page at a width, in light or dark."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get(place.as_uri())
    return browser


def press(browser: Any, *keys: str) -> Any:
    """Keys to wherever the focus is; what has it then."""
    from selenium.webdriver import ActionChains

    ActionChains(browser).send_keys(*keys).perform()
    return browser.switch_to.active_element


def tab_to(browser: Any, selector: str) -> Any:
    """Tab until something that matches has the focus."""
    from selenium.webdriver.common.keys import Keys

    for _ in range(80):
        element = press(browser, Keys.TAB)
        if browser.execute_script("return arguments[0].matches(arguments[1])", element, selector):
            return element
    raise AssertionError(f"80 times Tab did not reach {selector}")


def at_path(answer: Any, path: str) -> float:
    if path.endswith(".total_j"):
        return float(sum(answer[path.split(".")[0]].values()))
    for part in path.split("."):
        answer = answer[int(part)] if isinstance(answer, list) else answer[part]
    return float(answer)


@pytest.mark.parametrize("name", ANSWERS)
def test_it_loads_without_an_error_and_asks_nobody_for_anything(browser: Any, pages: dict[str, Path], name: str) -> None:
    browser.get_log("performance")
    opened(browser, pages[name])
    time.sleep(0.3)
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("data:")] == [pages[name].as_uri()]
    assert len(browser.find_elements("css selector", "h1")) == 1


@pytest.mark.parametrize("name", ANSWERS)
def test_figures_on_the_page_are_those_of_the_file(browser: Any, pages: dict[str, Path], name: str) -> None:
    opened(browser, pages[name])
    figures = browser.execute_script(
        "return [...document.querySelectorAll('data')].map(d => [d.dataset.key, d.value, d.textContent, Number(d.dataset.scale || 1)])"
    )
    assert {"prediction": "footprint.carbon_g", "sweep": "tried"}[name] in {key for key, *_ in figures}
    for key, value, shown, times in figures:
        exact = at_path(ANSWERS[name], key)
        assert float(value) == pytest.approx(exact, rel=1e-12)
        number, _, unit = shown.partition(" ")
        scale = {"k": 1e3, "M": 1e6, "m": 1e-3, "µ": 1e-6}.get(unit[:1], 1.0) if len(unit) == 2 else 1.0
        assert float(number.replace(",", "")) * scale == pytest.approx(times * exact, rel=6e-3)


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("width", [320, 375, 768])
def test_a_phone_scrolls_down_only(browser: Any, pages: dict[str, Path], name: str, width: int) -> None:
    opened(browser, pages[name], width=width)
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_the_tree_opens_by_tab_and_enter_and_adds_up(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, pages["prediction"])
    tree = ANSWERS["prediction"]["tree"]
    seen = (
        "return Object.fromEntries([...document.querySelectorAll('#parts .amount')].map(a => [a.dataset.path, Number(a.dataset.joules)]))"
    )
    phases = browser.execute_script(seen)
    for phase in ("prefill", "decode"):
        assert phases[phase] == pytest.approx(sum(joules for path, joules in tree.items() if path.split("/")[0] == phase))
    assert sum(phases.values()) == pytest.approx(PREDICTION.breakdown.gpu_j)
    tab_to(browser, "button.block[aria-label^='decode:']")
    focused = press(browser, Keys.ENTER)
    assert focused.get_attribute("class") == "block"  # the focus is not lost
    assert browser.find_element("css selector", "#told").text.startswith("decode: ")
    below = browser.execute_script(seen)
    assert sum(below.values()) == pytest.approx(phases["decode"])
    assert all(path.startswith("decode/") for path in below)
    tab_to(browser, "button.part")
    press(browser, Keys.ENTER)
    trail = [step.text for step in browser.find_elements("css selector", "#trail > *")]
    assert trail[:2] == ["whole request", "decode"]
    assert len(trail) == 3
    browser.find_element("css selector", "#trail button").click()
    assert browser.execute_script(seen) == phases


def test_colours_of_a_block_are_the_kinds_of_its_energy(browser: Any, pages: dict[str, Path]) -> None:
    """The strip of the whole request holds compute, communication and wait in the shares of the breakdown."""
    opened(browser, pages["prediction"])
    strip = browser.find_element("css selector", ".block > i").get_attribute("style")
    ends = [float(end) for end in re.findall(r"([\d.]+)%(?:,|\))", strip)]
    parts = ANSWERS["prediction"]["breakdown"]
    whole = sum(parts.values())
    compute, communication = parts["compute_j"] / whole, parts["communication_j"] / whole
    assert ends == pytest.approx([100 * compute, 100 * (compute + communication), 100.0], abs=0.02)


def test_a_limit_chooses_what_the_library_chooses(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["sweep"])

    def chosen() -> dict[str, Any]:
        box = browser.find_element("css selector", "#choice")
        return {} if "empty" in box.get_attribute("class") else ANSWERS["sweep"]["candidates"][int(box.get_attribute("data-plan"))]

    def typed(**limits: str) -> None:
        for field in browser.find_elements("css selector", "form.limits input"):
            field.clear()
            if field.get_attribute("name") in limits:
                field.send_keys(limits[field.get_attribute("name")])

    def plain(candidate: Any) -> Any:
        return json.loads(json.dumps(candidate.to_dict()))

    assert chosen() == plain(PLANS.best())
    typed(tpot_s="20")
    assert chosen() == plain(PLANS.best(max_tpot_s=0.02))
    typed(tpot_s="20", ttft_s="70", gpus="4", margin="5")
    assert chosen() == plain(PLANS.best(max_tpot_s=0.02, max_ttft_s=0.07, max_gpus=4, margin=0.05))
    typed(latency_s="0.01")
    assert chosen() == {}
    assert "No plan keeps these limits" in browser.find_element("css selector", "#choice").text
    assert browser.find_element("css selector", "#count").text == "0 of 0 plans"


def test_points_are_reached_by_keyboard_and_show_their_figures(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, pages["sweep"])
    answer = ANSWERS["sweep"]
    assert len(browser.find_elements("css selector", ".dot")) == len(answer["candidates"])
    tab_to(browser, ".dot")
    for place in answer["front"][:3]:
        box = browser.find_element("css selector", "#point")
        assert int(box.get_attribute("data-plan")) == place
        for figure in box.find_elements("css selector", "dd"):
            assert float(figure.get_attribute("data-value")) == answer["candidates"][place][figure.get_attribute("data-name")]
        press(browser, Keys.ARROW_RIGHT)
    assert len(browser.find_elements("css selector", ".dot[tabindex='0']")) == 1  # Tab goes on to the table
    assert "dot" not in (press(browser, Keys.TAB).get_attribute("class") or "")


def test_the_table_is_sorted_by_enter_and_shows_every_plan(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, pages["sweep"])
    candidates = ANSWERS["sweep"]["candidates"]
    rows = "return [...document.querySelectorAll('#plans tbody tr')].map(row => Number(row.dataset.i))"

    def order(name: str) -> list[float]:
        return [candidates[place][name] for place in browser.execute_script(rows)]

    assert order("energy_per_output_token_j") == sorted(each["energy_per_output_token_j"] for each in candidates)[:25]
    tab_to(browser, "th[data-name='latency_s'] button")
    press(browser, Keys.ENTER)
    assert order("latency_s") == sorted(each["latency_s"] for each in candidates)[:25]
    press(browser, Keys.ENTER)
    assert browser.find_element("css selector", "th[data-name='latency_s']").get_attribute("aria-sort") == "descending"
    assert order("latency_s") == sorted((each["latency_s"] for each in candidates), reverse=True)[:25]
    while browser.find_element("css selector", "#more").is_displayed():
        browser.find_element("css selector", "#more").click()
    assert sorted(browser.execute_script(rows)) == list(range(len(candidates)))
    browser.find_element("css selector", "#plans tbody button").click()
    assert "chosen" in browser.find_element("css selector", "#plans tbody tr").get_attribute("class")


def luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ANSWERS)
def test_text_is_readable_in_light_and_dark(browser: Any, pages: dict[str, Path], name: str, dark: bool) -> None:
    """Contrast of at least 4.5 to 1 (WCAG 2.1, success criterion 1.4.3), against the page and against cards."""
    opened(browser, pages[name], dark=dark)
    grounds = browser.execute_script(
        "const s = getComputedStyle(document.body); const c = document.createElement('div'); document.body.append(c);"
        "c.style.background = 'var(--card)'; return [s.backgroundColor, getComputedStyle(c).backgroundColor]"
    )
    assert (luminance(grounds[0]) < 0.1) == dark
    inks = browser.execute_script(
        "return [...document.querySelectorAll('p, dt, dd, h1, h2, h3, td, th, li, span, button, summary')]"
        ".map(e => getComputedStyle(e).color)"
    )
    for ink in set(inks):
        for ground in grounds:
            light, deep = sorted((luminance(ink), luminance(ground)), reverse=True)
            assert (light + 0.05) / (deep + 0.05) >= 4.5, (ink, ground)


@pytest.mark.parametrize("name", ANSWERS)
def test_what_can_be_used_says_what_it_is(browser: Any, pages: dict[str, Path], name: str) -> None:
    opened(browser, pages[name])
    nameless = browser.execute_script(
        "return [...document.querySelectorAll('button, input, [tabindex=\"0\"], summary')]"
        ".filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') || e.closest('label'))).map(e => e.outerHTML)"
    )
    assert nameless == []
    assert browser.execute_script("return document.documentElement.lang") == "en"


def test_a_hostile_name_stays_text(browser: Any, tmp_path: Path) -> None:
    bad = "</script><img src=x onerror=\"document.title='owned'\"><b>"
    answer = ANSWERS["prediction"] | {"llm": bad, "warnings": [bad], "tree": {f"decode/{bad}": 5.0, "prefill": 1.0}}
    plans = ANSWERS["sweep"] | {"llm": bad}
    plans["candidates"] = [each | {"gpu": bad, "warnings": [bad]} for each in plans["candidates"]]
    plans["infeasible"] = [each | {"reason": bad} for each in plans["infeasible"]]
    for name, hostile in (("p", answer), ("s", plans)):
        place = tmp_path / f"{name}.html"
        place.write_text(page(hostile), encoding="utf-8")
        opened(browser, place)
        time.sleep(0.1)
        assert browser.find_elements("css selector", "img") == []
        assert bad in browser.title
        assert browser.get_log("browser") == []


def test_a_file_without_a_tree_gets_one_where_its_question_can_be_asked_again() -> None:
    whole, bare = page(ANSWERS["prediction"]), page(PREDICTION.to_dict())
    assert "decode/layer/attention/qkv_proj" in bare
    assert "twice the batch (16)" in whole


def test_what_if_figures_are_predictions() -> None:
    question: dict[str, Any] = {"tp": 2, "pp": 2, "ep": 2, "prompt_tokens": 500, "output_tokens": 300}
    text = page(ANSWERS["prediction"])
    for words, changed in (
        (r"twice the batch", {"gpu": "h100-sxm-80gb", "batch": 16}),
        (r"gpu h100-sxm-80gb -&gt; a100-sxm-80gb", {"gpu": "a100-sxm-80gb", "batch": 8}),
    ):
        ratio = predict_energy("mixtral-8x7b", **question, **changed).energy_j / PREDICTION.energy_j
        shown = re.search(rf"{words}.*?<td>(.*?)</td>", text)
        assert shown
        assert shown[1] == change(ratio).replace(" ", "&nbsp;").replace("-", "−")


@pytest.mark.parametrize("changed", [{"llm": "my-own-llm"}, {"predictor": {"name": "default", "sha256": "0" * 64}}, {"latency_s": 1.0}])
def test_a_question_that_cannot_be_asked_again_gets_no_what_if(changed: dict[str, Any]) -> None:
    text = page(PREDICTION.to_dict() | changed)
    assert "This question cannot be asked again here" in text
    assert "its question cannot be asked again here" in text  # nor a tree


@pytest.mark.parametrize("scope", [{"scope": "host"}, {"scope": "facility", "pue": 1.4}])
def test_every_part_of_a_wider_scope_is_shown(scope: dict[str, Any]) -> None:
    answer = predict_energy("llama-3.1-8b", gpu="l40s-48gb", prompt_tokens=100, output_tokens=0, predictor="physics", **scope).to_dict()
    text = page(answer)
    for name in answer["breakdown"]:
        assert f'data-key="breakdown.{name}"' in text
    assert "was not tested for this predictor" in text  # no interval
    assert "twice the batch" in text
    assert '"whole":"GPU boards"' in text  # the tree holds less than the total


def test_a_sweep_without_a_feasible_plan_is_a_page_too() -> None:
    none = sweep("llama-3.1-70b", gpus="t4-16gb", tp=[1, 3], pp=1, prompt_tokens=5, output_tokens=5)
    text = page(json.loads(json.dumps(none.to_dict())))
    assert "take 141.1 GB" in text
    assert "does not divide the 64 query heads" in text
    assert "<svg" not in text


def test_a_large_sweep_draws_a_part_and_lists_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pie_p.report_html.sweeps.MOST_POINTS", 10)
    text = page(ANSWERS["sweep"])
    drawn = {int(number) for number in re.findall(r'data-i="(\d+)"', text)}
    assert drawn >= set(ANSWERS["sweep"]["front"])
    assert len(drawn) < len(PLANS)
    assert f"of {len(PLANS):,}, the front among them" in text
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert data
    assert len(json.loads(data[1])["plans"]) == len(PLANS)


def test_every_word_is_explained() -> None:
    assert {*PREDICTION_WORDS, *SWEEP_WORDS} == {*GLOSSARY}
    paths = {part for path in ANSWERS["prediction"]["tree"] for part in path.split("/")}
    assert paths <= {*PLACES}


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(list(words))
    return int(stopped.value.code or 0)


def test_the_command_writes_the_page_of_what_the_file_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, answer in ANSWERS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(answer), encoding="utf-8")
        out = tmp_path / f"{name}.html"
        assert run("report", str(tmp_path / f"{name}.json"), "-o", str(out), "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"out": str(out), "kind": name, "bytes": out.stat().st_size}
        assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert run("report", str(tmp_path / "sweep.json"), "-o", str(out)) == 0
    assert capsys.readouterr().out == f"sweep written to {out}; open it in a browser\n"


def test_a_pipe_is_read_too(tmp_path: Path) -> None:
    script = "from pie_p.cli import main; main()"
    for content, code in ((json.dumps(ANSWERS["prediction"]), 0), ('{"energy_j"', 2), ("", 2)):
        out = tmp_path / f"{len(content)}.html"
        words = [sys.executable, "-c", script, "report", "-", "-o", str(out)]
        done = subprocess.run(words, input=content, capture_output=True, text=True, check=False)
        assert (done.returncode, out.exists()) == (code, code == 0)
        if code:
            assert re.fullmatch(r"InputError: standard input is (empty|not whole JSON).*\n", done.stderr)
        else:
            assert done.stdout == f"prediction written to {out}; open it in a browser\n"


@pytest.mark.parametrize(
    ("content", "text"), [('{"energy_j": 1', "is not whole JSON"), ("{}", "is neither a prediction nor a sweep"), (None, "no result at")]
)
def test_the_command_refuses_anything_else_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, text: str
) -> None:
    if content is not None:
        (tmp_path / "x.json").write_text(content, encoding="utf-8")
    assert run("report", str(tmp_path / "x.json"), "-o", str(tmp_path / "x.html")) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert text in err
    assert not (tmp_path / "x.html").exists()


def test_a_page_never_overwrites_its_result_and_is_whole_or_not_there(tmp_path: Path) -> None:
    place = tmp_path / "p.json"
    place.write_text(json.dumps(ANSWERS["prediction"]), encoding="utf-8")
    with pytest.raises(InputError, match=r"the page would overwrite"):
        write_report(place, place)
    with pytest.raises(InputError, match=r"cannot write .*; nothing was changed"):
        write_report(place, tmp_path / "none" / "p.html")


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in plain data, the first two of a list."""
    yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, below in pairs:
        yield from paths_of(below, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


SMALL = {
    "prediction": ANSWERS["prediction"] | {"tree": {"decode/layer": 1.0}},
    "sweep": ANSWERS["sweep"] | {"candidates": ANSWERS["sweep"]["candidates"][:3], "front": [0, 2]},
}
PLACES_IN = [(name, path) for name, answer in SMALL.items() for path in paths_of(answer) if "before" not in path and "after" not in path]
ODD = st.sampled_from([None, 0, -1, 1e-300, 1e300, 10**400, float("nan"), float("inf"), "", "x", "\n", [], {}, [None], True, {"a": None}])


@given(place=st.sampled_from(PLACES_IN), odd=ODD)
@settings(max_examples=400)
def test_any_damage_is_a_page_or_one_line(place: tuple[str, tuple[Any, ...]], odd: Any) -> None:
    name, path = place
    try:
        told = page(replaced(SMALL[name], path, odd))
    except InputError as error:
        told = str(error)
    assert told.startswith("<!doctype html>") or "\n" not in told
