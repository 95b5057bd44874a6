"""How much more a rare right answer weighs when all-wrong groups are asked plainly once more.

    python -m tests.benchmarks.weights          seconds

Printed for n answers of which a share p is right on average: the mean over groups of the sum of GRPO's advantages of
right answers, as they are and with n further answers where all n are wrong; their ratio; and the ratio for the same
number of generated answers.
"""

import numpy as np

GROUPS = 400_000
SIZES, SHARES = (4, 8), (0.02, 0.05, 0.1, 0.2, 0.3)


def of_right_answers(right_G: np.ndarray, size_G: np.ndarray) -> np.ndarray:
    """(G,) k (1 - k/m) / std of groups of m answers with k right, rewards 0 and 1, sample std; 0 without signal."""
    mean_G = right_G / size_G
    std_G = np.sqrt(mean_G * (1 - mean_G) * size_G / (size_G - 1))
    return right_G * (1 - mean_G) / (std_G + 1e-6)


def main() -> None:
    rng = np.random.default_rng(0)
    for n in SIZES:
        for share in SHARES:
            right_G = rng.binomial(n, share, GROUPS)
            is_wrong_G = right_G == 0
            more_G = np.where(is_wrong_G, rng.binomial(n, share, GROUPS), 0)
            once = of_right_answers(right_G, np.full(GROUPS, n)).mean()
            again = of_right_answers(right_G + more_G, np.where(is_wrong_G, 2 * n, n)).mean()
            equal = again / once / (1 + is_wrong_G.mean())
            told = f"{once:.3f}, again {again:.3f}, ratio {again / once:.2f}, for equal tokens {equal:.2f}"
            print(f"n {n}, p {share}: {told}")


if __name__ == "__main__":
    main()
