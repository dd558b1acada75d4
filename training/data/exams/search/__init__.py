"""Search texts for the items of exams: folded words, tables of n-grams, and the rule that decides.

`item_rule` decides; `row_search` asks it for rows in batches. Whoever searches texts for exams uses these two, and
whoever compares words as exams are compared uses `folding`. Nothing here knows a recipe or a stage.
"""
