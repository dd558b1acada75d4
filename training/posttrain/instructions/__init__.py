"""The stage `instructions`: conversations for fine-tuning."""
