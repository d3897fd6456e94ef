"""The page of a sweep: a chooser, a picture to point at, a table to sort, and what cannot run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from pie_p.report_html.page import folded, glossary, page, provenance, section, shown, tiles
from pie_p.report_html.words import SCOPE_SENTENCES, SWEEP_WORDS, WHY_HEADS
from pie_p.scatter import scatter_svg
from pie_p.wording import degrees

MOST_POINTS: Final = 4000  # drawn; the table, the chooser and the front take all
MOST_REASONS: Final = 200  # listed by name for each kind
FIELDS: Final = (
    "gpu", "gpus", "tp", "pp", "dp", "ep", "batch", "dtype", "engine", "power_limit_w", "energy_j", "energy_per_output_token_j",
    "interval_low_j", "interval_high_j", "latency_s", "ttft_s", "tpot_s", "tokens_per_s", "tokens_per_s_per_gpu", "avg_power_w",
    "memory_share", "warnings",
)  # fmt: skip


def sweep_page(answer: Mapping[str, Any], *, source: str = "") -> str:
    """The page of what `Sweep.to_dict()` says.

    Args:
        answer: checked by `pie_p.result_files`.
        source: name of the file.
    """
    candidates, objective = answer["candidates"], _objective(answer)
    names = _names(candidates)
    body = _summary(answer, objective, names)
    if candidates:
        body += _chooser(answer) + _picture(answer, objective, names) + _table()
    body += _refused(answer["infeasible"]) + glossary(SWEEP_WORDS) + _provenance(answer, source)
    title = f"Which plan for {answer['llm']}?"
    lead = escape(
        f"Every plan that was tried to serve requests of {answer['prompt_tokens']:g} prompt and {answer['output_tokens']:g} output tokens, "
        "with the energy and the time each would take. Predicted, not measured."
    )
    data = {
        "objective": objective,
        "fields": FIELDS,
        "plans": [[each.get(name) for name in FIELDS] for each in candidates],
        "names": names,
        "front": answer["front"],
    }
    return page(title=title, lead=lead, body=body, scripts=("plans.js",), data=data)


def _objective(answer: Mapping[str, Any]) -> str:
    return "energy_per_output_token_j" if answer["output_tokens"] else "energy_j"


def _names(candidates: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every plan in words, with what all plans share left out."""
    apart = [name for name in ("dtype", "engine") if len({each[name] for each in candidates}) > 1]
    limits: dict[str, set[float]] = {}
    for each in candidates:
        limits.setdefault(each["gpu"], set()).add(each["power_limit_w"])
    return [_name(each, apart, capped=len(limits[each["gpu"]]) > 1) for each in candidates]


def _name(each: Mapping[str, Any], apart: Sequence[str], *, capped: bool) -> str:
    words = [f"{each['gpus']} × {each['gpu']}", degrees(each), f"batch {each['batch']:g}", *(str(each[name]) for name in apart)]
    return ", ".join([*words, *([f"{each['power_limit_w']:g} W"] if capped else [])])


def _summary(answer: Mapping[str, Any], objective: str, names: Sequence[str]) -> str:
    candidates = answer["candidates"]
    tried = answer["tried"]
    counts = [
        (
            "plans tried",
            f'<data value="{tried}" data-key="tried">{tried:,}</data>',
            f"{len(candidates):,} can run, {tried - len(candidates):,} cannot",
        )
    ]
    if candidates:
        cheap, quick = (min(range(len(candidates)), key=lambda n, key=key: candidates[n][key]) for key in (objective, "latency_s"))  # type: ignore[misc]
        unit = "per output token" if objective == "energy_per_output_token_j" else "per request"
        counts.append(
            (
                "least energy",
                shown(candidates[cheap][objective], "J", f"candidates.{cheap}.{objective}"),
                f"{unit}: {names[cheap]}",
            )
        )
        counts.append(
            (
                "fastest answer",
                shown(candidates[quick]["latency_s"], "s", f"candidates.{quick}.latency_s"),
                names[quick],
            )
        )
    scope = f'<p class="about">{escape(SCOPE_SENTENCES[answer["scope"]])}</p>'
    return section("In short", tiles(counts) + scope)


def _chooser(answer: Mapping[str, Any]) -> str:
    asked = [("latency_s", "whole answer within", "s", "1")]
    if answer["output_tokens"]:
        asked = [("tpot_s", "time per token at most", "ms", "1e-3"), ("ttft_s", "first token within", "ms", "1e-3"), *asked]
    fields = [*asked, ("gpus", "GPUs at most", "", "1"), ("margin", "safety margin", "%", "1e-2")]
    inputs = "".join(
        f'<label>{escape(words)}{f" [{unit}]" if unit else ""}<input type="number" inputmode="decimal" min="0" step="any" name="{name}" '
        f'data-scale="{scale}" placeholder="{"0" if name == "margin" else "any"}"></label>'
        for name, words, unit, scale in fields
    )
    about = (
        "Say what the service must keep; the plan of least energy that keeps it stands below. Predicted times may be off: with a margin of "
        "5 %, about one choice in ten still breaks its limit on LLMs the method had never seen."
    )
    content = f'<form class="limits">{inputs}</form><div id="choice" class="choice" aria-live="polite"></div>'
    return section("Choose", content, about=about)


def _picture(answer: Mapping[str, Any], objective: str, names: Sequence[str]) -> str:
    candidates = answer["candidates"]
    boards = list(dict.fromkeys(each["gpu"] for each in candidates))
    drawn = _drawn(len(candidates), answer["front"])
    places = {n: place for place, n in enumerate(drawn)}
    unit = "token" if objective == "energy_per_output_token_j" else "request"
    picture = scatter_svg(
        [candidates[n]["latency_s"] for n in drawn],
        [candidates[n][objective] for n in drawn],
        front=[places[n] for n in answer["front"]],
        x_label="whole answer takes [s]",
        y_label=f"energy per {unit} [J]",
        titles=[f"{names[n]}: {candidates[n][objective]:.3g} J, {candidates[n]['latency_s']:.3g} s" for n in drawn],
        numbers=drawn,
        colours=[boards.index(candidates[n]["gpu"]) % 8 for n in drawn],
    )
    keys = "".join(f'<li><i style="background:var(--g{n % 8})"></i>{escape(board)}</li>' for n, board in enumerate(boards))
    note = "" if len(drawn) == len(candidates) else f" Drawn are {len(drawn):,} of {len(candidates):,}, the front among them."
    about = (
        "Each point is a plan: further left is faster, further down takes less energy. The large points are the Pareto front: no other "
        f"plan beats them in both. Point at one, or reach it with Tab; the arrow keys go along the front.{note}"
    )
    content = f'<ul class="boards">{keys}</ul><div id="picture">{picture}</div><div id="point" class="choice" aria-live="polite"></div>'
    return section("Energy against time", content, about=about)


def _drawn(count: int, front: Sequence[int]) -> list[int]:
    """Which candidates are drawn: all, or the front and an even thinning of the others."""
    every = max(1, -(-count // MOST_POINTS))
    return sorted({*range(0, count, every), *front})


def _table() -> str:
    about = "Choose a heading to sort by it, and a plan to find it in the picture. Plans that break the limits above are left out."
    content = (
        '<div class="scroll" tabindex="0" role="region" aria-label="Every plan that can run">'
        '<table id="plans"><thead></thead><tbody></tbody></table></div>'
        '<p id="count" class="about" aria-live="polite"></p><button type="button" class="more" id="more" hidden>Show more</button>'
        "<noscript><p>This table needs JavaScript; the file this page was made of holds the same figures.</p></noscript>"
    )
    return section("Every plan", content, about=about)


def _refused(infeasible: Sequence[Mapping[str, Any]]) -> str:
    if not infeasible:
        return ""
    parts = []
    for why in dict.fromkeys(each["why"] for each in infeasible):
        own = [each for each in infeasible if each["why"] == why]
        count = sum(each["configurations"] for each in own)
        items = "".join(f"<li><b>{escape(_where(each))}</b> <span>{escape(each['reason'])}</span></li>" for each in own[:MOST_REASONS])
        more = f"<li>and {len(own) - MOST_REASONS:,} more of this kind</li>" if len(own) > MOST_REASONS else ""
        parts.append(folded(f"{WHY_HEADS.get(why, why)} ({count:,})", f'<ul class="reasons">{items}{more}</ul>'))
    return section(
        "What cannot run, and why",
        "".join(parts),
        about="Nothing was left out in silence; in brackets how many of the plans tried.",
        name="refused",
    )


def _where(each: Mapping[str, Any]) -> str:
    batch = "" if each["batch"] is None else f", batch {each['batch']:g}"
    return f"{each['gpu']}, {degrees(each)}{batch}, {each['dtype']}"


def _provenance(answer: Mapping[str, Any], source: str) -> str:
    made = answer["predictor"]
    entries: list[tuple[str, object]] = [
        (name, answer[name])
        for name in ("llm", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "scope", "pue")
        if answer.get(name) is not None
    ]
    engines = sorted({each["engine"] for each in answer["candidates"]})
    entries += [("engine", ", ".join(engines) or "–"), ("predictor", made["name"]), ("predictor's checksum", made["sha256"])]
    if source:
        entries.append(("file", source))
    return provenance(entries, None, about="The same question to the same predictor gives the same answers.")
