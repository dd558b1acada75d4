"""The stage `prompts`: prompts for reinforcement learning."""
