"""Samples that are made when they are drawn: the same for the same number, as many as one likes, from every task."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax import draw

TARGETS = jnp.linspace(-1.0, 2.0, 4)


def make_problem(seed=1, make=lambda key, target: target + jax.random.normal(key)):
    """f_i = ½ E(y − ξ)², ξ around target_i; g_i = ½ E(y − x − ζ)²: so y_i* = x and F = ½ mean_i (x − target_i)² + ½."""
    return bx.Problem(
        upper=lambda x, y, task, batch: 0.5 * jnp.mean((y[0] - batch) ** 2),
        lower=lambda x, y, task, batch: 0.5 * jnp.mean((y[0] - x[0] - batch) ** 2),
        x0=jnp.full(1, 3.0),
        y0=jnp.zeros(1),
        upper_data=bx.sampler(make, tasks=TARGETS, seed=seed),
        lower_data=bx.sampler(jax.random.normal, many=2000),
        strong_convexity=1.0,
    )


def test_a_sample_is_known_by_its_number_and_its_task():
    data, numbers = make_problem().upper_data, jnp.array([0, 5, 5, 2**31 - 2], jnp.int32)
    taken = data.take(jnp.int32(1), numbers)
    np.testing.assert_array_equal(taken, data.take(jnp.int32(1), numbers))
    assert taken[1] == taken[2]
    other = data.take(jnp.int32(2), numbers)
    assert len({*np.asarray(taken - TARGETS[1]), *np.asarray(other - TARGETS[2])}) == 6


def test_draws_have_the_mean_and_the_variance_of_what_is_made():
    data = make_problem().upper_data
    numbers = draw.batch_indices(jax.random.key(0), data, jnp.int32(3), 20_000)
    taken = np.asarray(data.take(jnp.int32(3), numbers))
    assert len(np.unique(numbers)) > 19_990  # all but endless
    assert abs(taken.mean() - TARGETS[3]) < 4 / np.sqrt(20_000)
    assert abs(taken.var() - 1) < 0.05


def test_a_run_finds_the_minimum_of_the_expectation_by_a_few_samples_in_a_step():
    result = bx.solve(make_problem(), steps=3000, progress=False)
    assert abs(float(result.x[0]) - float(TARGETS.mean())) < 0.1
    assert result.origin["algorithm"] == "block_soba"
    assert "samples that are made when they are drawn" in result.explain()
    assert "of 1,024 samples, always the same" in result.explain()


def test_all_samples_are_the_first_of_them():
    problem = make_problem()
    first = lambda data, i: np.asarray(data.take(jnp.int32(i), jnp.arange(data.max_length, dtype=jnp.int32)))
    x, seen = 0.3, first(problem.lower_data, 0).mean()
    F = np.mean([0.5 * np.mean((x + seen - first(problem.upper_data, i)) ** 2) for i in range(4)])
    assert float(bx.exact_objective(problem, jnp.full(1, x))) == pytest.approx(F, rel=1e-12)


def test_two_shards_make_the_samples_of_one():
    problem, x = make_problem(), jnp.full(1, 0.3)
    split = bx.shard(problem)
    assert float(bx.exact_objective(split, x)) == pytest.approx(float(bx.exact_objective(problem, x)), rel=1e-14)


def test_a_problem_made_again_is_the_same_one_and_one_with_other_samples_is_not():
    same, again, other = (make_problem(seed).identify() for seed in (1, 1, 2))
    assert same == again
    assert same["upper_data"] != other["upper_data"]
    doubled = make_problem(make=lambda key, target: target + 2 * jax.random.normal(key)).identify()
    assert same["upper_data"] != doubled["upper_data"]


BAD = {
    "no function": (lambda: bx.sampler(3), "must be a JAX function of a key; got 3"),
    "no sample": (lambda: bx.sampler(lambda key: None), "must return a sample"),
    "none of many": (lambda: bx.sampler(jax.random.normal, many=0), "many must be"),
    "no tasks": (lambda: bx.sampler(lambda key, task: task, tasks=jnp.zeros(0)), "at least one task"),
    "saba": (lambda: bx.solve(make_problem(), bx.saba(), steps=1), "it is made by bilevax.sampler"),
}


def test_the_same_samples_for_both_losses_are_refused():
    data = bx.sampler(jax.random.normal)
    with pytest.raises(ValueError, match="make the same samples, with seed 0: give one of them another seed="):
        bx.Problem(
            upper=lambda x, y, task, batch: jnp.mean(batch) + y[0], lower=lambda x, y, task, batch: 0.5 * y @ y,
            x0=jnp.zeros(1), y0=jnp.zeros(1), upper_data=data, lower_data=data, strong_convexity=1.0,
        )  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_makes_no_samples_is_refused(case):
    call, message = BAD[case]
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_an_error_of_the_function_says_whose_it_is():
    with pytest.raises(TypeError) as caught:
        bx.sampler(lambda key, task: key)
    assert any(
        "raised by the function of bilevax.sampler, called with a key" in note for note in caught.value.__notes__
    )
