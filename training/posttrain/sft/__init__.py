"""The stage `sft`: supervised fine-tuning on conversations."""
