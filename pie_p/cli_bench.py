"""`pie-p bench`: words to watts of a server or of a checkpoint in this process, with the prediction beside it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pie_p.cli_options import complete_dtype, complete_engine, complete_gpu, complete_llm, complete_predictor, figure, several, words_of
from pie_p.console import console, print_json, progress
from pie_p.errors import InputError

if TYPE_CHECKING:
    from pie_p.bench.plans import BenchPlan
    from pie_p.bench.results import BenchResult

USUAL = 8  # requests at once where nothing is said
SETTINGS = {  # options by the part of the plan they set
    "load": ("batch", "concurrency", "max_tokens", "warmup", "repetitions", "seed", "temperature", "shuffled"),
    "server": ("api", "served", "api_key_env", "connect_s", "first_byte_s", "stall_s", "total_s", "retries", "backoff_s", "extra"),
    "deployed": ("llm", "gpu", "cluster", "tp", "pp", "dp", "ep", "dtype", "kv_dtype", "engine", "power_limit_w"),
}


def bench(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run; a second start goes on with it.")],
    target: Annotated[
        str | None, typer.Argument(help="Address of an OpenAI-compatible server, or a Hugging Face checkpoint; left out: show the run.")
    ] = None,
    prompts: Annotated[str, typer.Option(help="JSON or JSON lines as of Alpaca, GSM8K, or with a field prompt.")] = "synthetic",
    count: Annotated[float | None, figure("Draw so many of the prompts; default all.")] = None,
    concurrency: Annotated[float | None, figure("Requests kept in flight; default 8.")] = None,
    batch: Annotated[float | None, figure("Instead: so many start together, the next when all have ended.")] = None,
    max_tokens: Annotated[float, figure("Most tokens of a response.")] = 256,
    warmup: Annotated[float, figure("Requests before the clock starts.")] = 1,
    repetitions: Annotated[float, figure("Times that all prompts are asked.")] = 1,
    seed: Annotated[float, figure("Of the order, the drawing and the server's sampling.")] = 0,
    temperature: Annotated[float, figure("Of the server's sampling.")] = 0,
    shuffled: Annotated[bool, typer.Option(help="Ask in another order in each repetition.")] = False,
    api: Annotated[str, typer.Option(help="completions or chat.")] = "completions",
    served: Annotated[str, typer.Option(help="Name the server has for its LLM; default the only one it lists.")] = "",
    extra: Annotated[str, typer.Option(help='JSON object of further fields of each request, as {"ignore_eos": true}.')] = "{}",
    api_key_env: Annotated[str, typer.Option(help="Environment variable that holds the key; it is stored nowhere.")] = "OPENAI_API_KEY",
    connect_s: Annotated[float, figure("Connect within [s].")] = 10,
    first_byte_s: Annotated[float, figure("First byte within [s].")] = 300,
    stall_s: Annotated[float, figure("Longest pause in a stream [s].")] = 60,
    total_s: Annotated[float, figure("Whole response within [s].")] = 1800,
    retries: Annotated[float, figure("Attempts after the first.")] = 3,
    backoff_s: Annotated[float, figure("Pause before the first retry; it doubles [s].")] = 0.5,
    device: Annotated[str, typer.Option(help="Of a checkpoint: cpu, cuda, cuda:1.")] = "auto",
    tokenizer: Annotated[str, typer.Option(help="Checkpoint whose tokenizer counts where the server does not say.")] = "",
    meter: Annotated[str, typer.Option(help="none, nvml, the /metrics address of a DCGM exporter, or replay:FILE.")] = "none",
    boards: Annotated[list[str] | None, several("Boards to read, by number or UUID; default all.")] = None,
    llm: Annotated[str | None, typer.Option(help="What the server has (pie-p llms), to predict.", autocompletion=complete_llm)] = None,
    gpu: Annotated[str | None, typer.Option(help="On which boards (pie-p hardware).", autocompletion=complete_gpu)] = None,
    cluster: Annotated[str | None, typer.Option(help="TOML file of an own cluster, instead of --gpu.")] = None,
    tp: Annotated[float, figure("Tensor-parallel ranks.")] = 1,
    pp: Annotated[float, figure("Pipeline stages.")] = 1,
    dp: Annotated[float, figure("Data-parallel ranks.")] = 1,
    ep: Annotated[float, figure("Ranks the experts are spread over.")] = 1,
    dtype: Annotated[str | None, typer.Option(help="Storage of the weights.", autocompletion=complete_dtype)] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Storage of the KV cache.", autocompletion=complete_dtype)] = None,
    engine: Annotated[str, typer.Option(help="vllm, sglang or trtllm, optionally ==VERSION.", autocompletion=complete_engine)] = "vllm",
    power_limit_w: Annotated[float | None, figure("Cap per board, where no meter reads it [W].")] = None,
    predictor: Annotated[str | None, typer.Option(help="Name or path of a predictor.", autocompletion=complete_predictor)] = None,
    against: Annotated[Path | None, typer.Option(help="Folder of another run, to show beside this one.")] = None,
    profile: Annotated[Path | None, typer.Option(help="Also write the run as a profile, for pie-p train.")] = None,
    calibrate: Annotated[Path | None, typer.Option(help="Also calibrate the predictor with the run, into this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure words, tokens and joules of a running server, and hold the prediction beside them."""
    options = dict(locals())
    from pie_p.bench.results import load_run

    result = load_run(out) if target is None else _run(options, _plan(target, options))
    _show(result, against=against, as_json=as_json)
    _learn(result, profile=profile, calibrate=calibrate, predictor=predictor)
    if result.manifest.state == "interrupted" and target is not None:
        sys.stderr.write(f"stopped: {result.manifest.stopped_by}. What was whole is in {out}; the same command goes on\n")
        raise typer.Exit(2)
    if target is not None and not result.totals.responses:
        sys.stderr.write(f"no prompt was answered: the faults stand above and in {out}; the same command asks again\n")
        raise typer.Exit(2)


def _plan(target: str, options: dict[str, Any]) -> BenchPlan:
    from pie_p.bench.plans import BenchPlan, Deployed, InProcessTarget, Load, ServerTarget

    part = {name: {key: options[key] for key in keys} for name, keys in SETTINGS.items()}
    over_http = target.startswith(("http://", "https://"))
    if part["load"]["batch"] is None and part["load"]["concurrency"] is None:
        part["load"]["concurrency" if over_http else "batch"] = USUAL
    if over_http:
        asked: Any = ServerTarget(url=target, **part["server"])
    elif "://" in target:
        raise InputError(f"{target!r:.80} is neither an http address nor a checkpoint; give one like http://localhost:8000")
    else:
        asked = InProcessTarget(checkpoint=target, device=options["device"])
    return BenchPlan(target=asked, load=Load(**part["load"]), deployed=Deployed(**part["deployed"]), tokenizer=options["tokenizer"])


def _run(options: dict[str, Any], plan: BenchPlan) -> BenchResult:
    """The run, with a bar on standard error; one that is stopped by hand is shown as far as it came."""
    from pie_p.bench.metering import metering_of
    from pie_p.bench.prompts import load_prompts
    from pie_p.bench.results import load_run
    from pie_p.bench.running import bench as run

    loaded = load_prompts(options["prompts"]).chosen(options["count"], seed=plan.load.seed)
    metering = metering_of(options["meter"], boards=words_of(options["boards"]) or (), gpus=plan.deployed.gpus)
    try:
        with progress("bench", quiet=options["as_json"]) as show:
            return run(
                plan,
                loaded,
                options["out"],
                metering=metering,
                predictor=options["predictor"],
                on_progress=lambda now: show(str(now), now.done + now.failed, now.total),
            )
    except KeyboardInterrupt:
        return load_run(options["out"])


def _show(result: BenchResult, *, against: Path | None, as_json: bool) -> None:
    from pie_p.bench.results import load_run

    other = None if against is None else load_run(against)
    if as_json:
        print_json(result.to_dict() | ({} if other is None else {"against": other.to_dict()}))
        return
    from pie_p import bench_tables

    screen = console()
    screen.print(bench_tables.bench_table(result))
    for line in bench_tables.bench_footer(result):
        screen.print(line, style="yellow" if line.startswith("warning") else "dim", markup=False)
    if other is not None:
        screen.print()
        screen.print(bench_tables.against_table(result, other))


def _learn(result: BenchResult, *, profile: Path | None, calibrate: Path | None, predictor: str | None) -> None:
    if profile is not None:
        from pie_p.bench.results import bench_profile

        bench_profile([result], profile, name=result.manifest.name)
        sys.stderr.write(f"profile with one end-to-end row written to {profile}\n")
    if calibrate is not None:
        from pie_p.predictor import load_predictor

        calibration = load_predictor(predictor).calibrate([result.row()])
        calibration.predictor.save(calibrate)
        sys.stderr.write(f"{calibration}; predictor written to {calibrate}\n")
