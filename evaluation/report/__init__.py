"""Reports: a run read from its artifacts, as pages, pictures and lines of a terminal.

Stage: `scaling`. From outside, `scoreboard` has a run's figures and `scoreboard_print` its lines, `run_page` and
`compare_page` are pages, `figures` draws, `samples` and `stage_details` choose records. `pages` has the templates.
"""
