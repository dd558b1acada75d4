"""A filter rule of your own: it drops pages whose lines are long on average, such as minified code and log files."""

from dataclasses import dataclass

from training.data.filter.rule import Column, CommonSettings, Limit, Rule, numbers


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """The largest mean number of characters in a line."""

    most: float = 400.0


def mean_line(text: str) -> float:
    """Return the mean number of characters in the lines of a text that has any."""
    lines = [line for line in text.splitlines() if line.strip()]
    return sum(map(len, lines)) / len(lines)


rule = Rule(
    settings=Settings,
    columns=(Column("long_lines.mean"),),
    measure=lambda settings, tools: numbers("long_lines", lambda page: {"mean": mean_line(page.text)}),
    limits=lambda settings: (Limit("too_long", "long_lines.mean", most=settings.most),),
)
