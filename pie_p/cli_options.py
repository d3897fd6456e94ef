"""What options share: numbers, lists of them, and the names that a shell completes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import typer

from pie_p.quantities import shown

UNSET = ("none", "board", "default")
ELSEWHERE: Final = {  # options of vLLM, SGLang and benchmark clients -> the one that asks for the same here
    "--tensor-parallel-size": "--tp",
    "--tp-size": "--tp",
    "--gpus": "--tp",
    "--num-gpus": "--tp",
    "--pipeline-parallel-size": "--pp",
    "--pp-size": "--pp",
    "--data-parallel-size": "--dp",
    "--dp-size": "--dp",
    "--expert-parallel-size": "--ep",
    "--enable-expert-parallel": "--ep",
    "--ep-size": "--ep",
    "--batch-size": "--batch",
    "--max-num-seqs": "--batch",
    "--max-running-requests": "--batch",
    "--concurrency": "--batch",
    "--max-concurrency": "--batch",
    "--quantization": "--dtype",
    "--kv-cache-dtype": "--kv-dtype",
    "--input-tokens": "--prompt-tokens",
    "--input-len": "--prompt-tokens",
    "--random-input-len": "--prompt-tokens",
    "--max-tokens": "--output-tokens",
    "--output-len": "--output-tokens",
    "--random-output-len": "--output-tokens",
    "--model": "--llm",
    "--model-path": "--llm",
    "--power-limit": "--power-limit-w",
    "--power-cap": "--power-limit-w",
}


def number(text: str) -> float:
    """A number out of a word of the command line; 3 stays 3, so that a message about it shows what was typed."""
    try:
        return _number(text)
    except ValueError:
        raise typer.BadParameter(f"{shown(text)} is not a number; give one like 300 or 0.5") from None


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def usage_text(error: Any) -> str:
    """What was wrong in the words typed, in one line: an option of another tool is met with ours, and the verb's help is named."""
    context = getattr(error, "ctx", None)
    text = error.format_message().rstrip(".")
    ours = ELSEWHERE.get(getattr(error, "option_name", None) or "")
    if context is not None and ours is not None:
        options = {word for each in context.command.params for word in each.opts}
        if ours in options:
            text = f"No such option: {error.option_name}; here it is {ours}"
        elif ours == "--llm" and "llm" in options:
            text = f"No such option: {error.option_name}; the LLM is the first word: {context.command_path} llama-3.1-8b ..."
    if "extra argument" in text and context is not None and any(each.metavar == "A,B,..." for each in context.command.params):
        text += "; a list has commas and no spaces, as 1,2,4"
    return f"{text}; see {context.command_path if context is not None else 'pie-p'} --help"


def figure(text: str) -> Any:
    """An option that is a number."""
    return typer.Option(help=text, parser=number, metavar="NUMBER")


def several(text: str, *, complete: Callable[[str], list[str]] | None = None) -> Any:
    """An option that takes several: words with commas between, or the option several times."""
    return typer.Option(help=text, metavar="A,B,...", autocompletion=complete)


def words_of(values: Sequence[str] | None) -> list[str] | None:
    """Words of a list option; None where it was not given.

    >>> words_of(["a,b", "c"])
    ['a', 'b', 'c']
    """
    words = [word.strip() for value in values or () for word in value.split(",")]
    return [word for word in words if word] or None


def numbers_of(name: str, values: Sequence[str] | None) -> list[float | None] | None:
    """Numbers of a list option; "none" is the default of what it sets.

    >>> numbers_of("tp", ["1,2", "4"])
    [1, 2, 4]
    """
    words = words_of(values)
    if words is None:
        return None
    try:
        return [None if word.lower() in UNSET else _number(word) for word in words]
    except ValueError:
        raise typer.BadParameter(f"{name} = {shown(','.join(words))} is not a list of numbers; give one like 1,2,4") from None


def complete_llm(incomplete: str) -> list[str]:
    """Names of bundled LLMs that begin so."""
    from pie_p.llm import llm_names

    return _beginning(incomplete, llm_names())


def complete_gpu(incomplete: str) -> list[str]:
    """Names of boards that begin so; after a comma, of the next one."""
    from pie_p.hardware import gpu_names

    return _beginning(incomplete, gpu_names())


def complete_predictor(incomplete: str) -> list[str]:
    """Names of shipped predictors that begin so."""
    from pie_p.model_files import shipped

    return _beginning(incomplete, ["physics", *shipped()])


def complete_grid(incomplete: str) -> list[str]:
    """Names of electricity grids that begin so, in any case."""
    from pie_p.footprint import grid_names

    return [name for name in grid_names() if name.lower().startswith(incomplete.lower())]


def complete_figure(incomplete: str) -> list[str]:
    """Names of figures to choose by that begin so."""
    from pie_p.candidates import FIGURES

    return _beginning(incomplete, FIGURES)


def complete_dtype(incomplete: str) -> list[str]:
    """Number formats that begin so."""
    from pie_p.units import DTYPES

    return _beginning(incomplete, DTYPES)


def complete_engine(incomplete: str) -> list[str]:
    """Serving engines that begin so."""
    return _beginning(incomplete, ("vllm", "sglang", "trtllm"))


def complete_scope(incomplete: str) -> list[str]:
    """Scopes that begin so."""
    return _beginning(incomplete, ("gpu", "host", "facility"))


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{name}" for name in names if name.startswith(last.lower())]
