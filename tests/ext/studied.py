"""Rows of a cell, for the tests of `r3 study`."""


def rows(*validations):
    """Rows of a metrics.jsonl: 100 generated tokens per training step, and these accuracies from step 0 on."""
    found = []
    for step, accuracy in enumerate(validations):
        row = {"step": step}
        if step:
            row |= {"training/global_step": step, "generated/tokens": 100, "timing_s/step": 1.0, "training/epoch": 0}
            row["critic/score/mean"] = 0.5
            row |= {"groups/total": 5, "groups/mixed": 1, "groups/all_correct": 3, "groups/all_wrong": 1}
            row |= {
                "groups/rescued_by_replay": 2,
                "groups/ranked": 1,
                "groups/still_dead": 1,
                "groups/still_wrong": 0,
                "replay/rows": 2,
            }
            row |= {
                "reflection/prompts": 1,
                "reflection/solved": 1,
                "reflection/tokens": 7,
                "generated/prompt_tokens": 40,
            }
        if accuracy is not None:
            row["val-core/arithmetic/acc/mean@4"] = accuracy
        found.append(row)
    return found
