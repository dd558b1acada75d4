"""Optimizers and rewards from the user's own environment: found, checked, identified, and told when they fail."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from tests.outside import EXAMPLES
from tests.training.pretrain import tiny
from training.contract.parts.code import PARTS
from training.contract.parts.outside import PartFailed
from training.contract.records import RecipeError, read_record
from training.posttrain.align.sampling.rewards import part_rewards
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.rewards import REWARDS
from training.posttrain.scoring import Sampled
from training.pretrain.models.decoder import Decoder
from training.pretrain.optim.make import make_optimizers
from training.pretrain.settings import PretrainRecipe

pytestmark = pytest.mark.usefixtures("examples")

MODEL = tiny.MODEL.shape(vocab_size=tiny.VOCABULARY)


def pretrain(place: str, **given) -> PretrainRecipe:
    return replace(tiny.PRETRAIN, optimizer="mine", parts={"mine": {"from": place, **given}})


def align(rewards: dict[str, float], **parts) -> AlignRecipe:
    return read_record(AlignRecipe, {"method": "grpo", "rewards": rewards, "parts": parts}, where="align")


OPTIMIZER = """
from training.pretrain.optim.optimizer import Optimizer, for_each_number
import torch
class Mine(torch.optim.SGD):
    def step(self, closure=None):
        {step}
def make(weights, recipe, settings):
    {make}
    return {{"mine": Mine(weights.groups(recipe)[:{groups}], lr=0.1)}}
optimizer = Optimizer(make=make, numbers=for_each_number(1))
"""


def test_an_optimizer_from_outside_updates_every_weight_with_its_own_settings():
    recipe = pretrain("adamax:optimizer", epsilon=1e-6)
    (name, one), *rest = make_optimizers(Decoder(MODEL), recipe).items()
    assert (name, rest) == ("adamax", []) and isinstance(one, torch.optim.Adamax) and one.defaults["eps"] == 1e-6
    assert recipe.optimizer_part.numbers("head", (2, 3)) == 12
    with pytest.raises(RecipeError, match=r"pretrain\.parts\.mine\.epsilon: expected float"):
        pretrain("adamax:optimizer", epsilon="small")


def test_what_fails_in_an_optimizer_is_told_under_its_name(write):
    def made(step="pass", make="pass", groups=9):
        module = write(OPTIMIZER.format(step=step, make=make, groups=groups))
        return make_optimizers(Decoder(MODEL), pretrain(f"{module}:optimizer"))["mine"]

    made().step()
    with pytest.raises(PartFailed, match=r"optimizer mine .*: ValueError: too steep"):
        made(step="raise ValueError('too steep')").step()
    with pytest.raises(PartFailed, match=r"optimizer mine .*: KeyError: 'no'"):
        made(make="raise KeyError('no')")
    with pytest.raises(PartFailed, match=r"optimizer mine made None"):
        made(make="return None")
    with pytest.raises(PartFailed, match=r"optimizer mine updates \d+ weights"):
        made(groups=1)


@pytest.mark.parametrize("name", REWARDS)
def test_a_reward_gives_its_examples_the_rewards_that_it_says(name):
    REWARDS[name].check(name, REWARDS[name].settings())


def test_a_reward_that_prefers_wrong_answers_is_refused_when_the_recipe_is_read(write):
    body = (EXAMPLES / "polite.py").read_text().replace('return 1.0 if "thank you"', 'return 1.0 if "thank me"')
    with pytest.raises(RecipeError, match=r"align\.rewards\.mine: gave 0\.0 .*'72\. Thank you!', not 1\.0"):
        align({"mine": 1.0}, mine={"from": f"{write(body)}:reward"})
    equal = body.partition("    examples=")[0] + "    examples=((Sampled(text='72. Thank you!'), 1.0),),\n)\n"
    equal = equal.replace("thank me", "thank you")
    with pytest.raises(RecipeError, match=r"align\.rewards\.mine: .* two different rewards"):
        align({"mine": 1.0}, mine={"from": f"{write(equal)}:reward"})


def test_rewards_that_add_up_are_checked_with_their_settings():
    recipe = align({"learned": 0.5, "numeric": 0.3, "polite": 0.2}, polite={"from": "polite:reward", "please": 0.1})
    score = part_rewards("polite", recipe.reward_parts["polite"], recipe.reward_settings("polite"))
    asked, said = [{"role": "user", "content": "Q"}], [{"role": "assistant", "content": "Please sit."}]
    assert score(prompts=[asked], completions=[said], answer=[""], rivals=[[]]) == [0.1] and score.__name__ == "polite"
    for rewards, parts, wrong in (
        ({"numeric": -1.0}, {}, r"align\.rewards: \{'numeric': -1\.0\}; each weight must be above 0"),
        ({"numeric": 1.0}, {"numeric": {"tolerance": -1}}, r"align\.parts\.numeric\.tolerance=-1\.0"),
        ({"format": 1.0}, {"format": {"pattern": "("}}, r"align\.parts\.format\.pattern: '\('"),
    ):
        with pytest.raises(RecipeError, match=wrong):
            align(rewards, **parts)
    with pytest.raises(RecipeError, match=r"right_answer in align\.rewards"):
        AlignRecipe(method="grpo", rewards={"numeric": 1.0}, verifiable_reward_weight=0.5)
    with pytest.raises(RecipeError, match=r"align\.rewards=.* dpo"):
        AlignRecipe(rewards={"numeric": 1.0})


@pytest.mark.parametrize(("gives", "said"), [("math.nan", "gave nan"), ("'much'", "gave 'much'"), ("1 / 0", "ZeroDiv")])
def test_a_reward_that_gives_nonsense_for_an_answer_is_told_under_its_name(write, gives, said):
    body = (
        (EXAMPLES / "polite.py")
        .read_text()
        .replace("    said = ", f"    import math\n    if answer.text == 'odd':\n        return {gives}\n    said = ")
    )
    recipe = align({"mine": 1.0}, mine={"from": f"{write(body)}:reward"})
    with pytest.raises(PartFailed, match=f"reward mine .*{said}"):
        recipe.reward_parts["mine"].score(Sampled(text="odd"), recipe.reward_settings("mine"))


def test_numbers_are_compared_by_the_last_of_each_text():
    recipe = align({"numeric": 1.0}, numeric={"tolerance": 0.01})
    score = recipe.reward_parts["numeric"].score
    settings = recipe.reward_settings("numeric")
    assert score(Sampled(text="about 1,005.", right="#### 1000"), settings) == 1.0
    assert score(Sampled(text="-1000", right="1000"), settings) == 0.0
    assert score(Sampled(text="none", right="1000"), settings) == 0.0 and math.isclose(settings.tolerance, 0.01)


PACKAGE = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "own-parts"
version = "1"
[project.entry-points."pedigree.optimizers"]
own_adamax = "own_parts.adamax:optimizer"
[project.entry-points."pedigree.losses"]
own_focal = "own_parts.focal:loss"
[project.entry-points."pedigree.rewards"]
own_polite = "own_parts.polite:reward"
[project.entry-points."pedigree.methods"]
own_anchored = "own_parts.anchored:method"
"""
RECIPE = """
import json, sys
from assets.state.chain import CHAIN
from assets.state.recipe_folders import load_recipe
recipes = {
    "dpo": {"align": {"method": "own_anchored", "parts": {"own_anchored": {"likelihood": 0.3}}}},
    "rl": {"align": {"method": "grpo", "rewards": {"own_polite": 1.0}}},
    "base": {"pretrain": {"optimizer": "own_adamax", "loss": "own_focal"}},
}
for name, sections in recipes.items():
    with open(f"{name}.yaml", "w") as stream:
        json.dump({"extends": "kitchen", "name": name, **sections}, stream)
found = {}
for name in recipes:
    recipe = load_recipe(f"{name}.yaml")
    for asset in ("base_model", "sft_model", "reward_model", "aligned_model", "model_scores"):
        for part, said in CHAIN[asset].settings(recipe, "").get("PARTS", {}).items():
            found.setdefault(asset, {})[part] = said["code"]
assert "torch" not in sys.modules and "trl" not in sys.modules
print(json.dumps(found))
"""


def test_an_installed_package_registers_parts_and_an_edit_marks_what_they_decide(tmp_path):
    """pip installs the package; recipes name its parts; each line that changes is in the settings of one asset."""
    own, site = tmp_path / "src" / "own_parts", tmp_path / "site"
    own.mkdir(parents=True)
    for name in ("adamax", "focal", "polite", "anchored"):
        (own / f"{name}.py").write_text((EXAMPLES / f"{name}.py").read_text())
    (own / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text(PACKAGE)
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(site))
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(tmp_path)], check=True)

    def codes() -> dict[str, dict[str, str]]:
        import json

        path = f"{EXAMPLES.parents[1]}:{site}"
        script = RECIPE.replace("PARTS", PARTS)
        ran = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONPATH": path}, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    before = codes()
    assert {asset: set(parts) for asset, parts in before.items()} == {
        "base_model": {"own_adamax", "own_focal"},
        "aligned_model": {"own_anchored", "own_polite"},
    }
    module = site / "own_parts" / "polite.py"
    module.write_text(module.read_text().replace('"please" in said', '"please" in said.strip()'))
    after = codes()
    assert after["base_model"] == before["base_model"]
    changed = {name for name, code in after["aligned_model"].items() if code != before["aligned_model"][name]}
    assert changed == {"own_polite"}
