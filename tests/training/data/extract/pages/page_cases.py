# ruff: noqa: E501 - a page is one string
"""Small pages, each with what its text must and must not contain, and how many formulas it has.

`python -m benchmarks.extraction --cases` prints the table of them.
"""

from __future__ import annotations

from dataclasses import dataclass

BEGIN = (
    "<p>The ferry to the northern islands leaves the harbour twice a day in summer and once a day in winter, and the"
    " crossing takes about ninety minutes when the sea is calm.</p>"
)
END = (
    "<p>Tickets are sold in the small office beside the lighthouse, and children who are younger than six years travel"
    " without a ticket when an adult is with them.</p>"
)


@dataclass(frozen=True, slots=True)
class Case:
    """A page: `body` between two paragraphs, or the whole page if it begins with `<html`.

    All texts in `has` must be in its text, and none of those in `lacks`. Each of `formulas` must be in it once.
    """

    name: str
    body: str
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    formulas: tuple[str, ...] = ()
    extractors: tuple[str, ...] = ("blocks", "blocks_or_trafilatura")

    @property
    def html(self) -> str:
        """The whole page."""
        if self.body.startswith("<html"):
            return self.body
        head = "<!DOCTYPE html><html lang=en><head><title>Ferry</title></head><body><main><h1>Ferry times</h1>"
        return f"{head}{BEGIN}{self.body}{END}</main></body></html>"

    def wrong(self, text: str, num_formulas: int) -> list[str]:
        """Return what is wrong with the text of the page: texts that are missing, or there, or there again."""
        missing = [f"lacks {one!r}" for one in self.has if one not in text]
        extra = [f"has {one!r}" for one in self.lacks if one in text]
        doubled = [f"has {text.count(one)} times {one!r}" for one in self.formulas if text.count(one) != 1]
        number = f"counts {num_formulas} formulas of {len(self.formulas)}"
        return missing + extra + doubled + ([number] if num_formulas != len(self.formulas) else [])


ALL = ("blocks", "blocks_or_trafilatura", "trafilatura", "resiliparse")
CASES = [
    Case(
        "list-in-cell",
        "<table><tr><td>Monday</td><td><ul><li>10:00 to 20:00</li></ul></td></tr><tr><td>Tuesday</td><td><ul><li>closed all day</li></ul></td></tr><tr><td>Wednesday</td><td><ul><li>11:15 to 19:45</li></ul></td></tr></table>",
        has=("10:00 to 20:00", "closed all day", "11:15 to 19:45", "Tuesday"),
    ),
    Case(
        "bare-body",
        "<html><head><title>x</title></head><body><p>The ferry to the northern islands leaves the harbour twice a day in summer and once a day in winter, and the crossing takes about ninety minutes when the sea is calm.</p><ul><li>The company never answered the first of our letters.</li><li>The second letter was sent back unopened in spring.</li><li>Only the third was answered, by a lawyer.</li></ul><p>Tickets are sold in the small office beside the lighthouse, and children who are younger than six years travel without a ticket when an adult is with them.</p></body></html>",
        has=("sent back unopened", "answered, by a lawyer"),
    ),
    Case(
        "li-span",
        '<ul><li><span class="content-h7" tabindex="0">You may ask which records we hold about you</span></li><li><span class="content-h7" tabindex="0">You may ask us to erase all of these records</span></li></ul>',
        has=("which records we hold", "erase all of these"),
    ),
    Case(
        "table-of-links",
        '<h2>Appendix B</h2><table><tr><th>Indicator</th><th>Where</th></tr><tr><td><a href="/i/1">sample1.example/path1</a></td><td><a href="/w/1">report 1 of 2021</a></td></tr><tr><td><a href="/i/2">sample2.example/path2</a></td><td><a href="/w/2">report 2 of 2021</a></td></tr><tr><td><a href="/i/3">sample3.example/path3</a></td><td><a href="/w/3">report 3 of 2021</a></td></tr><tr><td><a href="/i/4">sample4.example/path4</a></td><td><a href="/w/4">report 4 of 2021</a></td></tr><tr><td><a href="/i/5">sample5.example/path5</a></td><td><a href="/w/5">report 5 of 2021</a></td></tr><tr><td><a href="/i/6">sample6.example/path6</a></td><td><a href="/w/6">report 6 of 2021</a></td></tr><tr><td><a href="/i/7">sample7.example/path7</a></td><td><a href="/w/7">report 7 of 2021</a></td></tr><tr><td><a href="/i/8">sample8.example/path8</a></td><td><a href="/w/8">report 8 of 2021</a></td></tr></table>',
        has=("sample3.example/path3", "report 7 of 2021"),
    ),
    Case(
        "td-p-b",
        "<table><tr><td><p><b>Model-5.4</b></p></td><td><p><strong>71.2</strong></p></td></tr><tr><td><p><b>Model-4.1</b></p></td><td><p><i>64.9</i></p></td></tr></table>",
        has=("Model-5.4", "71.2", "64.9"),
    ),
    Case(
        "code-br",
        "<pre><code>def f(x):<br>    if x:<br>        return 1<br>    return 0</code></pre>",
        has=("def f(x):\n    if x:\n        return 1",),
    ),
    Case(
        "code-div-lines",
        '<pre class="code"><div class="line"><span>def f(x):</span></div><div class="line"><span>    if x:</span></div><div class="line"><span>        return 1</span></div></pre>',
        has=("def f(x):\n    if x:\n        return 1",),
    ),
    Case(
        "code-line-numbers",
        '<div class="highlight"><table><tr><td class="gutter"><pre>1\n2\n3</pre></td><td class="code"><pre>def f(x):\n    if x:\n        return 1</pre></td></tr></table></div>',
        has=("def f(x):\n    if x:\n        return 1",),
        lacks=("1\n2\n3\n",),
    ),
    Case(
        "code-nbsp",
        "<pre>if x:\n&nbsp;&nbsp;&nbsp;&nbsp;y = 1\n&nbsp;&nbsp;&nbsp;&nbsp;z = 2</pre>",
        has=("if x:\n    y = 1",),
    ),
    Case(
        "mediawiki-math",
        '<p>Here <span class="mwe-math-element"><span class="mwe-math-mathml-inline mwe-math-mathml-a11y" style="display: none;"><math alttext="{\\displaystyle x^{2}+1}"><semantics><mrow><msup><mi>x</mi><mn>2</mn></msup><mo>+</mo><mn>1</mn></mrow><annotation encoding="application/x-tex">{\\displaystyle x^{2}+1}</annotation></semantics></math></span><img src="a.svg" class="mwe-math-fallback-image-inline" alt="{\\displaystyle x^{2}+1}"></span> has no real root.</p>',
        has=("x^{2}+1",),
        lacks=("Here has no real root", "Here  has"),
        formulas=("$x^{2}+1$",),
        extractors=ALL,
    ),
    Case(
        "mathjax-script",
        '<p>The area is <script type="math/tex">\\pi r^2</script> for every circle of radius r.</p>',
        has=("\\pi r^2",),
        lacks=("area is for", "area is  for"),
        formulas=("$\\pi r^2$",),
        extractors=ALL,
    ),
    Case(
        "details",
        "<h2>Questions</h2><details><summary>May I take a bicycle?</summary><div><p>A bicycle may be taken on deck when there is room and costs four crowns.</p></div></details><details><summary>Is there food on board?</summary><div><p>Coffee and bread are sold on board, but there is no warm kitchen.</p></div></details><details><summary>Are dogs allowed?</summary><div><p>Dogs are allowed on deck and must be on a leash all the time.</p></div></details>",
        has=("May I take a bicycle?", "costs four crowns", "Are dogs allowed?", "on a leash"),
    ),
    Case(
        "accordion-hidden",
        '<h2>Questions</h2><div class="accordion-item"><h3>May I take a bicycle?</h3><div class="accordion-panel collapse" aria-hidden="true"><p>A bicycle may be taken on deck when there is room and costs four crowns.</p></div></div><div class="accordion-item"><h3>Is there food on board?</h3><div class="accordion-panel collapse" aria-hidden="true"><p>Coffee and bread are sold on board, but there is no warm kitchen.</p></div></div>',
        has=("May I take a bicycle?", "costs four crowns", "no warm kitchen"),
        extractors=ALL,
    ),
    Case(
        "ol-start",
        '<ol><li>Go to the pier.</li><li>Wait for the bell.</li></ol><ol start="3"><li>Walk on board.</li></ol>',
        has=("Go to the pier", "Walk on board"),
    ),
    Case(
        "dl",
        "<dl><dt>Starboard</dt><dd>The right side of a ship, seen towards the bow.</dd><dt>Port</dt><dd>The left side of a ship, seen towards the bow.</dd></dl>",
        has=("Starboard", "The left side"),
    ),
    Case(
        "index-page",
        '<html><body><main><div class="card"><h2><a href="/1">Why walking backwards helps</a></h2><p>Physicians say that a short walk backwards trains balance.</p><span>1 Aug 2025</span></div><div class="card"><h2><a href="/2">What matcha does</a></h2><p>The powder of green leaves has more caffeine than most people think.</p><span>2 Aug 2025</span></div><div class="card"><h2><a href="/3">Electrolytes in drinks</a></h2><p>Water with salts is sold as a cure, and rarely is one.</p><span>3 Aug 2025</span></div></main></body></html>',
        lacks=("balance.What", "helpsPhysicians", "thinkPhysicians", "2025What", "2025Electrolytes"),
    ),
    Case(
        "inline-glue",
        "<div><span>Adults</span><span>12 crowns</span></div><div>Children<br>free</div><p>cost<b>less</b>than&nbsp;that</p>",
        has=("Children",),
        lacks=("Childrenfree",),
    ),
    Case(
        "wbr-shy",
        "<p>The Donau&shy;dampf&shy;schiff<wbr>fahrt runs in summer and is loved by many who come from far away.</p>",
        has=("schifffahrt",),
        lacks=("schiff fahrt", "schiff\nfahrt"),
    ),
    Case(
        "sup-sub",
        "<p>Water is H<sub>2</sub>O, and the area is 10<sup>6</sup> m<sup>2</sup> in this bay, as was measured<sup><a href='#fn1'>[1]</a></sup> in spring.</p>",
        has=("H2O", "10^6 m^2 in", "measured in"),
        lacks=("10 6", "measured[1]"),
    ),
    Case(
        "del-ins",
        "<p>The price is <del>12 crowns</del> <ins>14 crowns</ins> from May on for every adult who boards at the pier.</p>",
        has=("price is 14 crowns",),
        lacks=("12 crowns 14", "12 crowns14"),
    ),
    Case(
        "template-tag",
        "<template><p>This text is only a template and is never shown to anybody who reads the page.</p></template><noscript><p>Please switch on scripts to see the timetable of this page.</p></noscript>",
        lacks=("only a template",),
    ),
    Case("textarea-code", "<xmp>if (a < b) { c(); }</xmp>", has=("if (a < b) { c(); }",)),
    Case(
        "rtl-bidi",
        "<p>\u202bכרטיסים נמכרים במשרד הקטן ליד המגדלור\u202c, so the sign over the door of the office says in Hebrew.</p>",
        has=("כרטיסים נמכרים",),
    ),
    Case(
        "select-options",
        "<select><option>Country number 0</option><option>Country number 1</option><option>Country number 2</option><option>Country number 3</option><option>Country number 4</option><option>Country number 5</option><option>Country number 6</option><option>Country number 7</option><option>Country number 8</option><option>Country number 9</option><option>Country number 10</option><option>Country number 11</option><option>Country number 12</option><option>Country number 13</option><option>Country number 14</option><option>Country number 15</option><option>Country number 16</option><option>Country number 17</option><option>Country number 18</option><option>Country number 19</option><option>Country number 20</option><option>Country number 21</option><option>Country number 22</option><option>Country number 23</option><option>Country number 24</option><option>Country number 25</option><option>Country number 26</option><option>Country number 27</option><option>Country number 28</option><option>Country number 29</option><option>Country number 30</option><option>Country number 31</option><option>Country number 32</option><option>Country number 33</option><option>Country number 34</option><option>Country number 35</option><option>Country number 36</option><option>Country number 37</option><option>Country number 38</option><option>Country number 39</option></select>",
        has=("Tickets are sold",),
        lacks=("Country number 7",),
    ),
    Case(
        "cookie-wall",
        "<html><body><div id='consent-dialog' role='dialog'><p>We and our 842 partners store cookies on your device to measure what you read and to show you advertising that suits you. We and our 842 partners store cookies on your device to measure what you read and to show you advertising that suits you. We and our 842 partners store cookies on your device to measure what you read and to show you advertising that suits you. We and our 842 partners store cookies on your device to measure what you read and to show you advertising that suits you. </p></div><main><p>The ferry to the northern islands leaves the harbour twice a day in summer and once a day in winter, and the crossing takes about ninety minutes when the sea is calm.</p></main></body></html>",
        has=("The ferry",),
        lacks=("842 partners",),
    ),
    Case(
        "comment-thread",
        "<html><body><div class='thread'><div class='post comment' id=c0><div class=author>user0</div><div class='post-body'><p>Answer 0: to stop the leak one must first close the valve under the sink and then wait for some minutes.</p></div></div><div class='post comment' id=c1><div class=author>user1</div><div class='post-body'><p>Answer 1: to stop the leak one must first close the valve under the sink and then wait for some minutes.</p></div></div><div class='post comment' id=c2><div class=author>user2</div><div class='post-body'><p>Answer 2: to stop the leak one must first close the valve under the sink and then wait for some minutes.</p></div></div><div class='post comment' id=c3><div class=author>user3</div><div class='post-body'><p>Answer 3: to stop the leak one must first close the valve under the sink and then wait for some minutes.</p></div></div><div class='post comment' id=c4><div class=author>user4</div><div class='post-body'><p>Answer 4: to stop the leak one must first close the valve under the sink and then wait for some minutes.</p></div></div><div class='post comment' id=c5><div class=author>user5</div><div class='post-body'><p>Answer 5: to stop the leak one must first close the valve under the sink and then wait for some minutes.</p></div></div></div></body></html>",
        has=("Answer 0", "Answer 5"),
    ),
    Case(
        "mathjax-display",
        "<p>Then <script type='math/tex; mode=display'>\\int_0^1 x\\,dx = \\frac12</script> holds.</p>",
        formulas=("$$\\int_0^1 x\\,dx = \\frac12$$",),
        extractors=ALL,
    ),
    Case(
        "mathjax-cdata",
        "<p>So <script type='math/tex'>% <![CDATA[ a < b \\& c %]]></script> holds.</p>",
        formulas=("$a < b \\& c$",),
        extractors=ALL,
    ),
    Case(
        "mathjax-drawn",
        "<p>So <span class='MathJax_Preview'>x2</span><span class='MathJax' id='MathJax-Element-1-Frame'><nobr><span class='math'><span>x</span><span>2</span></span></nobr></span><script type='math/tex' id='MathJax-Element-1'>x^2+y</script> holds.</p>",
        formulas=("$x^2+y$",),
        extractors=ALL,
    ),
    Case(
        "mathjax-3",
        "<p>So <mjx-container class='MathJax' jax='CHTML'><mjx-math><mjx-mi><mjx-c></mjx-c></mjx-mi></mjx-math><mjx-assistive-mml unselectable='on' display='inline'><math xmlns='http://www.w3.org/1998/Math/MathML'><msup><mi>x</mi><mn>2</mn></msup><mo>=</mo><mi>y</mi></math></mjx-assistive-mml></mjx-container> holds.</p>",
        formulas=("$x^{2}=y$",),
        extractors=ALL,
    ),
    Case(
        "katex",
        "<p>So <span class='katex'><span class='katex-mathml'><math><semantics><mrow><msup><mi>e</mi><mi>x</mi></msup></mrow><annotation encoding='application/x-tex'>e^x &gt; 0</annotation></semantics></math></span><span class='katex-html' aria-hidden='true'><span class='base'><span class='mord'>e</span><span class='mord'>x</span></span></span></span> holds.</p>",
        formulas=("$e^x > 0$",),
        extractors=ALL,
    ),
    Case(
        "katex-display",
        "<p>So <span class='katex-display'><span class='katex'><span class='katex-mathml'><math display='block'><semantics><mrow><mi>E</mi></mrow><annotation encoding='application/x-tex'>E = mc^2</annotation></semantics></math></span><span class='katex-html' aria-hidden='true'><span>E=mc2</span></span></span></span> holds.</p>",
        formulas=("$$E = mc^2$$",),
        extractors=ALL,
    ),
    Case(
        "latexml",
        "<p>So <math id='p1.m1' class='ltx_Math' alttext='\\alpha&lt;\\beta' display='inline'><semantics><mrow><mi>α</mi><mo>&lt;</mo><mi>β</mi></mrow><annotation-xml encoding='MathML-Content'><apply><lt/><ci>α</ci></apply></annotation-xml><annotation encoding='application/x-tex'>\\alpha&lt;\\beta</annotation></semantics></math> holds.</p>",
        formulas=("$\\alpha<\\beta$",),
        extractors=ALL,
    ),
    Case(
        "mathml-alttext",
        '<p>So <math alttext="a &gt; b_1"><mi>a</mi><mo>></mo><mi>b</mi></math> holds.</p>',
        formulas=("$a > b_1$",),
        extractors=ALL,
    ),
    Case(
        "mathml-plain",
        "<p>So <math><mfrac><mrow><mi>a</mi><mo>+</mo><mn>1</mn></mrow><msqrt><mi>b</mi></msqrt></mfrac><mo>&#8804;</mo><mi>&#960;</mi></math> holds.</p>",
        formulas=("$\\frac{a+1}{\\sqrt{b}}\\le\\pi$",),
        extractors=ALL,
    ),
    Case(
        "mathml-prefix",
        "<p>So <math><mrow><mi>sin</mi><mi>x</mi><mo>&#8289;</mo></mrow></math> holds.</p>",
        formulas=("$\\sin x$",),
        extractors=ALL,
    ),
    Case(
        "wikipedia-image",
        "<p>So <img class='tex' alt='\\frac{a}{b}' src='//upload.test/math/1/2.png'> holds.</p>",
        formulas=("$\\frac{a}{b}$",),
        extractors=ALL,
    ),
    Case(
        "wikipedia-block",
        "<dl><dd><span class='mwe-math-element'><span class='mwe-math-mathml-display mwe-math-mathml-a11y' style='display: none;'><math display='block' alttext='{\\displaystyle \\sum _{i}x_{i}}'><semantics><mi>x</mi><annotation encoding='application/x-tex'>{\\displaystyle \\sum _{i}x_{i}}</annotation></semantics></math></span><img src='https://wikimedia.test/api/rest_v1/media/math/render/svg/1' class='mwe-math-fallback-image-display' aria-hidden='true' alt='{\\displaystyle \\sum _{i}x_{i}}'></span></dd></dl>",
        formulas=("$$\\sum _{i}x_{i}$$",),
        extractors=ALL,
    ),
    Case(
        "wordpress-image",
        "<p>So <img src='https://s0.wp.com/latex.php?latex=x%5E2%2B1&bg=ffffff&fg=000000&s=0' alt='x^2+1' title='x^2+1' class='latex' /> holds.</p>",
        formulas=("$x^2+1$",),
        extractors=ALL,
    ),
    Case(
        "codecogs-sized",
        "<p>So <img src='https://latex.codecogs.com/svg.latex?\\small&space;r=2^n'> holds.</p>",
        formulas=("$r=2^n$",),
        extractors=ALL,
    ),
    Case(
        "figure-formula",
        "<figure class='equation'><div class='equation-container'><span class='katex-display'><span class='katex'><span class='katex-mathml'><math><semantics><mrow><mi>b</mi></mrow><annotation encoding='application/x-tex'>b = 24</annotation></semantics></math></span><span class='katex-html' aria-hidden='true'>b=24</span></span></span></div></figure>",
        formulas=("$$b = 24$$",),
        extractors=ALL,
    ),
    Case(
        "codecogs",
        "<p>So <img src='https://latex.codecogs.com/gif.latex?%5Cfrac%7Ba%7D%7B2%7D'> holds.</p>",
        formulas=("$\\frac{a}{2}$",),
        extractors=ALL,
    ),
    Case(
        "zhihu",
        "<p>So <img src='https://www.zhihu.test/equation?tex=y%3Dkx' alt='y=kx' eeimg='1'> and <span class='ztext-math' data-eeimg='1' data-tex='k_1'>k1</span> hold.</p>",
        formulas=("$y=kx$", "$k_1$"),
        extractors=ALL,
    ),
    Case(
        "latex2html",
        "<p>So <img width='37' align='MIDDLE' src='img3.png' alt='$x_1 \\le 2$'> holds.</p>",
        formulas=("$x_1 \\le 2$",),
        extractors=ALL,
    ),
    Case(
        "hidden-mathml-and-image",
        "<p>So <span style='display:none'><math alttext='a^{2}'><msup><mi>a</mi><mn>2</mn></msup></math></span><img class='tex' alt='a^2' src='/m.png'> holds.</p>",
        formulas=("$a^2$",),
        extractors=ALL,
    ),
    Case(
        "empty-elements",
        "<p>Boats <i class='fa'></i> leave at six <a id='x'></a>or at seven,<span><b></b></span> if <em> </em>rain holds off.</p>",
        has=("Boats", "leave at six", "or at seven, if", "rain holds off"),
        extractors=ALL,
    ),
    Case(
        "amp",
        "<p>So <amp-mathml layout='container' inline data-formula='\\[x = 1\\]'></amp-mathml> holds.</p>",
        formulas=("$$x = 1$$",),
        extractors=ALL,
    ),
    Case(
        "tex-in-text",
        "<p>So \\(a_1 &lt; b\\) holds, and also</p><p>\\[c = d\\]</p><p>and $$e = f$$ in the end.</p>",
        formulas=("\\(a_1 < b\\)", "\\[c = d\\]", "$$e = f$$"),
        extractors=ALL,
    ),
    Case(
        "pandoc",
        "<p>So <span class='math inline'>\\(a^2\\)</span> holds.</p><p><span class='math display'>\\[b^2\\]</span></p>",
        formulas=("\\(a^2\\)", "\\[b^2\\]"),
        extractors=ALL,
    ),
    Case(
        "image-of-no-formula",
        "<p>A <img class='photo' src='ferry.jpg' alt='the ferry = fast'> leaves.</p>",
        has=(),
        lacks=("the ferry = fast",),
    ),
    Case(
        "superscripts",
        "<p>It is 2.5 &times; 10<sup>&minus;3</sup> m<sup>2</sup> and x<sup>n+1</sup>, on the 1<sup>st</sup> and 2<sup>nd</sup> of May, for $19<sup>99</sup>, Ca<sup>2+</sup>.</p>",
        has=("10^−3 m^2", "x^(n+1)", "1st and 2nd", "$19.99", "Ca^2+"),
    ),
    Case(
        "footnotes",
        "<p>It sails<sup id='r1'><a href='#n1'>1</a></sup> often<sup class='reference'>[2]</sup> and far.<sup>3</sup> Some say<a href='#n4' class='footnote-ref'><sup>4</sup></a> so<sup>[note 5]</sup>, it is<sup><a href='/w/Help#x'>[citation needed]</a></sup> slow.</p>",
        has=("sails often and far. Some say so, it is slow.",),
    ),
    Case("old-capitals", "<p>It is 10<SUP>6</SUP> m.</p><PRE>if x:\n&nbsp;&nbsp;y</PRE>", has=("10^6 m", "if x:\n  y")),
    Case(
        "code-li-lines",
        "<pre class='prettyprint linenums'><ol><li>def f(x):</li><li>    return x</li></ol></pre>",
        has=("def f(x):\n    return x",),
    ),
    Case(
        "code-span-numbers",
        "<pre><code><span class='lineno'>1</span> def f(x):\n<span class='lineno'>2</span>     return x</code></pre>",
        has=("def f(x):\n     return x",),
        lacks=("1 def",),
    ),
    Case("code-div-nl", "<pre><div>a = 1\n</div><div>b = 2\n</div></pre>", has=("a = 1\nb = 2",)),
    Case(
        "code-no-pre",
        "<div class='codehilite'><div class='line'>def f(x):</div><div class='line'>&nbsp;&nbsp;return x</div></div>",
        has=("def f(x):\n  return x",),
    ),
    Case("code-deleted", "<pre><code>- <del>old</del>\n+ new</code></pre>", has=("- old\n+ new",)),
    Case(
        "struck",
        "<p>The price is <s>12</s> 14 crowns for <strike>all</strike> adults.</p>",
        has=("price is 14 crowns for adults",),
    ),
    Case(
        "accordion-bootstrap",
        "<div class='accordion'><div class='accordion-item'><h2 class='accordion-header'><button class='accordion-button collapsed' data-bs-toggle='collapse'>May I take a bicycle?</button></h2><div id='c1' class='accordion-collapse collapse'><div class='accordion-body'>A bicycle may be taken on deck when there is room and costs four crowns.</div></div></div><div class='accordion-item'><h2 class='accordion-header'><button class='accordion-button collapsed'>Is there food on board?</button></h2><div id='c2' class='accordion-collapse collapse'><div class='accordion-body'>Coffee and bread are sold on board, but there is no warm kitchen.</div></div></div></div>",
        has=("May I take a bicycle?", "four crowns", "Is there food", "warm kitchen"),
        extractors=ALL,
    ),
    Case(
        "accordion-hidden-attribute",
        "<h3>May I take a bicycle?</h3><div hidden><p>A bicycle may be taken on deck when there is room and costs four crowns.</p></div><h3>Is there food?</h3><div style='display: none'><p>Coffee and bread are sold on board, but there is no warm kitchen.</p></div>",
        has=("May I take a bicycle?", "four crowns", "warm kitchen"),
        extractors=ALL,
    ),
    Case(
        "accordion-dl",
        "<dl><dt>May I take a bicycle?</dt><dd aria-hidden='true'>A bicycle may be taken on deck when there is room and costs four crowns.</dd><dt>May I take a bicycle?</dt><dd aria-hidden='true'>Another answer to an equal question, which must be there as well.</dd></dl>",
        has=("four crowns", "Another answer"),
        extractors=ALL,
    ),
    Case(
        "hidden-copy",
        "<h3>May I take a bicycle?</h3><div class='hidden'><p>A hidden copy of the answer, for another kind of screen, that nobody needs.</p></div><div><p>A bicycle may be taken on deck when there is room and costs four crowns.</p></div>",
        has=("four crowns",),
        lacks=("hidden copy",),
    ),
    Case(
        "footnotes-docbook",
        "<p>An officer of Debian <a href='#ftn.1' class='footnote'><sup class='footnote'>[83]</sup></a>, who knows.</p>",
        has=("of Debian, who knows",),
        lacks=("[83]",),
    ),
    Case(
        "footnotes-side-by-side",
        "<p>It sails<sup><a href='#n1'>[1]</a></sup><sup><a href='#n2'>[2]</a></sup><sup><a href='#n3'>[3]</a></sup> in spring<sup><a href='#n4'>4</a></sup>and autumn.</p><p>Er f\u00e4hrt oft<sup><a href='#n5'>5</a></sup>weit; \u8239\u5f00<sup>[6]</sup>\u4e86.</p>",
        has=("It sails in spring and autumn.", "oft weit; \u8239\u5f00\u4e86."),
    ),
    Case(
        "footnotes-back",
        "<ol><li><span class='mw-cite-backlink'>^ <a href='#r1'><sup><i><b>a</b></i></sup></a> <a href='#r2'><sup><i><b>b</b></i></sup></a></span> The timetable of the northern islands, printed by the harbour office.</li></ol>",
        has=("The timetable of the northern islands",),
        lacks=(" a b", "^ b"),
    ),
    Case(
        "infobox",
        "<table class='infobox vcard'><caption>Ferry</caption><tr><th>Owner</th><td>the harbour office</td></tr><tr><th>Founded</th><td>1998 in the north</td></tr><tr><th>Ships</th><td>four, of which two are old</td></tr></table>",
        lacks=("Owner", "1998 in the north"),
    ),
    Case(
        "formula-katex-render-attr",
        "<p>So <span class='math inline' data-tex='x^2+1'></span> holds.</p>",
        formulas=("$x^2+1$",),
    ),
    Case(
        "formula-quill",
        '<p>So <span class="ql-formula" data-value="x^2">\ufeff<span><span class="katex"><span class="katex-mathml"><math><semantics><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow><annotation encoding="application/x-tex">x^2</annotation></semantics></math></span><span class="katex-html" aria-hidden="true"><span>x2</span></span></span></span></span> holds.</p>',
        formulas=("$x^2$",),
    ),
    Case(
        "formula-quill-undrawn",
        '<p>So <span class="ql-formula" data-value="x^2"></span> holds.</p>',
        formulas=("$x^2$",),
    ),
    Case("formula-img-tex-alone", '<p>So <img class="tex" alt="a^2+b" src="/m.png"> holds.</p>', formulas=("$a^2+b$",)),
    Case(
        "formula-mathml-namespace",
        "<p>So <m:math xmlns:m='http://www.w3.org/1998/Math/MathML'><m:msup><m:mi>x</m:mi><m:mn>2</m:mn></m:msup></m:math> holds.</p>",
        formulas=("$x^{2}$",),
    ),
    Case(
        "formula-mathjax2-svg",
        '<p>So <span class="MathJax_SVG" id="MathJax-Element-1-Frame" data-mathml=\'&lt;math&gt;&lt;msup&gt;&lt;mi&gt;x&lt;/mi&gt;&lt;mn&gt;2&lt;/mn&gt;&lt;/msup&gt;&lt;/math&gt;\'><svg></svg></span> holds.</p>',
        formulas=("$x^{2}$",),
    ),
    Case(
        "formula-mathjax4-itemtype",
        "<p>So <mjx-container jax='CHTML'><mjx-math data-latex='a+b'><mjx-mi data-latex='a'>a</mjx-mi></mjx-math></mjx-container> holds.</p>",
        formulas=("$a+b$",),
    ),
    Case(
        "formula-annotation-latex",
        "<p>So <math><semantics><mi>x</mi><annotation encoding='LaTeX'>x_1</annotation></semantics></math> holds.</p>",
        formulas=("$x_1$",),
    ),
    Case("formula-asciimath", "<p>So <script type='math/asciimath'>x^2</script> holds.</p>", has=("x^2",)),
    Case(
        "formula-script-mml",
        "<p>So <script type='math/mml'><math><mi>x</mi><mo>=</mo><mn>1</mn></math></script> holds.</p>",
        formulas=("$x=1$",),
    ),
    Case(
        "formula-data-math",
        "<p>So <span data-math='x_2' data-type='inline-math'></span> holds.</p>",
        formulas=("$x_2$",),
    ),
    Case(
        "folded-details",
        "<details><summary>May I take a bicycle?</summary><p>A bicycle may be taken on deck and costs four crowns.</p></details>",
        has=("May I take a bicycle?", "four crowns"),
        extractors=ALL,
    ),
    Case(
        "folded-aria-expanded",
        "<h3><button aria-expanded='false' aria-controls='p1'>May I take a bicycle?</button></h3><div id='p1' role='region' hidden=''><p>A bicycle may be taken on deck and costs four crowns.</p></div><h3><button aria-expanded='false' aria-controls='p2'>Is there food?</button></h3><div id='p2' role='region' hidden><p>Coffee and bread are sold on board.</p></div>",
        has=("May I take a bicycle?", "four crowns", "Coffee and bread"),
        extractors=ALL,
    ),
    Case(
        "folded-div-button",
        "<div class='faq'><div class='item'><button aria-expanded='false' aria-controls='p1'>May I take a bicycle?</button><div id='p1' style='display:none'><p>A bicycle may be taken on deck and costs four crowns.</p></div></div><div class='item'><button aria-expanded='false' aria-controls='p2'>Is there food on board?</button><div id='p2' style='display:none'><p>Coffee and bread are sold on board.</p></div></div></div>",
        has=("May I take a bicycle?", "four crowns", "Coffee and bread"),
        extractors=ALL,
    ),
    Case(
        "folded-tabs-aria",
        "<div role='tablist'><button role='tab' aria-selected='true' aria-controls='t1' id='b1'>Summer</button><button role='tab' aria-controls='t2' id='b2'>Winter</button></div><div role='tabpanel' id='t1' aria-labelledby='b1'><p>In summer the ferry leaves twice a day, at nine and at five.</p></div><div role='tabpanel' id='t2' aria-labelledby='b2' hidden><p>In winter the ferry leaves once a day, at ten in the morning.</p></div>",
        has=("at nine and at five", "at ten in the morning"),
        extractors=ALL,
    ),
    Case(
        "folded-collapse-card",
        "<div id='accordion'><div class='card'><div class='card-header' id='h1'><h5 class='mb-0'><button class='btn btn-link' data-toggle='collapse' data-target='#c1' aria-expanded='false'>May I take a bicycle?</button></h5></div><div id='c1' class='collapse' aria-labelledby='h1' data-parent='#accordion'><div class='card-body'>A bicycle may be taken on deck and costs four crowns.</div></div></div><div class='card'><div class='card-header' id='h2'><h5 class='mb-0'><button class='btn btn-link collapsed' data-toggle='collapse' data-target='#c2'>Is there food?</button></h5></div><div id='c2' class='collapse' aria-labelledby='h2' data-parent='#accordion'><div class='card-body'>Coffee and bread are sold on board.</div></div></div></div>",
        has=("May I take a bicycle?", "four crowns", "Coffee and bread"),
        extractors=ALL,
    ),
    Case(
        "folded-radix",
        "<div data-state='closed' class='border-b'><h3 class='flex'><button type='button' aria-controls='r1' aria-expanded='false' data-state='closed' class='flex'>May I take a bicycle?<svg></svg></button></h3><div data-state='closed' id='r1' hidden='' role='region' class='overflow-hidden'><div class='pb-4'>A bicycle may be taken on deck and costs four crowns.</div></div></div><div data-state='closed' class='border-b'><h3 class='flex'><button type='button' aria-controls='r2' aria-expanded='false' data-state='closed' class='flex'>Is there food?<svg></svg></button></h3><div data-state='closed' id='r2' hidden='' role='region' class='overflow-hidden'><div class='pb-4'>Coffee and bread are sold on board.</div></div></div>",
        has=("May I take a bicycle?", "four crowns", "Is there food?", "Coffee and bread"),
        extractors=ALL,
    ),
    Case(
        "folded-elementor",
        "<div class='elementor-accordion-item'><div class='elementor-tab-title' role='button' aria-expanded='false'><a class='elementor-accordion-title'>May I take a bicycle?</a></div><div class='elementor-tab-content' role='region' style='display:none'><p>A bicycle may be taken on deck and costs four crowns.</p></div></div><div class='elementor-accordion-item'><div class='elementor-tab-title' role='button' aria-expanded='false'><a class='elementor-accordion-title'>Is there food?</a></div><div class='elementor-tab-content' role='region' style='display:none'><p>Coffee and bread are sold on board.</p></div></div>",
        has=("May I take a bicycle?", "four crowns", "Is there food?", "Coffee and bread"),
        extractors=ALL,
    ),
    Case(
        "folded-jquery-ui",
        "<h3 class='ui-accordion-header' role='tab' aria-expanded='false'><span class='ui-icon'></span>May I take a bicycle?</h3><div class='ui-accordion-content' role='tabpanel' aria-hidden='true' style='display: none;'><p>A bicycle may be taken on deck and costs four crowns.</p></div><h3 class='ui-accordion-header' role='tab' aria-expanded='false'><span class='ui-icon'></span>Is there food?</h3><div class='ui-accordion-content' role='tabpanel' aria-hidden='true' style='display: none;'><p>Coffee and bread are sold on board.</p></div>",
        has=("May I take a bicycle?", "four crowns", "Is there food?", "Coffee and bread"),
        extractors=ALL,
    ),
    Case(
        "folded-details-styled",
        "<details class='details_lb9f alert alert--info'><summary>May I take a bicycle?</summary><div style='display:none;height:0px'><div class='collapsibleContent'><p>A bicycle may be taken on deck and costs four crowns.</p></div></div></details><details class='details_lb9f alert alert--info'><summary>Is there food?</summary><div style='display:none;height:0px'><div class='collapsibleContent'><p>Coffee and bread are sold on board.</p></div></div></details>",
        has=("May I take a bicycle?", "four crowns", "Is there food?", "Coffee and bread"),
        extractors=ALL,
    ),
    Case(
        "note-of-docusaurus",
        "<div class='theme-admonition theme-admonition-note alert alert--secondary'><div class='admonitionHeading_Gvgb'>note</div><div class='admonitionContent_BuS1'><p>A bicycle costs four crowns.</p></div></div>",
        has=("four crowns",),
        extractors=ALL,
    ),
    Case(
        "note-of-pydata",
        "<div class='admonition note alert alert-info'><p>A bicycle costs four crowns.</p></div>",
        has=("four crowns",),
        extractors=ALL,
    ),
    Case(
        "note-of-github",
        "<div class='markdown-alert markdown-alert-note'><p class='markdown-alert-title'><svg></svg>Note</p><p>A bicycle costs four crowns.</p></div>",
        has=("four crowns",),
        extractors=ALL,
    ),
    Case(
        "notice-of-cookies",
        "<div class='alert alert-info cookie-note' role='alert'><p>We use cookies to make this page better.</p></div>",
        lacks=("cookies",),
    ),
    Case(
        "folded-panel-title-link",
        "<div class='panel'><div class='panel-heading'><h4 class='panel-title'><a data-toggle='collapse' href='#c1'>May I take a bicycle?</a></h4></div><div id='c1' class='panel-collapse collapse'><div class='panel-body'>A bicycle may be taken on deck and costs four crowns.</div></div></div><div class='panel'><div class='panel-heading'><h4 class='panel-title'><a data-toggle='collapse' href='#c2'>Is there food?</a></h4></div><div id='c2' class='panel-collapse collapse'><div class='panel-body'>Coffee and bread are sold on board.</div></div></div>",
        has=("May I take a bicycle?", "four crowns", "Coffee and bread"),
        extractors=ALL,
    ),
    Case(
        "code-gutter-table",
        "<table class='highlighttable'><tr><td class='linenos'><div class='linenodiv'><pre>1\n2\n3</pre></div></td><td class='code'><div class='highlight'><pre>a = 1\nb = 2\nc = 3</pre></div></td></tr></table>",
        has=("a = 1\nb = 2\nc = 3",),
        lacks=("1\n2\n3",),
    ),
    Case(
        "code-hljs-ln",
        "<pre><code class='hljs'><table class='hljs-ln'><tbody><tr><td class='hljs-ln-line hljs-ln-numbers' data-line-number='1'><div class='hljs-ln-n' data-line-number='1'></div></td><td class='hljs-ln-line hljs-ln-code'>a = 1</td></tr><tr><td class='hljs-ln-line hljs-ln-numbers' data-line-number='2'><div class='hljs-ln-n' data-line-number='2'></div></td><td class='hljs-ln-line hljs-ln-code'>b = 2</td></tr></tbody></table></code></pre>",
        has=("a = 1\nb = 2",),
    ),
    Case(
        "code-span-block-lines",
        "<pre><code><span class='line' style='display:block'>a = 1</span><span class='line' style='display:block'>b = 2</span></code></pre>",
        has=("a = 1\nb = 2",),
    ),
    Case("code-code-lines", "<pre><code>a = 1</code><code>b = 2</code></pre>", has=("a = 1\nb = 2",)),
    Case(
        "code-prism-gutter",
        "<pre class='line-numbers'><code>a = 1\nb = 2<span aria-hidden='true' class='line-numbers-rows'><span></span><span></span></span></code></pre>",
        has=("a = 1\nb = 2",),
    ),
    Case(
        "code-docusaurus",
        "<pre><code class='codeBlockLines'><span class='token-line' style='color:#393A34'><span class='token plain'>a = 1</span><br></span><span class='token-line' style='color:#393A34'><span class='token plain'>b = 2</span><br></span></code></pre>",
        has=("a = 1\nb = 2",),
        lacks=("a = 1\n\nb",),
    ),
    Case(
        "code-ol-linenums-textarea",
        "<pre class='crayon'><span class='crayon-line'>a = 1</span><span class='crayon-line'>b = 2</span></pre>",
        has=("a = 1\nb = 2",),
    ),
    Case(
        "code-copy-button",
        "<div class='highlight'><pre>a = 1</pre><button class='copy'>Copy code</button></div>",
        has=("a = 1",),
        lacks=("Copy code",),
    ),
    Case(
        "raised-word-note",
        "<p>This was measured<sup>1</sup> and again<sup>2,3</sup> and twice<sup>a</sup>.</p>",
        has=("measured and again and twice",),
    ),
    Case(
        "raised-noteref",
        "<p>This was measured<a epub:type='noteref' href='#f1'>1</a> in spring.</p>",
        has=("measured in spring",),
    ),
    Case(
        "raised-doc-backref",
        "<p>Text of it.</p><ol class='footnotes'><li id='fn1'>The note about the harbour is long enough. <a href='#fnref1' class='footnote-back'>↩︎</a></li></ol>",
        has=("The note about",),
        lacks=("↩",),
    ),
    Case("raised-chem", "<p>Fe<sup>3+</sup> and SO<sub>4</sub><sup>2−</sup> are ions.</p>", has=("Fe^3+", "SO4^2−")),
    Case("raised-isotope", "<p>The isotope <sup>14</sup>C decays.</p>", has=("14C",)),
    Case(
        "raised-french",
        "<p>Le 1<sup>er</sup> mai, M<sup>me</sup> Curie, XX<sup>e</sup> siècle.</p>",
        has=("1er mai", "Mme Curie", "XXe siècle"),
    ),
    Case(
        "menus-in-a-sentence",
        "<p>Choose <span class='guimenu'>Actions</span> and then <span class='guisubmenu'>Undo</span>, or <b class='menu'>File</b>, to take the last step back.</p>",
        has=("Choose Actions and then Undo, or File, to take",),
    ),
    Case(
        "options-that-begin-like-notices",
        "<dl><dt>--show-stats</dt><dd><p>Show raw times.</p></dd><dt>--print-inputs</dt><dd><p>Print what is read.</p></dd></dl><ul><li>$HOME/.ferry</li><li>/share/ferry</li></ul>",
        has=(
            "--show-stats",
            "Show raw times.",
            "--print-inputs",
            "Print what is read.",
            "$HOME/.ferry",
            "/share/ferry",
        ),
    ),
    Case(
        "headings-whose-ids-are-words",
        "<h2 id='_mapping_authors'>Mapping of authors</h2><p>The file maps the names of authors to their addresses, one a line, and is read first.</p><dl><dt id='parser.handle_comment'>handle_comment(data)</dt><dd>This is called when a comment is met, with its text, and returns nothing at all.</dd></dl>",
        has=("Mapping of authors", "handle_comment(data)"),
    ),
    Case(
        "headings-that-link-to-themselves",
        "<h2>Events<span><a class='mark' href='#events'>#</a></span></h2><p>The parts of the ship send events to each other, which is explained below in all detail.</p><h3><a href='#c'>🔗</a> C#</h3><p>The language has events as well, and they are explained elsewhere, with more examples.</p>",
        has=("Events\n", "C#\n"),
        lacks=("Events#", "🔗"),
    ),
    Case(
        "paragraph-that-nothing-unfolds",
        "<h2>First header</h2><p style='display:none'>A draft of this paragraph that was hidden by its writer, and that nobody can open.</p><h2>Second header</h2><p hidden>Another draft that was hidden by its writer, and that nobody can open.</p>",
        lacks=("nobody can open",),
    ),
    Case(
        "short-introduction-in-japanese",
        "<html><head><title>x</title></head><body><div id='page'><h1>サーバ全体の設定</h1><p>このドキュメントでは、サーバの基本動作を設定するものを説明します。</p><h2>サーバの名前</h2><p>これらのディレクティブは、サーバが自分自身を参照するときに使われます。エラーメッセージなどにも表示され、管理者が設定します。</p><h2>ファイルの位置</h2><p>これらのディレクティブは、サーバが適切な動作をするために必要なファイルの位置を制御します。パスがスラッシュで始まっていないときは、サーバの位置からの相対パスとして探されます。詳細はセキュリティの頁を参照してください。</p></div></body></html>",
        has=("このドキュメントでは", "管理者が設定します"),
    ),
    Case(
        "footnote-before-a-full-stop",
        "<p>They are required in all packages <sup><a href='#n1'>[1]</a></sup>. Others may leave them out <a class=note href='#n2'><sup>[2]</sup></a>, of <a href='#n3'><sup>3</sup></a> course<a class=footnote-anchor href='#footnote-1'>1</a>.</p>",
        has=("in all packages. Others may leave them out, of course.",),
    ),
    Case(
        "short-first-sentence",
        "<html><body><div class=box><h1>Questions</h1><p style='font-weight: bold'>What are dry files and how can I read them?</p><p>Dry files hold the times of the ferries without a loss of precision. They are half as large as the originals, and any program that reads tables can read them too.</p><p>Names of such files end in a number, which says in which year the timetable was valid, and for which islands.</p></div></body></html>",
        has=("What are dry files",),
    ),
    Case(
        "short-first-sentence-in-chinese",
        "<html><body><div class=chapter><h2>系统技巧</h2><p>这里,描述配置和管理系统的基本技巧。</p><p>有一些工具程序来帮助你的控制台活动,它们能够保存输入和输出的完整记录,并在之后重新显示出来,供管理员仔细检查。这些记录也可以压缩保存。</p></div></body></html>",
        has=("基本技巧。",),
    ),
    Case(
        "table-whose-head-is-named-header",
        "<table><thead class='header'><tr class='header'><th>Berth</th><th class='colHeader header'>Alternative</th><th>Depth in metres</th></tr></thead><tbody><tr><td>north</td><td>west</td><td>4.5</td></tr><tr><td>south</td><td>east</td><td>3.5</td></tr></tbody></table>",
        has=("Berth\tAlternative\tDepth in metres",),
    ),
    Case(
        "cells-that-begin-like-notices",
        "<table><tr><th>Field</th><th>Value</th></tr><tr><td>Copyright region</td><td>US</td></tr><tr><td>Related ports</td><td>three</td></tr><tr><td>Posted by</td><td>the office</td></tr></table>",
        has=("Copyright region\tUS", "Related ports\tthree", "Posted by\tthe office"),
    ),
    Case(
        "place-named-by-an-anchor",
        "<h2>Locales</h2><p>These are set before the first start of the machine.</p><a id='listofrecommendations'/><p>Table 3. Recommended locales of all countries</p><table><tr><th>Locale</th><th>Language</th></tr><tr><td>de_CH</td><td>Swiss German</td></tr><tr><td>fr_CA</td><td>Canadian French</td></tr></table><a name='comments'><p>The last one is used by ships that sail to Canada in the summer months.</p>",
        has=("Table 3.", "Locale\tLanguage", "Swiss German", "ships that sail"),
    ),
    Case(
        "notes-in-an-aside",
        "<aside class='admonition note'><p>Ships that carry cattle have other times than these.</p></aside><aside class='footnote-list brackets'><aside class='footnote brackets' id='f1' role='note'><p>The clock of the harbour is four minutes late.</p></aside></aside><aside class='related'><p>The bridge to the airport is closed this week.</p></aside>",
        has=("carry cattle", "four minutes late"),
        lacks=("airport",),
    ),
    Case(
        "headings-that-begin-like-labels",
        "<h2>Open data of the port</h2><p>We publish the times of all ships, for anybody who wants to use them.</p><h2>Search by island</h2><p>Write the name of an island, and the list shows its ferries alone.</p>",
        has=("Open data of the port\n", "Search by island\n"),
    ),
    Case(
        "posts-whose-titles-are-links",
        "<html><body><main>"
        + "".join(
            f"<article class=post><h2 class=entry-title><a href=/{n} rel=bookmark>The {n} ferry</a></h2><div class=entry-content>{BEGIN}{END}{BEGIN}</div></article>"
            for n in ("first", "second")
        )
        + "<h2><a href=/3>A bridge elsewhere</a></h2><p>The summary of it is short.</p></main></body></html>",
        has=("The first ferry\n", "The second ferry\n"),
        lacks=("A bridge elsewhere",),
    ),
    Case(
        "sentences-that-begin-like-labels",
        "<p>Por ejemplo, intente lo siguiente</p><pre>$ ls -l</pre><p>By default, the ferry leaves as follows:</p><ul><li>at ten</li></ul><p>Di solito la nave parte dal porto vecchio.</p><p><code>SEARCH ADD SYS:\\FERRY</code></p><p>By Anna Berg</p><p>Download: mp3 (30 MB)</p>",
        has=("Por ejemplo", "By default", "Di solito", "SEARCH ADD"),
        lacks=("Anna Berg", "mp3"),
    ),
    Case(
        "signs-that-nobody-sees",
        "<p>Die Donau&shy;dampf\u00adschiff&#173;fahrt\u200b is&ZeroWidthSpace; \ufefflong, and\u2060 the\x07 word&#8203;s too.</p><p>\u200b</p><p>It costs 10\u202f000 crowns,&nbsp;or&nbsp; more.&nbsp;</p><p>Nothing comes after it.</p>",
        has=("Die Donaudampfschifffahrt is long, and the words too.", "10 000 crowns, or more.\n"),
        lacks=("\u200b", "\xa0", "too.\n\n\n"),
        extractors=ALL,
    ),
    Case(
        "joiners",
        "<p>می\u200cخواهم, کتاب&zwnj;ها and نمی&#x200C;شود are Persian, क्\u200dष is Hindi, 👩&#8205;💻 one sign, and ភាសា&#8203;ខ្មែរ and ꦗꦮ\u200bꦏꦭ have blanks.</p>",
        has=("می\u200cخواهم", "کتاب\u200cها", "نمی\u200cشود", "क्\u200dष", "👩\u200d💻", "ភាសា\u200bខ្មែរ", "ꦗꦮ\u200bꦏꦭ"),
        extractors=ALL,
    ),
]
