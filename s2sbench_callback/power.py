"""What so many questions can tell: the smallest difference they would find, and how many it takes to find a given one."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.optimize import brentq  # type: ignore[import-untyped]
from scipy.stats import nct, norm, t  # type: ignore[import-untyped]

POWER = 0.8
LEVEL = 0.05
MAX_QUESTIONS = 1e9
# The noncentral t is not computed reliably far beyond here, and is normal long before.
_NORMAL_FROM = 1e5


def power(difference: float, error: float, freedom: float, level: float = LEVEL) -> float:
    """Probability that a two-sided t-test finds a true difference.

    Args:
        difference: The true difference.
        error: Standard error of its estimate, above 0.
        freedom: Degrees of freedom of that error.
        level: Of the test.
    """
    shift = abs(difference) / error
    # Beyond any doubt, and beyond what scipy's noncentral t is made for.
    if shift > 35:
        return 1.0
    if freedom > _NORMAL_FROM:
        limit = float(norm.isf(level / 2))
        return float(norm.sf(limit - shift) + norm.cdf(-limit - shift))
    limit = float(t.isf(level / 2, freedom))
    # The far tail mirrored: there cdf gives NaN where this gives 0.
    return float(nct.sf(limit, freedom, shift) + nct.sf(limit, freedom, -shift))


def detectable(error: float, freedom: float, target: float = POWER, level: float = LEVEL) -> float:
    """The smallest true difference that would be found with a given probability.

    Args:
        error: Standard error of the difference.
        freedom: Degrees of freedom of that error.
        target: The probability.
        level: Of the test.

    Returns:
        NaN where the error is not known.
    """
    if not (math.isfinite(error) and freedom > 0):
        return math.nan
    if error == 0:
        return 0.0
    # In units of the error, of which the smallest found is at least 1 and, with one degree of freedom, about 18.
    return error * float(brentq(lambda shift: power(shift, 1.0, freedom, level) - target, 0.0, 34.0))


def questions_needed(difference: float, spread: Callable[[float], tuple[float, float]], target: float = POWER, level: float = LEVEL) -> int | None:
    """How many questions it takes to find a true difference with a given probability.

    Args:
        difference: The true difference, not 0.
        spread: Standard error and its degrees of freedom with so many questions.
        target: The probability.
        level: Of the test.

    Returns:
        ``None`` where no number suffices, as the seeds alone vary too much.
    """

    def lacking(logarithm: float) -> float:
        error, freedom = spread(math.exp(logarithm))
        return (power(difference, error, freedom, level) if error > 0 else 1.0) - target

    fewest, most = math.log(2.001), math.log(MAX_QUESTIONS)
    if lacking(most) < 0:
        return None
    if lacking(fewest) >= 0:
        return 2
    return math.ceil(math.exp(float(brentq(lacking, fewest, most))) - 1e-6)
