"""The page of a prediction: what one request costs, where the joules go, and what would change that."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final

from pie_p.report_html.hints import Hint, again, hints
from pie_p.report_html.page import glossary, page, provenance, section, shown, stacked_bar, table, tiles, warnings
from pie_p.report_html.words import COMMUNICATION, PLACES, PREDICTION_WORDS, SCOPE_SENTENCES
from pie_p.units import J_PER_WH
from pie_p.what_if import changes_words
from pie_p.wording import PART_WORDS, change, degrees, quantity, share

LAMP_W: Final = 8.0  # an LED lamp as bright as an old 60 W bulb [W]
DEPTH: Final = 6  # of the operator tree, where the file holds none
ASKED: Final = (
    "llm", "gpu", "gpus", "tp", "pp", "dp", "ep", "batch", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "dtype", "kv_dtype",
    "mode", "engine", "cluster", "power_limit_w", "scope", "pue",
)  # fmt: skip


def prediction_page(answer: Mapping[str, Any], *, source: str = "") -> str:
    """The page of what `Prediction.to_dict()` says, with its `tree` if it is there.

    Args:
        answer: checked by `pie_p.result_files`.
        source: name of the file.
    """
    repeated = again(answer)
    tree = answer.get("tree") or (repeated.tree(DEPTH) if repeated is not None else None)
    body = (
        _hero(answer)
        + _where(answer)
        + _phases(answer)
        + _times(answer)
        + _inside(tree)
        + _what_if(_asked_for(answer) + hints(answer, repeated))
        + _footprint(answer.get("footprint"))
        + warnings(answer["warnings"])
        + glossary(PREDICTION_WORDS)
        + _provenance(answer, source)
    )
    whole = "whole request" if answer["scope"] == "gpu" else "GPU boards"
    data = {"tree": tree, "whole": whole, "words": PLACES, "communication": COMMUNICATION}
    title = f"{answer['llm']} on {answer['gpus']} × {answer['gpu']}"
    return page(title=title, lead=_lead(answer), body=body, scripts=("icicle.js",), data=data)


def _lead(answer: Mapping[str, Any]) -> str:
    one = answer["gpus"] == 1
    split = "on one GPU" if one else f"split over {answer['gpus']} GPUs ({degrees(answer)})"
    cached = answer.get("cached_prompt_tokens")
    reading = f"reads {answer['prompt_tokens']:g} tokens" + (f" ({cached:g} of them known already)" if cached else "")
    together = "alone" if answer["batch"] <= 1 else f"beside {answer['batch'] - 1:g} others on the same replica"
    return escape(
        f"How much energy one request takes that {reading} and writes {answer['output_tokens']:g}, running {together}, {split}, "
        f"with weights in {answer['dtype']}. Predicted from the LLM's shape and the hardware, not measured."
    )


def _hero(answer: Mapping[str, Any]) -> str:
    joules = answer["energy_j"]
    lamp_s = joules / LAMP_W
    lamp = f"{lamp_s / 60:.3g} minutes" if lamp_s >= 120 else f"{lamp_s:.3g} seconds"
    each = answer["energy_per_output_token_j"]
    token = (
        ""
        if each is None
        else f"<p>{shown(each, 'J', 'energy_per_output_token_j')} for each token of the answer, the prompt's share included</p>"
    )
    return (
        '<section class="hero" aria-label="Energy of one request">'
        f'<p class="big">{shown(joules, "J", "energy_j")}</p><p class="unit">per request</p>{_interval(answer)}{token}'
        f"<p>{joules / J_PER_WH:.3g} Wh: what an LED lamp of {LAMP_W:g} W takes in {lamp}</p>"
        f'<p class="scope">{escape(SCOPE_SENTENCES[answer["scope"]])}</p></section>'
    )


def _interval(answer: Mapping[str, Any]) -> str:
    interval = answer.get("interval")
    if interval is None:
        return '<p class="about">How far the truth may lie from this was not tested for this predictor.</p>'
    low, high = interval["low_j"], interval["high_j"]
    end = high * 1.06
    start, width, mark = (100 * value / end for value in (low, high - low, answer["energy_j"]))
    told = f"{quantity(answer['energy_j'], 'J')}, between {quantity(low, 'J')} and {quantity(high, 'J')}"
    return (
        f'<div class="range" role="img" aria-label="{escape(told)}">'
        f'<i style="left:{start:.2f}%;width:{width:.2f}%"></i><b style="left:{mark:.2f}%"></b></div>'
        f"<p>{shown(low, 'J', 'interval.low_j')} to {shown(high, 'J', 'interval.high_j')} in {100 * interval['level']:g} of 100 cases "
        "like this, tested on LLMs the method had never seen</p>"
    )


def _where(answer: Mapping[str, Any]) -> str:
    whole = answer["energy_j"] or 1.0
    parts = [
        (name.removesuffix("_j"), PART_WORDS[name][0], value, shown(value, "J", f"breakdown.{name}"), PART_WORDS[name][1])
        for name, value in answer["breakdown"].items()
        if name in PART_WORDS
    ]
    label = ", ".join(f"{name} {share(value, whole)}" for _, name, value, _, _ in parts)
    return section("Where the energy goes", stacked_bar(parts, whole, label=label), about="The parts add up to the total exactly.")


def _phases(answer: Mapping[str, Any]) -> str:
    whole = answer["energy_j"] or 1.0
    sums = {name: sum(answer[name].values()) for name in ("prefill", "decode")}
    meaning = {"prefill": "reading the prompt, all its tokens at once", "decode": "writing the answer, token after token"}
    parts = [(name, name, value, shown(value, "J", f"{name}.total_j"), meaning[name]) for name, value in sums.items()]
    label = ", ".join(f"{name} {share(value, whole)}" for name, value in sums.items())
    return section("Reading and writing", stacked_bar(parts, whole, label=label))


def _times(answer: Mapping[str, Any]) -> str:
    entries = [
        ("whole answer", shown(answer["latency_s"], "s", "latency_s"), "from the start of reading to the last token"),
        ("first token", shown(answer["ttft_s"], "s", "ttft_s"), "without waiting in a queue"),
        ("each further token", shown(answer["tpot_s"], "s", "tpot_s"), "on average"),
        (
            "power",
            shown(answer["avg_power_w"], "W", "avg_power_w"),
            f"of all {answer['gpus']} GPUs" if answer["gpus"] > 1 else "of the GPU",
        ),
    ]
    return section("Time and power", tiles(entries))


def _inside(tree: Mapping[str, float] | None) -> str:
    if not tree:
        note = "<p>The file holds no operator tree, and its question cannot be asked again here. Ask with <code>--json --tree 6</code>.</p>"
        return section("Inside", note)
    about = (
        "Energy of the GPU boards by part of the work. The width of a block is its share, its strip says of what kind; choose one, with a "
        "click or with Tab and Enter, to look inside it."
    )
    frame = (
        '<nav id="trail" aria-label="Where you are in the tree"></nav><div id="icicle" role="group" aria-label="Parts of the energy"></div>'
        '<p id="told" class="about" aria-live="polite"></p><ul id="parts" class="parts"></ul>'
        "<noscript><p>This picture needs JavaScript; the file below holds the same figures.</p></noscript>"
    )
    return section("Inside", frame, about=about)


def _what_if(found: list[Hint]) -> str:
    if not found:
        return section(
            "What if", "<p>This question cannot be asked again here: its LLM, GPU or predictor is not one that is installed.</p>"
        )
    rows = [
        [
            f"<b>{escape(hint.what)}</b><br><span>{escape(hint.why)}</span>",
            _change(hint.energy_ratio) if hint.energy_ratio is not None else "–",
            _change(hint.latency_ratio) if hint.latency_ratio is not None else escape(hint.refused),
        ]
        for hint in found
    ]
    about = "The same question with one thing changed: energy per request, and time until the whole answer is there."
    return section("What if", table(("change", "energy", "time"), rows, caption="What would change"), about=about)


def _asked_for(answer: Mapping[str, Any]) -> list[Hint]:
    """Changes that the file holds already."""
    found = []
    for each in answer.get("what_if") or []:
        told = {name: (one["before"], one["after"]) for name, one in each["changes"].items()}
        found.append(Hint(changes_words(told), "asked for in the file", each["ratio"]["energy_j"], each["ratio"]["latency_s"]))
    return found


def _footprint(footprint: Mapping[str, Any] | None) -> str:
    """Carbon and cost with the factors they stand on; nothing where none was asked for."""
    if not footprint:
        return ""
    entries = []
    if footprint["carbon_g"] is not None:
        about = f"at {footprint['grid_g_per_kwh']:g} g CO2e per kWh: {footprint['grid']}"
        entries.append(("carbon of one request", shown(footprint["carbon_g"], "g", "footprint.carbon_g"), about))
    if footprint["cost"] is not None:
        price = f"{1e6 * footprint['cost']:,.3g} {footprint['currency']}".strip()
        figure = f'<data value="{footprint["cost"]!r}" data-key="footprint.cost" data-scale="1e6">{escape(price)}</data>'
        about = f"for electricity at {footprint['price_per_kwh']:g} {footprint['currency']} per kWh".replace("  ", " ")
        entries.append(("cost of a million requests", figure, about))
    return section("Carbon and cost", tiles(entries), about="Of the energy above alone, without the making of the hardware.")


def _change(ratio: float) -> str:
    return escape(change(ratio)).replace(" ", "&nbsp;").replace("-", "−")


def _provenance(answer: Mapping[str, Any], source: str) -> str:
    made = answer["predictor"]
    entries: list[tuple[str, object]] = [(name, answer[name]) for name in ASKED if answer.get(name) is not None]
    entries += [("predictor", made["name"]), ("predictor's checksum", made["sha256"])]
    if source:
        entries.append(("file", source))
    about = "Everything that entered the figures. The same question to the same predictor gives the same answer."
    return provenance(entries, {key: value for key, value in answer.items() if key != "tree"}, about=about)
