"""Exams: what the models are asked, how they answer, and what the answers score.

Stages: `scores` (`evaluate`) and `judging` (`judge`). `one_model` scores a folder without a recipe, as a process of its
own. The search for exam items in data may import `items`; nothing else is imported from outside the stages.
"""
