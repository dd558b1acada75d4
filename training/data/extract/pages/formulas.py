"""Formulas of web pages as TeX: the forms in which pages carry them, and MathML converted where a page has no TeX.

Formulas are marked in the markup before a page is extracted, by two rare brackets, so that every extractor keeps
them as text; afterwards the marks become dollar signs, two at each end of a displayed formula.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape, unescape
from urllib.parse import unquote

OPEN, CLOSE = "\u27c5", "\u27c6"  # brackets that hardly any page has; trafilatura drops private characters
MARKS = str.maketrans({OPEN: "$", CLOSE: "$"})
MARKED = re.compile(f"{OPEN}+")
IN_TEXT = re.compile(
    r"\\\((?:(?!\\\)).){1,2000}\\\)|\\\[(?:(?!\\\]).){1,4000}\\\]|\$\$(?:(?!\$\$).){1,4000}\$\$"
    r"|\\begin\{(equation|align|gather|multline|eqnarray|alignat|flalign)\*?\}",
    re.DOTALL,
)
MAX_TEX_CHARACTERS = 20_000
MAX_DEPTH = 60  # of MathML

ATTRIBUTE = re.compile(r"""([^\s"'>/=]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]+))""")
ANNOTATION = re.compile(
    r"<(annotation)\b([^<>]{0,500}\bencoding\s*=\s*[\"']?(?:application/x-(?:la)?tex|(?:la)?tex|text/x-latex)\b[^<>]{0,500})>",
    re.IGNORECASE,
)
SCRIPT = re.compile(r"<(script)\b([^<>]{0,500}\bmath/tex[^<>]{0,500})>", re.IGNORECASE)
MATH = re.compile(r"""<(math)\b((?:[^<>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?+)*+)>""", re.IGNORECASE)
IMAGE = re.compile(r"""<img\b((?:[^<>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?+)*+)>""", re.IGNORECASE)
DRAWN = re.compile(r"""<mjx-math\b[^<>]*\sdata-latex\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.IGNORECASE)
IMAGE_CLASS = re.compile(
    r"(?:^|\s)(?:mwe-math-fallback\S*|tex|latex\S*|math|mathtex|ql-img\S*|equation_image|texrender|formula)(?:\s|$)"
)
IMAGE_SOURCE = re.compile(
    r"latex\.php|latex\.codecogs|/(?:gif|png|svg)\.(?:latex|image)|(?:math|mime)tex|[?&]cht=tx|/equation\?tex=|[?&]tex=",
)
IMAGE_QUERY = re.compile(r"[?&](?:latex|tex|chl)=([^&#]*)|(?:\.latex|\.image|tex\.cgi|codecogs\.com/[a-z.]+)\?([^#]*)")
IMAGE_SIZE = r"^\\(?:dpi|fn|bg|huge|large|small|inline)\b(?:_\w+|\{\w+\})?"
TEX_SIGNS = re.compile(r"[\\^_{}=+<>|]|^.{1,3}$")
STYLE = re.compile(r"^\{\s*\\(?:displaystyle|textstyle|scriptstyle)\b\s*(.*)\}$", re.DOTALL)
DELIMITED = re.compile(r"^(?:\\\((.*)\\\)|\\\[(.*)\\\]|\$\$(.*)\$\$|\$(.*)\$)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula as TeX without delimiters, and whether the page displays it on a line of its own."""

    tex: str
    is_display: bool = False
    is_image: bool = False

    @property
    def marked(self) -> str:
        """The formula as markup of plain text between marks."""
        times = 2 if self.is_display else 1
        return f"{OPEN * times}{escape(self.tex, quote=False)}{CLOSE * times}"


def element(start: re.Pattern[str], html: str) -> tuple[str, str] | None:
    """Return the attributes and the content of the first element whose start tag has a pattern; None if it has no end.

    The pattern's groups are the element's name and its attributes. The time is linear: where the first has no end, no
    later one has.
    """
    found = start.search(html)
    end = found and re.compile(f"</{found[1]}", re.IGNORECASE).search(html, found.end())
    return (found[2], html[found.end() : end.start()]) if found and end else None


def number_of(text: str, code: tuple[int, ...], *, is_marked: bool) -> int:
    """Return the number of formulas in an extracted text: marked, if the page's were, or written as TeX.

    Of the text in code, whose places begin and end in turn, only marked formulas count.
    """
    number = len(MARKED.findall(text)) if is_marked else 0
    if "\\" in text or "$$" in text:
        edges = [0, *code, len(text)]
        plain = (text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))
        number += sum(len(IN_TEXT.findall(one)) for one in plain)
    return number


def attributes_of(tag: str) -> dict[str, str]:
    """Return the attributes of a start tag by lower-case name; of repeated attributes the first counts."""
    made: dict[str, str] = {}
    for name, quoted, single, bare in ATTRIBUTE.findall(tag):
        made.setdefault(name.lower(), unescape(quoted or single or bare))
    return made


def formula(tex: str, *, is_display: bool = False, is_image: bool = False) -> Formula | None:
    """Return a formula of TeX as a page has it, without delimiters and style; None if nothing is left."""
    plain = re.sub(r"%\s*<!\[CDATA\[|%\s*\]\]>|<!\[CDATA\[|\]\]>", "", tex)
    plain = " ".join(plain.replace(OPEN, "").replace(CLOSE, "").split())
    if len(plain) > MAX_TEX_CHARACTERS:
        return None
    while found := STYLE.match(plain):
        if not _is_balanced(found[1]):
            break
        plain = found[1].strip()
    if found := DELIMITED.match(plain):
        is_display = is_display or found[2] is not None or found[3] is not None
        plain = next(one for one in found.groups() if one is not None).strip()
    if not plain:
        return None
    return Formula(plain, is_display, is_image)


def _is_balanced(tex: str) -> bool:
    depth = 0
    for sign in re.findall(r"\\.|[{}]", tex):
        depth += (sign == "{") - (sign == "}")
        if depth < 0:
            return False
    return depth == 0


def of_script(tag: str, content: str) -> Formula | None:
    """Return the formula of MathJax's `script type="math/tex"`."""
    return formula(unescape(content) if "&" in content else content, is_display="mode=display" in tag.replace(" ", ""))


def of_math(tag: str, content: str) -> Formula | None:
    """Return the formula of a `math` element: its TeX annotation, its `alttext`, or else its MathML converted."""
    given = attributes_of(tag)
    is_display = given.get("display") == "block" or given.get("mode") == "display"
    if found := element(ANNOTATION, content):
        return formula(unescape(found[1]), is_display=is_display)
    if (said := given.get("alttext", "")) and TEX_SIGNS.search(said):
        return formula(said, is_display=is_display)
    return formula(tex_of(content), is_display=is_display)


def of_image(tag: str) -> Formula | None:
    """Return the formula of which an image is a picture; None if the image is of something else."""
    given = attributes_of(tag)
    alt, source = given.get("alt", "").strip(), given.get("src", "")
    for name in ("data-latex", "data-tex", "data-equation-content", "data-formula"):
        if given.get(name):
            return formula(given[name], is_image=True)
    if DELIMITED.match(alt) or re.match(r"\\begin\{", alt):
        return formula(alt, is_image=True)
    if IMAGE_SOURCE.search(source):
        found = IMAGE_QUERY.search(source)
        in_address = unquote((found[1] or found[2] or "").replace("+", " ").replace("&space;", " ")) if found else ""
        tex = alt if alt and TEX_SIGNS.search(alt) else in_address or alt
    elif IMAGE_CLASS.search(given.get("class", "")) and TEX_SIGNS.search(alt):
        tex = alt
    else:
        return None
    tex = re.sub(r"^(?:LaTeX|TeX)\s*:\s*", "", tex)
    return formula(re.sub(IMAGE_SIZE, "", tex).strip(), is_image=True)


def of_wrapper(tag: str, content: str, *, has_scripts: bool, is_searched: bool, is_short: bool) -> Formula | None:
    """Return the formula of an element in which a script drew it; None if the element says no TeX and no MathML.

    Content that was searched before holds none. Beside a short text the element's own attributes count.
    """
    given = attributes_of(tag)
    is_display = "display" in given.get("class", "") or given.get("display") == "true"
    for name in ("data-tex", "data-latex", "data-formula", "data-math", "data-value"):
        if is_short and TEX_SIGNS.search(given.get(name, "")):
            return formula(given[name], is_display=is_display)
    made: Formula | None = None
    content = "" if is_searched else content
    if found := element(SCRIPT, content):
        made = of_script(*found)
    elif found := element(MATH, content):
        made = of_math(*found)
    elif found := element(ANNOTATION, content):
        made = formula(unescape(found[1]))
    elif drawn := DRAWN.search(content):
        made = formula(unescape(drawn[1] or drawn[2]))
    elif (found := element(MATH, given.get("data-mathml", ""))) and not has_scripts:
        made = of_math(*found)
    elif image := IMAGE.search(content):
        made = of_image(image[1])
    return made and Formula(made.tex, made.is_display or is_display)


# MathML to TeX


@dataclass(slots=True)
class _Element:
    name: str
    tag: str = ""
    parts: list[_Element | str] = field(default_factory=list)


TOKEN = re.compile(
    r"""<!--.*?(?:-->|\Z)|<(/?)(?:\w+:)?([a-z]\w*)((?:[^<>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?+)*+)>|([^<]+)|<""",
    re.IGNORECASE | re.DOTALL,
)
SIGNS = {
    "\u2061": "", "\u2062": "", "\u2063": "", "\u2064": "", "−": "-", "∗": "*", "′": "'", "≤": r"\le", "≥": r"\ge",
    "≠": r"\ne", "∑": r"\sum", "∏": r"\prod", "∫": r"\int", "∂": r"\partial", "∞": r"\infty", "∈": r"\in", "→": r"\to",
    "×": r"\times", "⋅": r"\cdot", "±": r"\pm", "√": r"\surd", "∀": r"\forall", "∃": r"\exists", "⊂": r"\subset",
    "∪": r"\cup", "∩": r"\cap", "≈": r"\approx", "≡": r"\equiv", "…": r"\dots", "∇": r"\nabla", "{": r"\{", "}": r"\}",
    "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "δ": r"\delta", "ε": r"\epsilon", "θ": r"\theta", "λ": r"\lambda",
    "μ": r"\mu", "π": r"\pi", "ρ": r"\rho", "σ": r"\sigma", "τ": r"\tau", "φ": r"\phi", "ω": r"\omega", "Γ": r"\Gamma",
    "Δ": r"\Delta", "Σ": r"\Sigma", "Φ": r"\Phi", "Ω": r"\Omega", "ψ": r"\psi", "η": r"\eta", "ξ": r"\xi", "χ": r"\chi",
}  # fmt: skip
FUNCTIONS = frozenset("sin cos tan cot sec csc log ln exp lim max min det dim sup inf arg gcd sinh cosh tanh".split())
ACCENTS = {"¯": "bar", "‾": "overline", "^": "hat", "~": "tilde", "→": "vec", "˙": "dot", "˜": "tilde", "ˆ": "hat"}


def tex_of(mathml: str) -> str:
    """Return the content of a `math` element as TeX; elements that are not known give their content."""
    root = _Element("mrow")
    stack = [root]
    for found in TOKEN.finditer(mathml):
        closing, name, tag, text = found.groups()
        if text is not None:
            stack[-1].parts.append(unescape(text))
        elif name is None:
            continue
        elif closing:
            at = next((n for n in range(len(stack) - 1, 0, -1) if stack[n].name == name.lower()), 0)
            del stack[at or len(stack) :]
        elif len(stack) <= MAX_DEPTH:
            element = _Element(name.lower(), tag)
            stack[-1].parts.append(element)
            if not tag.endswith("/"):
                stack.append(element)
    return re.sub(r"\s+", " ", _tex(root)).strip()


def _tex(one: _Element | str) -> str:
    if isinstance(one, str):
        return one.strip()
    if one.name in ("mi", "mn", "mo", "ms", "mtext"):
        return _token(one)
    if one.name in ("annotation", "annotation-xml", "mspace", "mphantom", "none", "mprescripts", "malignmark"):
        return ""
    parts = [_tex(part) for part in one.parts]  # once for each: twice would be 2**MAX_DEPTH times
    given = [part for part, was in zip(parts, one.parts, strict=True) if isinstance(was, _Element)]
    if one.name == "semantics":
        return given[0] if given else ""
    shape = SHAPES.get((one.name, len(given)))
    if shape:
        accent = ACCENTS.get(given[1].strip()) if one.name == "mover" else None
        return (
            f"\\{accent}{{{given[0]}}}"
            if accent
            else shape.format(*(_argument(part, is_base=one.name != "mfrac" and not n) for n, part in enumerate(given)))
        )
    if one.name == "msqrt":
        return f"\\sqrt{{{_joined(given)}}}"
    if one.name == "mtable":
        return f"\\begin{{matrix}} {' '.join(given)} \\end{{matrix}}"
    if one.name in ("mtr", "mlabeledtr"):
        return " & ".join(given) + r" \\"
    if one.name == "mfenced":
        said = attributes_of(one.tag)
        return f"{said.get('open', '(')}{', '.join(given)}{said.get('close', ')')}"
    return _joined(parts)


SHAPES = {
    ("msup", 2): "{0}^{1}", ("msub", 2): "{0}_{1}", ("msubsup", 3): "{0}_{1}^{2}", ("munder", 2): "{0}_{1}",
    ("mover", 2): "{0}^{1}", ("munderover", 3): "{0}_{1}^{2}", ("mfrac", 2): "\\frac{0}{1}",
    ("mroot", 2): "\\sqrt[{1}]{0}",
}  # fmt: skip


def _token(one: _Element) -> str:
    text = "".join(part if isinstance(part, str) else _tex(part) for part in one.parts).strip()
    if one.name in ("mtext", "ms"):
        return f"\\text{{{text}}}" if text else ""
    if one.name == "mi" and text in FUNCTIONS:
        return f"\\{text}"
    return "".join(f"{said} " if len(said) > 1 and said[0] == "\\" and said[1:].isalpha() else said
                   for sign in text for said in (SIGNS.get(sign, sign),)).rstrip()  # fmt: skip


def _argument(tex: str, *, is_base: bool) -> str:
    """Return TeX in braces, which a base of one sign does not need."""
    return tex if is_base and (len(tex) == 1 or re.fullmatch(r"\\[A-Za-z]+", tex)) else "{" + tex + "}"


def _joined(parts: list[str]) -> str:
    """Return pieces of TeX one after the other, with a blank where a command would swallow the next letter."""
    made = ""
    for part in parts:
        gap = " " if re.search(r"\\[A-Za-z]+$", made[-40:]) and part[:1].isalpha() else ""
        made += gap + part
    return made
