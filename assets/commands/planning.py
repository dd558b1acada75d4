"""The command `plan`: what a recipe will take, and what a budget buys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from assets.commands.options import DEFAULT_ROOT, JsonOption, ProfileOption, RecipeArgument, RootOption, read
from assets.state.compare import compare
from training.contract.process.exit_codes import BAD_INPUT, FAILED, OK
from training.contract.records import RecipeError

OF_A_BUDGET = ("money", "gpu_hour_price", "served_tokens", "unique_tokens", "pue", "grams_per_kwh")
OF_A_RECIPE = ("profile", "tuning_mfu", "measure", "goodput", "interruptions", "restart_minutes", "spot")


def plan(
    context: typer.Context,
    recipe: RecipeArgument = "",
    profile: ProfileOption = "local",
    root: RootOption = DEFAULT_ROOT,
    gpu: Annotated[str, typer.Option(help="kind of GPU to reckon with, if the profile names none, such as H100")] = "",
    mfu: Annotated[
        float, typer.Option(help="model FLOPs utilization of compute alone, assumed for pretraining", min=0.01, max=1)
    ] = 0.5,
    tuning_mfu: Annotated[float, typer.Option(help="the same for post-training", min=0.01, max=1)] = 0.15,
    measure: Annotated[
        bool, typer.Option("--measure", help="also run the stages' code on tensors without content")
    ] = False,
    goodput: Annotated[
        bool, typer.Option("--goodput", help="also simulate interruptions, and show other ways to train side by side")
    ] = False,
    interruptions: Annotated[
        float, typer.Option(help="with --goodput: interruptions per 1,000 GPU-days", min=0, max=1e9)
    ] = 0.53,
    restart_minutes: Annotated[
        float, typer.Option(help="with --goodput: minutes from an interruption to the next step", min=0)
    ] = 10,
    spot: Annotated[
        float | None,
        typer.Option(help="with --goodput: interruptions per 1,000 GPU-days of spot machines", min=0, max=1e9),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="what to train with so many operations: sizes, tokens", min=1, max=1e40),
    ] = None,
    money: Annotated[
        float | None, typer.Option(help="the same for the GPU-hours that this buys; needs --gpu", min=0, max=1e15)
    ] = None,
    gpu_hour_price: Annotated[
        float | None, typer.Option(help="with a budget: price of a GPU-hour; default: 3 for H100", min=1e-6, max=1e9)
    ] = None,
    served_tokens: Annotated[
        float,
        typer.Option(help="with a budget: tokens that the model reads and writes in its life", min=0, max=1e30),
    ] = 0,
    unique_tokens: Annotated[
        float | None,
        typer.Option(help="with a budget: tokens that there are to train on; default: the recipe's", min=1, max=1e30),
    ] = None,
    pue: Annotated[
        float, typer.Option(help="with a budget: electricity of the site for each unit of the GPUs", min=1, max=10)
    ] = 1,
    grams_per_kwh: Annotated[
        float | None, typer.Option(help="with a budget: CO2 of the electricity", min=0, max=10_000)
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Show what a recipe will take, whether the profile can run it, or what a budget buys.

    Time, node-hours, price, memory and layouts of a recipe. Nothing is made; times come from earlier artifacts under
    the root. With --budget or --money: model size, tokens, data, electricity. Exit code 2 if the profile cannot run
    the recipe; 1 if `--measure` could not measure a model.
    """
    asks_a_budget = budget is not None or money is not None
    _check_options(context, asks_a_budget, recipe)
    if asks_a_budget:
        costs = {"money": money, "mfu": mfu, "pue": pue}
        costs |= {"gpu_hour_price": gpu_hour_price} if gpu_hour_price else {}
        uses = {"served_tokens": served_tokens, "unique_tokens": unique_tokens, "grams_per_kwh": grams_per_kwh}
        _show_budget(recipe, root, gpu, {"flops": budget, **costs, **uses}, json_)
        return
    from assets.answers.plan.goodput import Interruptions
    from assets.answers.plan.lines import lines_of
    from assets.answers.plan.plan import plan as planned
    from resources.profile import load_profile
    from training.pretrain.capacity.devices import device_of

    device = device_of(gpu) if gpu else None
    comparison = compare(read(recipe, root), root.resolve(), skip_unavailable=True)
    asked = Interruptions(rate=interruptions, restart_minutes=restart_minutes, spot_rate=spot) if goodput else None
    assumed = {"device": device, "mfu": mfu, "tuning_mfu": tuning_mfu, "interruptions": asked}
    answer = planned(comparison, load_profile(profile), name=profile, measures=measure, **assumed)
    code = BAD_INPUT if answer["problem"] else FAILED if any(one["not_measured"] for one in answer["models"]) else OK
    if json_:
        print(json.dumps(answer | {"ok": code == OK}, ensure_ascii=False))
    else:
        print("\n".join(lines_of(answer)))
    raise typer.Exit(code)


def _check_options(context: typer.Context, asks_a_budget: bool, recipe: str) -> None:
    """Raise RecipeError if neither a recipe nor a budget is named, or if an option of the other one is."""
    if not recipe and not asks_a_budget:
        raise RecipeError("name a recipe to see what it takes, or ask what a budget buys with --budget or --money")
    others, what = (OF_A_RECIPE, "with a budget") if asks_a_budget else (OF_A_BUDGET, "without --budget or --money")
    for name in others:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise RecipeError(f"--{name.replace('_', '-')} has no effect {what}")


def _show_budget(recipe: str, root: Path, gpu: str, asked: dict[str, Any], json_: bool) -> None:
    """Print what a budget buys; with a recipe also by the fit of its ladder, and for its tokens."""
    from assets.answers.plan.budget import Purpose, bought
    from assets.answers.plan.budget_lines import lines_of
    from assets.answers.plan.own_ladder import known_of
    from training.pretrain.capacity.devices import device_of

    own, tokens = (
        known_of(compare(read(recipe, root), root.resolve(), skip_unavailable=True)) if recipe else (None, None)
    )
    if asked["unique_tokens"] is None:
        asked = asked | {"unique_tokens": tokens}
    purpose = Purpose(**asked, device=device_of(gpu) if gpu else None)
    answer = bought(purpose, own)
    print(json.dumps(answer | {"ok": True}, ensure_ascii=False) if json_ else "\n".join(lines_of(answer, purpose)))
