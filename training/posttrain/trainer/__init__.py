"""What the stages that train with TRL share: models, settings, order of rows, passes without padding, checkpoints.

`fit` is the entry; `models` loads and saves, `empty_model` stands in for measurements. SFT, reward model and alignment
use all of these, and nothing here knows one of them.
"""
