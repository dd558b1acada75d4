"""Letters that look like an ASCII letter or digit, listed by that letter or digit.

Source: confusables.txt of Unicode Technical Standard 39, by way of confusable-homoglyphs 3.3.1 (Copyright Unicode,
Inc., Unicode License V3: unicode.org/license.txt). Rows are taken whose source is one letter outside of ASCII without a
decomposition, and whose class has an ASCII letter or digit. Rows between ASCII characters (0 and O, 1 and l, rn and m)
are left out, because exams ask about numbers. In the class of I and l, capital letters are compared as i, the others as
l.

The table is written out, so that a text has the same words under every version of Python.
"""

from __future__ import annotations

from typing import Final

_BY_LETTER: Final = {
    "2": "ƧϨᒿꙄꝚ",
    "3": "ƷȜЗӠⳌꝪꞫ𑣊𖼻",
    "4": "Ꮞ𑢯",
    "5": "Ƽ𑢻",
    "6": "бᏮⳒ𑣕",
    "7": "𐓒𑣆",
    "8": "Ȣȣ𐌚",
    "9": "ⳊꝮ𑢬𑣌𑣖",
    "a": "ɑΑαАаᎪᗅꓮ𐊠𖽀",
    "b": "ƄΒВЬᏏᏴᑲᖯᗷꓐꞴ𐊂𐊡𐌁",
    "c": "СсᏟᴄⲤⲥꓚꮯ𐊢𐌂𐐕𐐽𐔜",
    "d": "ԁᎠᏧᑯᗞᗪꓒꓓ",
    "e": "ΕЕеҽᎬⴹꓰꬲ𐊆𑢦𑢮",
    "f": "ϜքᖴẝꓝꞘꞙꬵ𐊇𐊥𐔥𑢢𑣂",
    "g": "ƍɡԌցᏀᏳᶃꓖ",
    "h": "ΗНһհᎻᏂᕼⲎꓧ𐋏",
    "i": "ıƖɩɪΙιІіӀӏᎥⲒꙇꭵ𑣃",
    "j": "ͿϳЈјᎫᒍꓙꞲ",
    "k": "ΚКᏦᛕⲔꓗ𐔘",
    "l": "ǀᏞᒪᛁⳐⵏꓡꓲ𐊊𐌉𐐛𐔦𑢣𑢲𖼖𖼨",
    "m": "ΜϺМᎷᗰᛖⲘꓟ𐊰𐌑",
    "n": "ΝոռⲚꓠ𐔓",
    "o": "ΟοσОоՕօଠഠဝჿዐᴏᴑⲞⲟⵔꓳꬽ𐊒𐊫𐐄𐐬𐓂𐓪𐔖𑢵𑣈𑣗",
    "p": "ΡρРрᏢᑭⲢⲣꓑ𐊕",
    "q": "ԛգզⵕ",
    "r": "ƦгᎡᏒᖇᴦⲅꓣꭇꭈꮁ𐒴𖼵",
    "s": "ƽЅѕՏᏕᏚꓢꜱꮪ𐊖𐐠𐑈𑣁𖼺",
    "t": "ΤТᎢⲦꓔ𐊗𐊱𐌕𑢼𖼊",
    "u": "ʋυՍսሀᑌᴜꓴꞟꭎꭒ𐓎𐓶𑢸𑣘𖽂",
    "v": "νѴѵᏙᐯᴠⴸꓦꛟꮩ𐔝𑜆𑢠𑣀𖼈",
    "w": "ɯѡԜԝաᎳᏔᴡꓪꮃ𑜊𑜎𑜏",
    "x": "ΧХхᕁᕽᚷⲬⵝꓫꞳ𐊐𐊴𐌗𐔧",
    "y": "ɣʏΥγУуҮүყᎩᎽᶌỿⲨꓬꭚ𐊲𑢤𑣜𖽃",
    "z": "ΖᏃᴢꓜꮓ𑢩𑣄",
}


def lookalikes() -> dict[str, str]:
    """Return {letter: the ASCII letter (in lower case) or digit as which it is compared}.

    If the table has a letter only in its other case, the letter is compared as that case, so that capitals do not
    change a word: Cyrillic `в` looks like no Latin letter, but `В` looks like B. Greek ν and υ have an entry for
    each case.
    """
    table = {letter: target for target, letters in _BY_LETTER.items() for letter in letters}
    for letter, target in list(table.items()):
        for other in (letter.lower(), letter.upper()):
            if len(other) == 1 and not other.isascii():
                table.setdefault(other, target)
    return table | {"ς": table["σ"]}
