"""Hub: what is published beside a model or a corpus: card, repository, bills of materials, attestation, signature.

Stage: `card`. From outside, `repository` writes an export, `attestation` and `signature` are checked by commands. Every
number names the artifact that it comes from (`sourced`).
"""
