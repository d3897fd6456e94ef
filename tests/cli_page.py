"""The page `docs/cli.md`, made from the commands themselves: `python tests/cli_page.py` writes it anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from pie_p.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
HEAD = """\
# Command line

Generated from the commands by `python tests/cli_page.py`; do not edit. `pie-p VERB --help` prints the same.

Exit codes: 0 done; 2 a mistake the user can mend, said in one line on standard error; 1 ours. With `--json` standard output is JSON and
nothing else, its keys those of `to_dict()`; progress and warnings go to standard error. `pie-p --install-completion` teaches the shell
the verbs and options.
"""


def cli_page() -> str:
    """The page as Markdown."""
    group = typer.main.get_command(app)
    commands = getattr(group, "commands", {})
    return "\n".join([HEAD, *(_command(name, commands[name]) for name in sorted(commands))])


def _command(name: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden and one.name != "help"]
    usage = " ".join(["pie-p", name, *map(_argument, arguments), "[OPTIONS]"])
    lines = [f"## {name}", "", (command.help or "").strip(), "", "```text", usage, "```", ""]
    if command.epilog:
        lines += [f"Example: `{command.epilog.removeprefix('Example:').strip()}`", ""]
    if arguments or options:
        lines += ["| | | default |", "|---|---|---|"]
        lines += [_row(f"`{_argument(one)}`", one) for one in arguments]
        lines += [_row(", ".join(f"`{text}`" for text in (*one.opts, *one.secondary_opts)), one) for one in options]
        lines.append("")
    return "\n".join(lines)


def _argument(one: Any) -> str:
    text = f"{one.name.upper()}{'...' if one.nargs == -1 else ''}"
    return text if one.required else f"[{text}]"


def _row(what: str, parameter: Any) -> str:
    default = parameter.default if not callable(parameter.default) else None
    plain = isinstance(default, str | int | float) and not isinstance(default, bool) and str(default) != ""
    shown = "needed" if parameter.required else f"`{default}`" if plain else ""
    text = " ".join(str(getattr(parameter, "help", "") or "").split()).replace("|", "\\|")
    return f"| {what} | {text} | {shown} |"


if __name__ == "__main__":
    PAGE.write_text(cli_page(), encoding="utf-8")
