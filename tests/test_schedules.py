"""The default schedules are those that the theorems set: exponents, and how they are tied to each other."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.algorithms.frame import rate_at
from bilevax.schedule import RateRule, Scales

SCALES = Scales(1.0, 1.0, 1.0, 1.0)
HALF, THIRD, TWO_THIRDS = 1 / 2, 1 / 3, 2 / 3

# α_k ∝ k^−a: the exponents a of each default that is a schedule, and where they come from.
EXPONENTS = {
    # Guo, Hu, Zhang, Yang, Theorem 1: η_t = τ_t ∝ (c_0 + t)^(−1/3), β_t ∝ η_t².
    "svrb": {"upper_step": THIRD, "relaxation": THIRD, "mixing": TWO_THIRDS},
    # Hong, Wai, Wang, Yang, Theorem 2: α_k ∝ k^(−3/5), β_k ∝ k^(−2/5); y on the faster scale.
    "ttsa": {"upper_step": 3 / 5, "lower_step": 2 / 5},
    # Ghadimi, Wang: α_k ∝ k^(−1/2); steps on y shrink more slowly, there are ⌈√k⌉ of them.
    "bsa": {"upper_step": HALF, "lower_step": 1 / 4},
    # Chen, Sun, Xiao, Yin, Theorem 1: one time scale, α, β, τ of the order k^(−1/2).
    "stable": {"upper_step": HALF, "lower_step": HALF, "mixing": HALF},
    # Dagréou et al., Theorem 1 (SOBA): both steps ∝ k^(−1/2); Chen, Ghadimi et al. (MA-SOBA): θ_k of the same order.
    "soba": {"upper_step": HALF, "lower_step": HALF},
    "ma_soba": {"upper_step": HALF, "lower_step": HALF, "mixing": HALF},
    # Khanduri et al., Theorem 3.2 (SUSTAIN), Yang, Ji, Liang, Theorem 1 (MRBO): STORM's, α_k ∝ k^(−1/3), β ∝ α_k².
    "sustain": {"upper_step": THIRD, "lower_step": THIRD, "mixing": TWO_THIRDS},
    "mrbo": {"upper_step": THIRD, "lower_step": THIRD, "mixing": TWO_THIRDS},
}


def defaults(name):
    """The default rates of a method, by name; those that are found as they are for a problem of unit scales."""
    rates = ("upper_step", "lower_step", "relaxation", "mixing")
    parameters = inspect.signature(getattr(bx, name)).parameters
    return {rate: for_unit_scales(parameters[rate].default) for rate in rates if rate in parameters}


def for_unit_scales(rate):
    """A number or a schedule, of what may have to be found."""
    if not isinstance(rate, RateRule):
        return rate
    value = lambda t: rate_at(float, SCALES, t, rate)
    return value if rate.exponent else value(1)


@pytest.mark.parametrize("name", [facts.name for facts in bx.list_algorithms()])
def test_default_schedules_fall_with_the_exponents_of_their_theorems(name):
    """The slope of log rate in log t, where t is so large that an offset no longer counts; the rest is constant."""
    given = defaults(name)
    schedules = {rate: value for rate, value in given.items() if callable(value)}
    assert schedules.keys() == EXPONENTS.get(name, {}).keys()
    for rate, schedule in schedules.items():
        early, late = (float(schedule(jnp.asarray(t))) for t in (1e12, 1e16))
        np.testing.assert_allclose(np.log(early / late) / np.log(1e4), EXPONENTS[name][rate], rtol=1e-9)


@pytest.mark.parametrize("name", ["svrb", "sustain", "mrbo"])
def test_mixing_of_storm_is_a_multiple_of_the_squared_step_from_the_first_step_on(name):
    rates = defaults(name)
    t = jnp.arange(1, 50)
    ratio = rates["mixing"](t) / rates["upper_step"](t) ** 2
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)


def test_svrb_relaxes_y_in_step_with_x():
    """Theorem 1: τ_t is a multiple of η_t."""
    t, rates = jnp.arange(1, 50), defaults("svrb")
    ratio = rates["relaxation"](t) / rates["upper_step"](t)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)


@pytest.mark.parametrize("name", EXPONENTS)
def test_default_shares_are_shares_and_default_steps_are_positive_from_the_first_step_on(name):
    for rate, value in defaults(name).items():
        values = np.asarray([value(jnp.int32(t)) if callable(value) else value for t in (1, 2, 10, 10**6)])
        assert np.all(values > 0)
        assert np.all(np.diff(values) < 0) == callable(value)
        if rate in ("relaxation", "mixing"):
            assert np.all(values <= 1)


def test_power_is_scale_over_offset_plus_t_to_the_exponent():
    np.testing.assert_allclose(bx.power(3.0, 5.0, 0.7)(jnp.int32(4)), 3.0 * 9.0**-0.7, rtol=1e-14)
