"""From logged values to lines: smoothing, thinning, bands over seeds, axis limits. Pure functions on arrays.

Shapes: N points of a line, S seeds.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

MOST_POINTS = 400
SMOOTH_FROM = 100
FENCE = 25.0

Points = tuple[np.ndarray, np.ndarray]
"""x (N,) ascending and y (N,), all finite."""


@dataclass(frozen=True)
class Band:
    """A line over x (N,) with its interval; `low` and `high` are None for one run, `raw` is None for several."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    raw: np.ndarray | None = None


def window_of(count: int) -> int:
    """Points that one point of a drawn line averages: 1 up to 100 points, then an odd fiftieth of them."""
    return 1 if count <= SMOOTH_FROM else count // 50 | 1


def smooth(y_N: np.ndarray, window: int) -> np.ndarray:
    """(N,) centred running mean over an odd `window`, cut at both ends. [0, 3, 6], 3 gives [1.5, 3, 4.5]."""
    if window == 1:
        return y_N
    # Sums per window: differences of a cumulative sum would lose everything beside one huge value.
    ones_W = np.ones(window)
    half = window // 2
    sums_N = np.convolve(y_N, ones_W)[half : half + len(y_N)]
    return sums_N / np.convolve(np.ones_like(y_N), ones_W)[half : half + len(y_N)]


def thin(y_N: np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """Ascending indices of at most `most` (>= 4) points: both ends, and the extremes of equal stretches between."""
    if len(y_N) <= most:
        return np.arange(len(y_N))
    kept = {0, len(y_N) - 1}
    for part in np.array_split(np.arange(len(y_N)), most // 2 - 1):
        kept |= {int(part[np.argmin(y_N[part])]), int(part[np.argmax(y_N[part])])}
    return np.array(sorted(kept))


def t_interval(values_SN: np.ndarray, level: float = 0.05) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over S >= 2 values and the ends of its t-interval, mean +- t s / sqrt(S), each (N,), or scalars from (S,).

    The interval misses the true mean with probability `level`; s is the sample standard deviation. scipy's own is NaN
    or warns where all values are alike, and this one has no width.
    """
    mean_N = values_SN.mean(axis=0)
    t = stats.t.ppf(1 - level / 2, len(values_SN) - 1)
    half_N = t * values_SN.std(axis=0, ddof=1) / np.sqrt(len(values_SN))
    return mean_N, mean_N - half_N, mean_N + half_N


def interval(values_SN: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over S >= 2 seeds, and the ends of its 95 % t-interval, each (N,); of two, where t is 12.7, their range."""
    if len(values_SN) == 2:
        return values_SN.mean(axis=0), values_SN.min(axis=0), values_SN.max(axis=0)
    return t_interval(values_SN)


def common_grid(x_S: list[np.ndarray], most: int = 2000) -> np.ndarray:
    """(N,) every x of any seed, between the latest first and the earliest last one; empty where they do not meet."""
    first, last = max(x[0] for x in x_S), min(x[-1] for x in x_S)
    grid = np.unique(np.concatenate(x_S))
    grid = grid[(grid >= first) & (grid <= last)]
    return grid[np.linspace(0, len(grid) - 1, most).astype(int)] if len(grid) > most else grid


def seed_band(seeds: list[Points], smoothed: bool = True) -> Band | None:
    """The line of an arm: one run, smoothed; or the mean of several, smoothed and interpolated, with its interval.

    Where seeds end at different x, the mean ends with the first of them: a mean over whoever is left would jump.
    None without points, or where the seeds have no x in common.
    """
    seeds = [(x, smooth(y, window_of(len(y)) if smoothed else 1), y) for x, y in seeds if len(x)]
    if not seeds:
        return None
    if len(seeds) == 1:
        x, y, raw = seeds[0]
        return Band(x, y, raw=None if raw is y else raw)
    grid = common_grid([x for x, *_ in seeds])
    if not len(grid):
        return None
    return Band(grid, *interval(np.stack([np.interp(grid, x, y) for x, y, _ in seeds])))


def limits(values_N: np.ndarray, floor: bool) -> tuple[float, float]:
    """Lower and upper end of an axis for finite values (N >= 1), with a margin.

    Values over 25 interquartile ranges away from the quartiles do not stretch it: they are drawn at its edge.

    Args:
        values_N: everything that is drawn.
        floor: start at 0 unless the bulk of the values is below.
    """
    quarter, middle, three = np.percentile(values_N, [25, 50, 75])
    reach = FENCE * ((three - quarter) or max(abs(middle), 1.0))
    inside = values_N[(values_N >= quarter - reach) & (values_N <= three + reach)]
    low, high = float(inside.min()), float(inside.max())
    if floor and quarter >= 0:
        low = 0.0
    margin = 0.06 * (high - low) or max(abs(high), 1.0) * 0.1
    return (low if floor and low == 0 else low - margin), high + margin
