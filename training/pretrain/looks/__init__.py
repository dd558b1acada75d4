"""Looks at a model while it is trained, as the recipe's section `pretrain.watch` asks for them."""
