"""An evaluation task of your own: a question with examples before it, whose answer is right by its first word."""

from dataclasses import dataclass

from training.data.exams.task import ExamTask


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The word that comes before a question."""

    asks: str = "Question"


def fields(settings):
    """Return fields of lm-eval's TaskConfig; the items and examples are the suite's."""
    return {
        "doc_to_text": lambda item: f"{settings.asks}: {item['question']}\nAnswer:",
        "doc_to_target": "{{answer}}",
        "process_results": lambda item, answers: {"right": int(answers[0].split()[:1] == [item["answer"]])},
        "metric_list": [{"metric": "right", "aggregation": "mean", "higher_is_better": True}],
        "num_fewshot": 2,
    }


task = ExamTask(fields=fields, settings=Settings)
