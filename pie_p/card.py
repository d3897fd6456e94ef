"""Card: what a notebook shows of a prediction, as one piece of HTML out of plain data - no script, no network, every text escaped.

Colours come from JupyterLab's and VS Code's own variables where they exist, else from the browser's preference for light or dark; paper and
ink always come from the same place, so one is never read on the other's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from pie_p.wording import PART_WORDS, SCOPE_WORDS, change, degrees, deployment_words, interval_words, quantity, request_words, share

# Okabe and Ito's colours, told apart by people with any colour vision, on light and on dark paper.
COLOURS: Final = {"compute_j": "#009e73", "communication_j": "#e69f00", "wait_j": "#cc79a7", "host_j": "#56b4e9", "facility_j": "#8f8f8f"}

STYLE: Final = """
.pie-p{--pp-paper:#fff;--pp-ink:#1f2328;--pp-line:rgba(128,128,128,.28);--pp-soft:rgba(128,128,128,.13);max-width:46rem;
padding:.9rem 1.1rem;border:1px solid var(--pp-line);border-radius:10px;font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
background:var(--jp-layout-color1,var(--vscode-editor-background,var(--pp-paper)));
color:var(--jp-ui-font-color1,var(--vscode-editor-foreground,var(--pp-ink)));font-variant-numeric:tabular-nums;box-sizing:border-box}
@media (prefers-color-scheme:dark){.pie-p{--pp-paper:#16191d;--pp-ink:#e6e8eb}}
.pie-p *{box-sizing:border-box}
.pie-p .pp-top{display:flex;flex-wrap:wrap;align-items:baseline;gap:.1rem .9rem;margin:0}
.pie-p .pp-big{font-size:1.75rem;font-weight:650;letter-spacing:-.01em}
.pie-p .pp-unit{font-size:.95rem;font-weight:400}
.pie-p .pp-dim{opacity:.78}
.pie-p .pp-rows{display:grid;grid-template-columns:max-content minmax(3rem,1fr) max-content max-content;gap:.4rem .7rem;
align-items:center;margin:.85rem 0 .55rem}
.pie-p .pp-num{text-align:right;white-space:nowrap}
.pie-p .pp-bar{display:flex;height:1.05rem;border-radius:3px;overflow:hidden;background:var(--pp-soft)}
.pie-p .pp-thin{height:.55rem}
.pie-p .pp-bar>i{display:block;min-width:1px}
.pie-p .pp-key{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:.2rem 0 .1rem;padding:0;list-style:none}
.pie-p .pp-key li{margin:0;white-space:nowrap}
.pie-p .pp-dot{display:inline-block;width:.7em;height:.7em;border-radius:2px;margin-right:.4em}
.pie-p .pp-facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(7rem,1fr));gap:.5rem .8rem;margin:.8rem 0 0;padding-top:.7rem;
border-top:1px solid var(--pp-line)}
.pie-p .pp-facts div{display:flex;flex-direction:column-reverse;justify-content:flex-end}
.pie-p .pp-facts dt,.pie-p .pp-facts dd{margin:0}
.pie-p .pp-facts dt{font-size:.85em;opacity:.78;font-weight:400}
.pie-p .pp-facts dd{font-weight:600}
.pie-p .pp-warn{margin:.8rem 0 0;padding:.4rem .7rem;border-left:3px solid #e69f00;background:var(--pp-soft);
border-radius:0 4px 4px 0;list-style:none}
.pie-p .pp-warn li{margin:.1rem 0}
.pie-p details{margin:.6rem 0 0}
.pie-p summary{cursor:pointer;opacity:.85}
.pie-p table{border-collapse:collapse;margin:.4rem 0 0;font-size:.93em;background:none;color:inherit}
.pie-p td,.pie-p th{padding:.12rem .9rem .12rem 0;text-align:left;background:none;border:0;vertical-align:top;font-weight:400}
.pie-p th{opacity:.78}
.pie-p td.pp-num,.pie-p th.pp-num{text-align:right}
.pie-p code{font:.92em ui-monospace,SFMono-Regular,Menlo,monospace;background:none;color:inherit;overflow-wrap:anywhere}
"""

FACTS: Final = (
    ("energy_per_output_token_j", "J", "per output token"),
    ("latency_s", "s", "latency"),
    ("ttft_s", "s", "to the first token"),
    ("tpot_s", "s", "per later token"),
    ("avg_power_w", "W", "power, all GPUs"),
)
PLACES_SHOWN: Final = 8


def prediction_card(answer: Mapping[str, Any], *, places: Mapping[str, tuple[str, float]] | None = None) -> str:
    """The card of one prediction.

    Args:
        answer: `Prediction.to_dict()`.
        places: energy kind (`compute`, `communication`, `wait`) and energy of each place in the operator tree [J]; None: not kept.
    """
    total = _total(answer["breakdown"])
    return _card(
        _head(answer, total),
        _bars(answer, total),
        _facts(answer),
        _warnings(answer["warnings"]),
        _places(places, total) if places else "",
        _provenance(answer),
    )


def comparison_card(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    what: str,
    figures: Sequence[tuple[str, str, float | None, float | None, float | None]],
) -> str:
    """The card of a what-if.

    Args:
        before: `Prediction.to_dict()` of the question as asked.
        after: of the changed question.
        what: the change in words.
        figures: words, unit, value before, value after and ratio of each figure compared.
    """
    asked = f"{deployment_words(before)}; {request_words(before)} · {SCOPE_WORDS[before['scope']]}"
    head = (
        f'<div class="pp-top"><span class="pp-big">{escape(change(figures[0][4]))}</span>'
        f'<span>energy per request, if <b>{escape(what)}</b></span></div><div class="pp-dim">{escape(asked)}</div>'
    )
    whole = max(_total(before["breakdown"]), _total(after["breakdown"]))
    rows = "".join(_row(word, answer["breakdown"], whole) for word, answer in (("before", before), ("after", after)))
    lines = "".join(
        f'<tr><td>{escape(words)}</td><td class="pp-num">{quantity(old, unit)}</td><td class="pp-num">{quantity(new, unit)}</td>'
        f'<td class="pp-num"><b>{escape(change(ratio))}</b></td></tr>'
        for words, unit, old, new, ratio in figures
    )
    table = (
        '<table><thead><tr><th></th><th class="pp-num">before</th><th class="pp-num">after</th><th class="pp-num">change</th></tr></thead>'
        f"<tbody>{lines}</tbody></table>"
    )
    news = [text for text in after["warnings"] if text not in before["warnings"]]
    return _card(head, f'<div class="pp-rows">{rows}</div>', _key({**before["breakdown"], **after["breakdown"]}), table, _warnings(news))


def _card(*parts: str) -> str:
    return f'<div class="pie-p"><style>{STYLE}</style>{"".join(parts)}</div>'


def _total(parts: Mapping[str, float]) -> float:
    return sum(parts.values())


def _head(answer: Mapping[str, Any], total: float) -> str:
    interval = interval_words(answer)
    bounds = f'<span class="pp-dim">{escape(interval)}</span>' if interval else '<span class="pp-dim">no tested interval</span>'
    return (
        f'<div class="pp-top"><span class="pp-big">{quantity(total, "J")} <span class="pp-unit">per request</span></span>{bounds}</div>'
        f"<div><b>{escape(deployment_words(answer))}</b></div>"
        f'<div class="pp-dim">{escape(request_words(answer))} · {escape(SCOPE_WORDS[answer["scope"]])}</div>'
    )


def _bars(answer: Mapping[str, Any], total: float) -> str:
    rows = [_row("whole request", answer["breakdown"], total), _row("prefill", answer["prefill"], total, thin=True)]
    rows.append(_row("decode", answer["decode"], total, thin=True))
    return f'<div class="pp-rows">{"".join(rows)}</div>{_key(answer["breakdown"], figures=True)}'


def _row(label: str, parts: Mapping[str, float], whole: float, *, thin: bool = False) -> str:
    own = _total(parts)
    texts = [f"{PART_WORDS[name][0]} {quantity(value, 'J')}" for name, value in parts.items()]
    pieces = "".join(
        f'<i style="width:{max(100 * value / whole, 0):.3f}%;background:{COLOURS[name]}" title="{escape(text)}"></i>'
        for (name, value), text in zip(parts.items(), texts, strict=True)
        if value > 0 and whole > 0
    )
    spoken = escape(f"{label}: {', '.join(texts)}")
    bar = f'<div class="pp-bar{" pp-thin" if thin else ""}" role="img" aria-label="{spoken}">{pieces}</div>'
    return f"<span>{escape(label)}</span>{bar}{_figures(own, whole, tag='span')}"


def _figures(part_j: float, whole_j: float, *, tag: str) -> str:
    """A part in joules and as a share, each in a cell of its own."""
    return f'<{tag} class="pp-num">{quantity(part_j, "J")}</{tag}><{tag} class="pp-num pp-dim">{share(part_j, whole_j)}</{tag}>'


def _key(parts: Mapping[str, float], *, figures: bool = False) -> str:
    total = _total(parts)
    items = "".join(
        f'<li title="{escape(PART_WORDS[name][1])}"><span class="pp-dot" style="background:{COLOURS[name]}"></span>{PART_WORDS[name][0]}'
        + (f' <b>{quantity(value, "J")}</b> <span class="pp-dim">{share(value, total)}</span>' if figures else "")
        + "</li>"
        for name, value in parts.items()
    )
    return f'<ul class="pp-key">{items}</ul>'


def _facts(answer: Mapping[str, Any]) -> str:
    facts = [(words, quantity(answer[name], unit)) for name, unit, words in FACTS if answer[name] is not None]
    return f'<dl class="pp-facts">{"".join(f"<div><dt>{escape(words)}</dt><dd>{figure}</dd></div>" for words, figure in facts)}</dl>'


def _warnings(texts: Sequence[str]) -> str:
    return f'<ul class="pp-warn">{"".join(f"<li>{escape(text)}</li>" for text in texts)}</ul>' if texts else ""


def _places(places: Mapping[str, tuple[str, float]], total: float) -> str:
    largest = sorted(places.items(), key=lambda item: -item[1][1])
    rows = "".join(
        f'<tr><td><span class="pp-dot" style="background:{COLOURS[kind + "_j"]}"></span><code>{escape(path)}</code></td>'
        f"{_figures(energy_j, total, tag='td')}</tr>"
        for path, (kind, energy_j) in largest[:PLACES_SHOWN]
    )
    rest = [energy_j for _, (_, energy_j) in largest[PLACES_SHOWN:]]
    if rest:
        rows += f'<tr><td class="pp-dim">{len(rest)} more</td>{_figures(sum(rest), total, tag="td")}</tr>'
    return f"<details><summary>Where it goes: the largest operators and waits</summary><table>{rows}</table></details>"


def _provenance(answer: Mapping[str, Any]) -> str:
    predictor = answer["predictor"]
    lines = {
        "predictor": f"{predictor['name']} ({predictor['sha256'][:12]})",
        "engine": answer["engine"],
        "cluster": answer["cluster"],
        "plan": f"{degrees(answer)}, {answer['gpus']} x {answer['gpu']}",
        "formats": f"weights {answer['dtype']}, KV cache {answer['kv_dtype']}",
        "power limit": f"{quantity(answer['power_limit_w'], 'W')} per board",
        "scope": SCOPE_WORDS[answer["scope"]] + (f", PUE {answer['pue']:g}" if answer["pue"] is not None else ""),
        "batch": f"{answer['batch']:g} per data-parallel rank, {answer['mode']}",
    }
    rows = "".join(f"<tr><th>{escape(name)}</th><td><code>{escape(str(value))}</code></td></tr>" for name, value in lines.items())
    return f"<details><summary>What the figures stand on</summary><table>{rows}</table></details>"
