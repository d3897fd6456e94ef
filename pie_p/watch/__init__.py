"""Watching a server that has no power meter: its own metrics in, watts and joules out.

Reading order: `dialects` (what each server calls its metrics), `readings` (one scrape), `windows` (what happened between two), `estimates`
(joules of a window), `ledger` (sums that survive restarts), `scraping`, `exporter`, `rows`, and `watcher`, which ties them together.
"""
