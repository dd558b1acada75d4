"""The recipe section `provider`: what no artifact knows, and the forms about a model ask for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from training.contract.records import RecipeError

ADDRESS: Final = re.compile(r"https?://[^\s<>\"{}|\\^`]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderRecipe:
    """Statements of the provider of a model, in the provider's own words; nothing checks them.

    They change no model. The card, the summary of training content and the bills of materials show them; a form that
    asks for one that is empty says so. A statement is one text; dates are written YYYY-MM-DD.
    """

    name: str | None = None
    contact: str | None = None
    representative: str | None = None  # authorised representative in the Union, with contact; or why there is none
    licence: str | None = None  # of the model, as an SPDX licence expression
    corpus_licence: str | None = None  # of the exported corpus, as an SPDX licence expression
    url: str | None = None  # where the model is described
    version: str | None = None
    placed_on_market: str | None = None  # in the Union
    summary_version: str | None = None  # of the summary of training content, with links to earlier ones
    summary_date: str | None = None  # of the last update of the summary of training content
    content_types: str | None = None  # such as press, fiction, source code
    characteristics: str | None = None  # regional, demographic and others of the data
    public_datasets: str | None = None  # names and links of those among the recipe's sources
    licensed_datasets: str | None = None  # whether any were licensed commercially from rightsholders
    private_datasets: str | None = None  # obtained from third parties otherwise
    crawlers: str | None = None  # names, purpose and behaviour of crawlers, beyond what archives state
    user_prompts: str | None = None  # whether what users write to a model was used
    user_data: str | None = None  # whether data of users of other services were used, and of which services
    synthetic_data: str | None = None  # models that wrote text, with links, beyond the generators in the data
    other_sources: str | None = None
    code_of_practice: str | None = None  # whether the provider has signed it
    reservations: str | None = None  # how reservations of rights are respected, beyond the extraction's settings
    illegal_content: str | None = None  # how illegal content is removed, beyond the filter's rules
    comments: str | None = None
    emissions_grams: float | None = None  # of CO2, of the whole training; None: not stated
    emissions_source: str | None = None  # how the provider knows them
    grams_per_kwh: float | None = None  # of CO2, of the electricity: times the energy that was measured
    small_enterprise: bool = False  # SMEs may list fewer domains in the summary of training content

    def __post_init__(self) -> None:
        if self.url and not ADDRESS.fullmatch(self.url):
            raise RecipeError(f"provider.url={self.url!r}; it must be an address that begins with https:// or http://")
        for name in ("emissions_grams", "grams_per_kwh"):
            number = getattr(self, name)
            if number is not None and not 0 <= number < float("inf"):
                raise RecipeError(f"provider.{name}={number}; it must be 0 or more")
        if (self.emissions_grams is None) != (not self.emissions_source):
            raise RecipeError("provider.emissions_grams and provider.emissions_source: state both or neither")
        if self.emissions_grams is not None and self.grams_per_kwh is not None:
            raise RecipeError("provider.emissions_grams and provider.grams_per_kwh: state one of them")
