"""The frame of a page and its small parts. Whatever came from a file is escaped here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any, Final

from pie_p import __version__
from pie_p.report_html.words import FACTS, GLOSSARY
from pie_p.wording import quantity, share

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"  # nothing may be fetched


@cache
def _asset(name: str) -> str:
    return files("pie_p.report_html").joinpath(name).read_text(encoding="utf-8")


def page(*, title: str, lead: str, body: str, scripts: Sequence[str] = (), data: Any = None) -> str:
    """A whole page.

    Args:
        title: of the window and the first heading, plain text.
        lead: what the page is about, HTML.
        body: sections, HTML.
        scripts: names of scripts beside this module.
        data: what the scripts read, plain data.
    """
    embedded = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    script = "".join(f"<script>{_asset(name)}</script>" for name in scripts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><meta name="color-scheme" content="light dark">'
        f'<meta name="generator" content="pie_p {__version__}"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_asset('page.css')}</style></head><body>"
        '<a class="skip" href="#main">Skip to the figures</a>'
        f'<main id="main" tabindex="-1"><header><h1>{escape(title)}</h1><p class="lead">{lead}</p></header>{body}</main>'
        f'<script type="application/json" id="data">{embedded}</script>{script}</body></html>\n'
    )


def section(heading: str, content: str, *, about: str = "", name: str = "") -> str:
    """A section with its heading and a sentence on how to read it; the last three are HTML or plain names of ours."""
    key = name or heading.lower().replace(" ", "-")
    explained = f'<p class="about">{about}</p>' if about else ""
    return f'<section aria-labelledby="h-{key}"><h2 id="h-{key}">{escape(heading)}</h2>{explained}{content}</section>'


def folded(summary: str, content: str) -> str:
    """What is there for those who ask."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def shown(value: float | None, unit: str, key: str) -> str:
    """A figure, rounded for people and in full for machines; `key` is its path in the JSON."""
    full = "" if value is None else repr(float(value))
    return f'<data value="{full}" data-key="{escape(key)}">{escape(quantity(value, unit).strip())}</data>'


def tiles(entries: Sequence[tuple[str, str, str]]) -> str:
    """Figures with their name and what they mean: (name, HTML figure, meaning)."""
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd><strong>{figure}</strong><span>{escape(meaning)}</span></dd></div>"
        for name, figure, meaning in entries
    )
    return f'<dl class="tiles">{items}</dl>'


def stacked_bar(parts: Sequence[tuple[str, str, float, str, str]], whole: float, *, label: str) -> str:
    """One bar of parts and the list that explains it: (kind, name, value, HTML figure, meaning)."""
    bars = "".join(
        f'<i class="k-{kind}" style="width:{max(0.0, 100 * value / whole):.4f}%" title="{escape(name)}"></i>'
        for kind, name, value, _, _ in parts
    )
    items = "".join(
        f'<li><i class="key k-{kind}"></i><b>{escape(name)}</b> {figure} <em>{share(value, whole)}</em><span>{escape(meaning)}</span></li>'
        for kind, name, value, figure, meaning in parts
    )
    return f'<div class="bar" role="img" aria-label="{escape(label)}">{bars}</div><ul class="legend">{items}</ul>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str) -> str:
    """A table whose cells are HTML; it scrolls by itself where it is too wide."""
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    frame = f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
    return f"{frame}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def warnings(texts: Sequence[str]) -> str:
    """What to be careful about; nothing where there is nothing."""
    if not texts:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return section("Be careful", f'<ul class="warnings">{items}</ul>', about="What the method says about its own limits for this question.")


def glossary(names: Sequence[str]) -> str:
    """The words of the page, explained."""
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(GLOSSARY[name])}</dd>" for name in names)
    return section("Words", folded("what the words on this page mean", f'<dl class="words">{items}</dl>'))


def provenance(entries: Sequence[tuple[str, object]], data: Any, *, about: str) -> str:
    """Where the figures come from: what was asked, what answered, and the file itself where it is short."""
    texts = [(FACTS.get(name, name), f"{value:g}" if isinstance(value, float) else str(value)) for name, value in entries]
    rows = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in texts)
    facts = f'<div class="scroll"><table class="facts"><tbody>{rows}</tbody></table></div>'
    raw = escape(json.dumps(data, indent=1)) if data is not None else ""
    whole = folded("the file behind this page", f'<pre tabindex="0">{raw}</pre>') if raw else ""
    return section("Where this comes from", facts + whole, about=about)
