"""A model family of your own: Granite, whose layers add only a share of their output to the residual stream."""

from training.pretrain.models.family import Family, Layers

SHARE = 0.22


def make(config, layer):
    """Return a layer; torch is imported only here, so that recipes are read without it."""
    from training.pretrain.models.decoder import Block

    class Scaled(Block):
        def forward(self, x, table, mask):
            x = x + SHARE * self.attention(x, table, mask)
            return x + SHARE * self.mlp(x), None

    return Scaled(config, layer)


def why_not(config):
    """Return what of a shape Granite does not have."""
    return ["qk_norm"] * config.qk_norm + ["window"] * bool(config.window) + ["experts"] * bool(config.experts.count)


family = Family(
    class_name="Granite",
    layers=Layers(make=make),
    why_not=why_not,
    fields=lambda config: {"residual_multiplier": SHARE, "attention_multiplier": config.head_width**-0.5},
)
