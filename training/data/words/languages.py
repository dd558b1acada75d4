"""The languages that recipes may name, which are the ones that fastText's model identifies. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable

from training.contract.records import RecipeError

LANGUAGES = frozenset(
    (
        "af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce ceb ckb co cs cv "
        "cy da de diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl gn gom gu gv he hi hif hr hsb ht "
        "hu hy ia id ie ilo io is it ja jbo jv ka kk km kn ko krc ku kv kw ky la lb lez li lmo lo lrc lt lv mai mg "
        "mhr min mk ml mn mr mrj ms mt mwl my myv mzn nah nap nds ne new nl nn no oc or os pa pam pfl pl pms pnb "
        "ps pt qu rm ro ru rue sa sah sc scn sco sd sh si sk sl so sq sr su sv sw ta te tg th tk tl tr tt tyv ug "
        "uk ur uz vec vep vi vls vo wa war wuu xal xmf yi yo yue zh "
    ).split()
)
"""The labels of fastText's lid.176: ISO 639-1, else 639-3, and a few codes of Wikipedia."""

UNSPACED = frozenset(("bo", "ja", "km", "lo", "my", "th", "wuu", "yue", "zh"))
"""Languages whose writing has no spaces between words. Tibetan marks syllables."""


def check_languages(field: str, codes: Iterable[str]) -> None:
    """Raise RecipeError that names those of `codes` that no page can be identified as."""
    if unknown := [code for code in codes if code not in LANGUAGES]:
        raise RecipeError(
            *(
                f"{field}: {code!r} is not one of the 176 languages that pages are identified as; write a code of ISO"
                " 639-1, such as de, or of 639-3 where there is none, such as ceb"
                for code in unknown
            )
        )
