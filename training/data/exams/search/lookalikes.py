"""Letters that look alike: which letters are compared as which.

Source: confusables.txt of Unicode Technical Standard 39, by way of confusable-homoglyphs 3.3.1 (Copyright Unicode,
Inc., Unicode License V3: unicode.org/license.txt). Of each class of the table, all letters, marks and numbers without a
decomposition are compared as the class's ASCII letters or digit, or as its first letter if it has none. Signs (`×`,
`∨`) stay signs. Rows between ASCII characters (0 and O, 1 and l, rn and m) are left out, because exams ask about
numbers, and decimal digits of all scripts stay digits. In the class of I and l, capital letters are compared as i, the
others as l.

The table does not know that small capitals are letters, nor letters and digits in filled circles and squares. These
are added by their Unicode names.

The table is written out, so that a text has the same words under every version of Python.
"""

from __future__ import annotations

from typing import Final

_BY_LETTER: Final = {
    "0": "⓿",
    "1": "ၥ፩᧚⓵❶➀➊\U00010a40\U00010e60𑁒",
    "2": "ƧϨ፪ᒿᴤ⓶❷➁➋ꙄꛯꝚꧏ\U00010a41\U00010e61𑁓",
    "3": "ƷȜЗӠჳ፫Ჳᴈ⓷❸➂➌ⳌꝪꞫ\U00010a42\U00010e62𑁔𑣊𖼻\U0001e8c9",
    "4": "ർ፬Ꮞ⓸❹➃➍\U00010a43\U00010e63𑁕𑢯",
    "5": "Ƽ፭⓹❺➄➎\U00010e64𑁖𑢻",
    "6": "б፮Ꮾ⓺❻➅➏Ⳓ\U00010e65𑁗𑣕",
    "7": "፯⓻❼➆➐𐓒\U00010e66𑁘𑣆",
    "8": "Ȣȣ\u0b03፰⓼❽➇➑𐌚\U00010e67𑁙\U0001e8cb",
    "9": "ൻ፱⓽❾➈➒ⳊꝮ\U00010e68𑁚𑢬𑣌𑣖",
    "a": "ɑΑαАаᎪᗅᴀꓮ𐊠𖽀🅐🅰",
    "b": "ƄʙΒВЬᏏᏴᑲᖯᗷꓐꞴ𐊂𐊡𐌁🅑🅱",
    "c": "СсҪҫᏟᴄⲤⲥꓚꮯ𐊢𐌂𐐕𐐽𐔜𑣲🅒🅲",
    "d": "ԁᎠᏧᑯᗞᗪᴅꓒꓓ🅓🅳",
    "e": "ΕЕеҽᎬᴇⴹꓰꬲ𐊆𑢦𑢮🅔🅴",
    "f": "ϜքᖴẝꓝꜰꞘꞙꬵ𐊇𐊥𐔥𑢢𑣂🅕🅵",
    "g": "ƍɡɢԌցᏀᏳᶃꓖ🅖🅶",
    "h": "ʜΗНһհᎻᏂᕼⲎꓧ𐋏🅗🅷",
    "i": "ıƖɩɪΙιІіӀӏᎥⲒꙇꭵ𑣃🅘🅸",
    "j": "ͿϳЈјᎫᒍᴊꓙꞲ🅙🅹",
    "k": "ĸΚКᏦᛕᴋⲔꓗ𐔘🅚🅺",
    "l": "ǀʟ\u05d5\u05df\u0627\u07caᏞᒪᛁᣳⳐⵏꓡꓲ𐊊𐌉𐌠𐐛𐔦𑢣𑢲𖼖𖼨\U0001e8c7🅛🅻",
    "m": "ʍΜϺМᎷᗰᛖᴍⲘꓟꭑ𐊰𐌑𑜀🅜🅼",
    "n": "ƝɲɴΝոռበቡᑎⲚꓠꓵ𐔓🅝🅽",
    "o": "ΟοσϚϛОоՕօ\u05e1\u0629\u0647\u06be\u06c1\u06c3\u06d5ଠ\u0c02\u0c82\u0d02ഠ\u0d82ဝჿዐᴏᴑⲞⲟⵔ〇ꓳꬽ𐊒𐊫𐐄𐐬𐓂𐓪𐔖𑢵𑣈𑣗🅞🅾",
    "p": "ΡρРрᏢᑭᴘᴩⲢⲣꓑ𐊕🅟🅿",
    "q": "ԛգզⵕꞯ🅠🆀",
    "r": "ƦгᎡᏒᖇᣴᴦⲅꓣꭇꭈꮁ𐒴𖼵🅡🆁",
    "s": "ƽЅѕՏᏕᏚᣛᣵꓢꜱꮪ𐊖𐐠𐑈𑣁𖼺🅢🆂",
    "t": "ƫΤТᎢᎿᴛⲦꓔꮏ𐊗𐊱𐌕𑢼𖼊🅣🆃",
    "u": "ʋυՍսሀᑌᴜꓴꞟꭎꭒ𐓎𐓶𑢸𑣘𖽂🅤🆄",
    "v": "νѴѵ\u05d8Ꮩᐯᴠⴸꓦꛟꮩ𐔝𑜆𑢠𑣀𖼈🅥🆅",
    "w": "ɯѡԜԝաᎳᏇᏔᗯᴡꓪꮃꮗ𑜊𑜎𑜏𑣯🅦🆆",
    "x": "ΧХхᕁᕽᚷⲬⵝꓫꞳꭕ𐊐𐊴𐌗𐌢𐔧𑣬🅧🆇",
    "y": "ɣʏΥγУуҮүყᎩᎽᒥᶌỿⲨꓬꭚ𐊲𑢤𑣜𖼇𖽃🅨🆈",
    "z": "ΖᏃᴢꓜꮓ𐋵𑢩𑣄🅩🆉",
    "10": "➉",
    "aa": "Ꜳꜳ",
    "ae": "ÆæӔӕ",
    "ao": "Ꜵꜵ",
    "au": "Ꜷꜷ",
    "av": "ꜸꜹꜺꜻ",
    "ay": "Ꜽꜽ",
    "bl": "Ыы",
    "dz": "ʣ",
    "ll": "ǁ\u05f0",
    "lo": "Юю",
    "ls": "ʪ",
    "lz": "ʫ",
    "oe": "Œœ",
    "oo": "ꚘꚙꝎꝏ",
    "ss": "Ᏸᏸ",
    "t3": "Ꜩꜩ",
    "tf": "ꝷ",
    "ts": "ʦ",
    "ue": "ᵫ",
    "uo": "ꭣ",
}
# The letters of a group are compared as its first letter.
_GROUPS: Final = """
ðĐđƉɖ\U0001e8cd øⵁꬾ þƿǷϷϸ𐓄𐓬 ħЋћ𐓍𐓵 ƀѢѣҌҍ ƕԊԋ ǝƏəӘәⴺꓱ ȷՅյ ɂᎮꭾ ɋᶐ ɍҒғ ɏҰұ ɒ𐐟𐑇 ɔͻϽᴐↃↄꓛ𐐣𐑋 ɛЄєԐԑᏋⲈⲉꞒꞓꮛ𐐁𐐩𖼭 ɞ𐐚𐑂 ɦᏲᏺꚔꚕ ɨƚȽᵻᵼ
ɰՊպሣጣ ɵΘθѲѳӨөᎾᏫⴱꝊꝋꮎꮻ ɷ𐐗𐐿 ɸΦφФфՓփቀᛰⲪⲫ𐊳 ʃⵉꭍ ʉᏌꮜ ʊᘮᘴ ʌΛλЛлᐱᴧⴷꓥꛎ𐊍𐒰𐓘𖼽Ⲗⲗ𐒳𐓛ᴫ ʘⵙꙨꙩ𐓃𐓫 ʚꞜꞝ𐐂𐐪 ʡꛍ ʿՙ ͱᎨᎰⱵⱶꚱꭸꮀ ͷИиᴎꚡ𐐥𐑍 ͽꜾꜿ
δԾծᐃᕷẟⲆⲇⵠ𐊅𐊣𖼚 πПпᴨⲠⲡꛛ ψѰѱᛘⲮⲯ𐊵𐓑𐓹 ωᘯᘵⲰⲱꙌꙍꞶꞷ𐊶 ϗⳤ ϙ𐊭𐌒 ϭⳜⳝ шⲼⲽ яᴙ љꭠ қⱩⱪ ҟꝀꝁ ңⱧⱨ ҷӋӌ ӄ𐒼𐓤 ӈӉӊ իኮ ձኔ մሆ \u0596\u05ad
\u0598\u05ae \u0599\u05a8 \u059a\u05a4 \u05c5\u05b4\u065c\u08ed\u093c\u09bc\u0a3c\u0abc\u0b3c\u1cdd \u0623\u0672
\u0625\u0673 \u062b\u063f\u067e\u06bd\u06d1 \u062f𐋡 \u0635𐋲 \u0637𐋨 \u0641\u06a7 \u0643\u06a9\u06aa \u0648\u08b1𐋤
\u0649\u064a\u066e\u06ba\u06cc\u06d2\u08bd \u064b\u08f0 \u064c\u08e5\u08e8\u08f1 \u064d\u08f2 \u065b\u07ee\u1cd0\ua6f0
\u065f\u0655 \u066f\u06a1\u08bb\u08bc \u0679\u06bb \u067b\u06d0 \u0681\u0772 \u06a4\u06a8 \u06ac\u0762 \u06ad\u0763
\u06af\u08b0 \u06ce\u0756 \u073c\u0742 \u0754\u0767\u08a9 \u07f3\u08eb \u08ee\u1cde ऽઽ \u0941\u0ac1 \u0942\u0ac2
\u0946\u0a4b \u094d\u0a4d\u0acd \u0983\u0a03\u0c03\u0c83\u0d03\u0d83\u1038 ঘ𑒒 চ𑒔 জ𑒖 ঞ𑒘 ট𑒙 ড𑒛 ণ𑒪 ত𑒞 থ𑒟 দ𑒠 ধ𑒡 ন𑒢 প𑒣 ব𑒩
ম𑒧 য𑒨 র𑒫 ল𑒝 ষ𑒭 স𑒮 ঽ𑓄 ৠৡ ஈர\u0bbe உഉ ஐஜജ ணണ ன\u0bc8 ய௰ ள\u0bd7 ழഴ ஶശ \u0bbf\u0d3f\u0d40 అಅ ఆಆ ఇಇ ఒಒ ఓಓ ఔಔ జಜ ఞಞ ణಣ యಯ
ఱಱ లಲ ഌങ ഞൡ രറ \u0d41\u0d42\u0d43 ขฃ คดต ฆม จຈ ชซ ฎฏ ฑท บບ ปປ ฝຝ พພ ฟຟ ภฦ ยຍ ฯ។ าๅ \u0e34\u17b7 \u0e35\u17b8
\u0e36\u17b9 \u0e37\u17ba \u0e38\u0eb8 \u0e39\u0eb9 \u0e48\u0ec8\u17cb \u0e49\u0ec9 \u0e4a\u0eca \u0e4b\u0ecb ๏៙ ๚៕ ๛៚
\u0f37\u302d རཪ ᄀᆨ ᄁᆩ ᄂᆫ ᄃᆮ ᄄퟍ ᄅᆯ ᄆᆷ ᄇᆸ ᄈퟦ ᄉᆺ ᄊᆻ ᄋᆼ ᄌᆽ ᄍퟹ ᄎᆾ ᄏᆿ ᄐᇀ ᄑᇁ ᄒᇂ ᄓᇅ ᄔᇿ ᄕᇆ ᄗᇊ ᄘᇍ ᄙᇐ
ᄚᄻᆶퟲ ᄛퟝ ᄜᇜ ᄝᇢ ᄠퟣ ᄡᆹ ᄣퟧ ᄧퟨ ᄨퟩ ᄪᇤ ᄫᇦ ᄭᇧ ᄯᇨ ᄰᇩ ᄱퟪ ᄲᇪ ᄶퟯ ᄷퟰ ᄹퟱ ᅀᇫ ᅁᇬ ᅅᇱ ᅆᇲ ᅇᇮ ᅌᇰ ᅖᇳ ᅗᇴ ᅙᇹ ᅛᇇ
ᅜᆬ ᅝᆭ ᅞᇋ ᆄᆆ ᆰꥤ ᆱꥨ ᆲꥩ ᆳꥬ ᇎꥦ ᇕꥫ ᇘꥮ ᇚꥯ ᇝꥱ ᇥꥴ ᐡᓑ ᐩᕀ ᐷᑀ ᑅⲴⲵ ᑔᑝ ᒉᘃ ᒐᘂ ᓓᘄ ᓚᘇ ᕃᘢ ᕆᘣ ᕊᘤ ᖵℲⅎꓞ ᖷꟻ ᗄɐⱯꓯ ᗡꓷ ᙠꓭ ᚹꚰ ᚼᛡ
ᚽᛂ ᛜ𐊔 ᛦ𐓐𐓸 ᛯⵣ អឣ ᠵᡕ ᡜᢖ ⰿꦒ ⴀꞆꞇ ⵀ𐊸 ⺂乛 ⺃乚 ⺅イ亻 ⺉刂 ⺋㔾 ⺎兀 ⺏尣 ⺐尢 ⺒巳 ⺓幺 ⺔彑 ⺖忄 ⺗㣺 ⺘扌 ⺙攵 ⺛旡 ⺞歺
⺠民 ⺡氵 ⺢氺 ⺣灬 ⺤爫 ⺦丬 ⺨犭 ⺫⺲罒 ⺭礻 ⺯糹 ⺱罓 ⺹耂 ⺺肀 ⺾⺿⻀艹 ⻁虎 ⻂衤 ⻃覀 ⻄西 ⻅见 ⻈讠 ⻉贝 ⻋车
⻌⻍辶 ⻏⻖阝 ⻐钅 ⻑長 ⻒镸 ⻓长 ⻔门 ⻘青 ⻙韦 ⻚页 ⻛风 ⻜飞 ⻝食 ⻟飠 ⻠饣 ⻢马 ⻤鬼 ⻥鱼 ⻨麦 ⻩黄 ⻫斉 ⻬齐 ⻭歯
⻮齿 ⻯竜 ⻰龙 ⻲亀 へヘ 㖈䎛 㘽㦳 㩁搉 㫚曶 㬵胶 㬺幐 㬻䐠 㮣槩 䀹鿃 䀿晣 䑃朦 䚶訞 二ニ 併倂 値值 八ハ 力カ 卜ト
口ロ囗 啓啟 土士 塡填 墫壿 夕タ 媯嬀 工エ 帡帲 戶戸 晚晩 朌肦 朏胐 朐胊 朓脁 朘脧 朣膧 杮柿 榝樧 溈潙 研硏 絕絶 胼腁
蒍蔿 蘷虁 訮詽 讆讏 豜豣 赿趆 跥跺 躗躛 軿輧 郎郞 鎭鎮 隷隸 鹂鹃 黑黒 ꙙ𖼜 ꜧꞕ ꞛ𐐒𐐺 ꣻ𑇜 ꥡퟏ ꥢퟐ ꥣퟒ ꥥퟕ ꦝꦣ 𐎂𐏑 𐎓𐏓 𐎚𒀸
\U00010cc2\U00010cfc \U00010ce5\U00010cfa 𑖂𑗘𑗙 𑖃𑗚 𑖄𑗛
"""


def lookalikes() -> dict[str, str]:
    """Return {letter: the letters (in lower case) or the digit as which it is compared}.

    If the table has a letter only in its other case, the letter is compared as that case, so that capitals do not
    change a word: Cyrillic `в` looks like no Latin letter, but `В` looks like B. Greek ν and υ have an entry for
    each case.
    """
    table = {letter: target for target, letters in _BY_LETTER.items() for letter in letters}
    table |= {letter: group[0] for group in _GROUPS.split() for letter in group[1:]}
    for letter, target in list(table.items()):
        for other in (letter.lower(), letter.upper()):
            if len(other) == 1 and not other.isascii() and other != target:
                table.setdefault(other, target)
    return table | {"ς": table["σ"]}
