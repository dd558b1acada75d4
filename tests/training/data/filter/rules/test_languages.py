from tests.training.data.filter.pages import GERMAN, GOOD, judge, reason_of, row
from training.data.filter.judge import make_rules
from training.data.filter.rule import KEPT, page_of
from training.data.filter.score import score
from training.data.filter.settings import FilterRecipe


def test_language_and_score_are_written_on_the_page():
    page, _ = judge(row(GERMAN), make_rules(FilterRecipe(rules=("language",)), None))
    assert page.columns["language"] == "de" and page.columns["language_score"] > 0.9


def test_a_recipe_for_all_languages_measures_each_of_them():
    texts = {
        "ja": "生地は温かい場所で一時間寝かせてからオーブンに入れます。そのあと冷まします。",
        "th": "แป้งต้องพักไว้ในที่อบอุ่นหนึ่งชั่วโมงก่อนนำเข้าเตาอบ",
        "ko": "반죽은 오븐에 넣기 전에 따뜻한 곳에서 한 시간 동안 부풀어 오릅니다. 그리고 식힙니다.",
    }
    rules = ("language", "gopher_repetition", "gopher_quality", "c4", "fineweb", "toxicity", "personal_data")
    recipe = FilterRecipe(rules=rules, languages=())
    ready = make_rules(recipe, None)
    found = {}
    for code, text in texts.items():
        measured = score(row(text), ready, recipe)
        assert (measured["language"], measured["stopped"]) == (code, None)
        found[code] = (measured["gopher_quality.words"], measured["c4.sentences"])
    assert found == {"ja": (33, 2), "th": (37, 1), "ko": (13, 2)}


def test_code_is_judged_by_no_language():
    """Files of nothing but code were dropped as other languages before."""
    code = f"def f(x):  # {GERMAN}\n    return x\n" * 3
    for kind, language, is_kept in (("code", "zxx", True), ("prose", "de", False)):
        rules = make_rules(FilterRecipe(rules=("language",), languages=("en",), min_language_score=0.0), None)
        page, reason = judge({**row(code), "kind": kind, "code": [0, len(code)]}, rules)
        assert (page.language, reason == KEPT) == (language, is_kept)
    enough = f"{GERMAN} {GERMAN}"
    page, _ = judge({**row(f"{code}{enough}"), "kind": "code", "code": [0, len(code)]}, rules)
    assert (len(enough) > 200, page.language) == (True, "de")  # what is said about the code decides


def test_a_page_is_identified_by_its_text_outside_of_code():
    rules = make_rules(FilterRecipe(rules=("language",), languages=()), None)
    prose, code = GOOD[:210], GERMAN * 3
    for text, spans, language in (
        (f"{prose}\n\n{code}", None, "de"),
        (f"{prose}\n\n{code}", [212, 212 + len(code)], "en"),
        (f"{code}\n{prose}", [0, len(code)], "en"),
        (f"{prose[:150]}\n\n{code}", [152, 152 + len(code)], "de"),  # too little text is left
    ):
        page, _ = judge({**row(text), "code": spans}, rules)
        assert (page.columns["language"], page.text) == (language, text)
    page = page_of({**row(f"{prose}\n\n{code}"), "code": [212, 212 + len(code)]})
    assert page.prose == f"{prose}\n\n "
    page.text = code  # edited by a rule, so the places of code are those of another text
    assert page.prose == code


def test_another_language_is_judged_with_its_own_stop_words():
    text = (
        "Der Bäcker steht lange vor der Sonne auf und heizt den Ofen. Mehl, Wasser und Salz sind alles, was er hat.\n"
        "Wenn der Teig sich verdoppelt hat, formt er ihn mit nassen Händen und lässt ihn unter einem Tuch ruhen.\n"
        "Niemand weiß, warum die Kruste dieses Brotes dunkler ist als die aller anderen, und er verrät es nicht.\n"
        "Kinder bekommen auf dem Weg zur Schule ein warmes Stück und laufen weiter. Im Winter dampft das Fenster."
    )
    rules = ("language", "gopher_quality")
    assert reason_of(text, FilterRecipe(rules=rules, languages=("en", "de"))) == KEPT
    without = text.replace("der ", "").replace("die ", "").replace("und ", "").replace("den ", "").replace("von ", "")
    strict = FilterRecipe(rules=rules, languages=("de",), gopher_min_stop_words=4)
    assert reason_of(without, strict) == "gopher_quality:too_few_stop_words"
