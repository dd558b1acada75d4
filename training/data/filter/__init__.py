"""Which documents stay: `rule` describes a rule, `rules/` holds them, and two stages measure and decide."""
