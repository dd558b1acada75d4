"""Answers that a judge rates and compares: the stage `judge_chat` (`chat`), and the rules of its verdicts."""
