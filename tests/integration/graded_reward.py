"""A reward function as a user writes it: scores between right and wrong."""


def compute_score(data_source, solution_str, ground_truth, extra_info):
    """1 for the answer, 0.3 for another one in a box, 0 for none."""
    if f"\\boxed{{{ground_truth}}}" in solution_str:
        return 1.0
    return 0.3 if "\\boxed{" in solution_str else 0.0
