import os
import zipfile
from pathlib import Path

import pytest

from training.data.words.language import identify, model_path
from training.data.words.languages import LANGUAGES
from training.data.words.lid import read_model

UDHR = {
    "eng": "en", "fra": "fr", "spa": "es", "ita": "it", "por_PT": "pt", "nld": "nl", "rus": "ru", "jpn": "ja",
    "kor": "ko", "cmn_hans": "zh", "arb": "ar", "pol": "pl", "ces": "cs", "fin": "fi", "swe": "sv", "dan": "da",
    "tur": "tr", "ell_monotonic": "el", "heb": "he", "hun": "hu", "ukr": "uk", "vie": "vi", "cat": "ca", "hin": "hi",
    "tha": "th", "ind": "id", "est": "et", "lit": "lt", "slk": "sk", "slv": "sl", "bul": "bg", "pes_1": "fa",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("The dough rises for an hour in a warm place before it goes into the oven.", "en"),
        ("Der Teig geht eine Stunde an einem warmen Ort, bevor er in den Ofen kommt.", "de"),
        ("La pâte lève une heure dans un endroit chaud avant d'aller au four.", "fr"),
        ("生地は温かい場所で一時間寝かせてからオーブンに入れます。", "ja"),
    ],
)
def test_a_sentence_is_identified(text, code):
    found, score = identify(text)
    assert found == code and 0.5 < score <= 1.0


def test_the_languages_that_recipes_may_name_are_the_models():
    assert set(read_model(model_path()).labels) == LANGUAGES


def test_line_ends_do_not_matter():
    text = "The dough rises for an hour in a warm place before it goes into the oven."
    assert identify(text.replace(" ", "\n")) == identify(text)


@pytest.mark.parametrize("text", ["", " \n\t "])
def test_a_text_without_words_has_no_language(text):
    assert identify(text) == ("", 0.0)


@pytest.mark.data
def test_the_declaration_of_human_rights_is_identified_in_every_language():
    with zipfile.ZipFile(Path(os.environ["PEDIGREE_DATA"], "text/udhr2.zip")) as archive:
        found = {name: identify(archive.read(f"udhr2/{name}.txt").decode("utf-8-sig"))[0] for name in UDHR}
    assert found == UDHR


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("THE FERRY LEAVES THE HARBOUR TWICE A DAY IN SUMMER, AND ONCE A DAY IN WINTER.", "en"),
        ("DIE FÄHRE FÄHRT IM SOMMER ZWEIMAL AM TAG, IM WINTER NUR EINMAL. Karten am Hafen.", "de"),
        ("ПАРОМ УХОДИТ ИЗ ГАВАНИ ДВА РАЗА В ДЕНЬ ЛЕТОМ И ОДИН РАЗ ЗИМОЙ.", "ru"),
        ("VAPUR YAZIN GÜNDE İKİ KEZ, KIŞIN İSE GÜNDE BİR KEZ LİMANDAN KALKAR.", "tr"),
        ("ΤΟ ΠΛΟΙΟ ΦΕΥΓΕΙ ΑΠΟ ΤΟ ΛΙΜΑΝΙ ΔΥΟ ΦΟΡΕΣ ΤΗΝ ΗΜΕΡΑ ΤΟ ΚΑΛΟΚΑΙΡΙ.", "el"),
    ],
)
def test_text_in_capitals_is_identified_as_in_small_letters(text: str, code: str):
    found, score = identify(text)
    assert found == code and score > 0.65
