"""`docs/cli.md` says what the commands say."""

from __future__ import annotations

import typer
from cli_page import PAGE, cli_page

from pie_p.cli import app


def test_the_page_is_made_from_the_commands_of_today() -> None:
    assert PAGE.read_text(encoding="utf-8") == cli_page(), "run: python tests/cli_page.py"


def test_every_verb_has_help_an_example_and_help_for_every_option() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        assert command.help, name
        for parameter in command.params:
            assert parameter.param_type_name != "option" or parameter.help, f"{name} {parameter.name}"
        if any(parameter.required for parameter in command.params):
            assert (command.epilog or "").startswith("Example: pie-p "), name
