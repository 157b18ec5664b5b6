"""Programs are shared, and runs resumed, only where all that decides on them is the same."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.logistic import Model

import bilevax as bx

SCALE = 1.0
SETTINGS = {"upper_step": 0.02, "lower_step": 0.1, "mixing": 0.1, "batch_size": 4, "initialization": "cheap"}


class Scaled:
    """An upper loss that reads an attribute."""

    def __init__(self, scale):
        self.scale = scale

    def upper(self, x, y, i, batch):
        """scale·‖y − 1‖²."""
        return self.scale * jnp.sum((y - 1) ** 2)


def reads_a_global(x, y, i, batch):
    """The same with a global."""
    return SCALE * jnp.sum((y - 1) ** 2)


class Compiled(Scaled):
    """The same, with the attribute as an array inside a compiled function."""

    def upper(self, x, y, i, batch):
        """scale·‖y − 1‖²."""
        inner = jax.jit(lambda y: jnp.sum(np.full(2, self.scale) * (y - 1) ** 2))
        return inner(y)


class OwnRule(Scaled):
    """‖y − 1‖² with a rule of its own for its derivative, which reads the attribute."""

    def upper(self, x, y, i, batch):
        """Its value does not change with the scale."""

        @jax.custom_jvp
        def square(y):
            return jnp.sum((y - 1) ** 2)

        square.defjvp(lambda y, dy: (square(y[0]), self.scale * 2 * jnp.sum((y[0] - 1) * dy[0])))
        return square(y)


def problem_with(upper):
    """y* = x, so F(0) = 2·scale."""
    return bx.Problem(
        upper=upper, lower=lower, x0=jnp.zeros(2), y0=jnp.zeros(2), y0_per_task=False, strong_convexity=2.0
    )


def lower(x, y, i, batch):
    """‖y − x‖²."""
    return jnp.sum((y - x) ** 2)


def test_a_bound_method_whose_object_changed_has_a_new_program():
    loss = Scaled(1.0)
    old = problem_with(loss.upper)
    assert float(bx.exact_objective(old, jnp.zeros(2))) == pytest.approx(2.0)
    loss.scale = 3.0
    assert float(bx.exact_objective(problem_with(loss.upper), jnp.zeros(2))) == pytest.approx(6.0)
    with pytest.raises(ValueError, match="upper is not what it was when the problem was made"):
        bx.exact_objective(old, jnp.zeros(2))
    with pytest.raises(ValueError, match="upper is not what it was when the problem was made"):
        bx.solve(old, bx.svrb(), steps=1)


def test_a_loss_that_reads_a_changed_global_has_a_new_program(monkeypatch):
    assert float(bx.exact_objective(problem_with(reads_a_global), jnp.zeros(2))) == pytest.approx(2.0)
    monkeypatch.setitem(globals(), "SCALE", 0.5)
    assert float(bx.exact_objective(problem_with(reads_a_global), jnp.zeros(2))) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", [Compiled, OwnRule])
def test_what_a_compiled_part_or_a_rule_for_derivatives_reads_is_seen(kind):
    loss = kind(1.0)
    old = problem_with(loss.upper)
    np.testing.assert_allclose(bx.exact_gradient(old, jnp.zeros(2)), [-2, -2], rtol=1e-9)
    loss.scale = 3.0
    np.testing.assert_allclose(bx.exact_gradient(problem_with(loss.upper), jnp.zeros(2)), [-6, -6], rtol=1e-9)
    with pytest.raises(ValueError, match="upper is not what it was when the problem was made"):
        bx.exact_gradient(old, jnp.zeros(2))


def test_a_changed_array_is_seen_and_the_same_numbers_share_a_program():
    goal = np.ones(2)
    upper = lambda x, y, i, batch: jnp.sum((y - goal) ** 2)
    one, same = problem_with(upper), problem_with(upper)
    assert jax.tree.structure(one) == jax.tree.structure(same)
    goal[0] = 2.0
    assert jax.tree.structure(problem_with(upper)) != jax.tree.structure(one)
    assert float(bx.exact_objective(problem_with(upper), jnp.zeros(2))) == pytest.approx(5.0)


@pytest.fixture(scope="module")
def begun():
    problem = Model(5).problem()
    return problem, bx.solve(problem, bx.rsvrb(tasks_per_step=2, **SETTINGS), steps=2, seed=4, metrics=None)


def other_problem(problem, **changed):
    """The problem with some of its parts replaced."""
    parts = {
        "upper": problem.upper, "lower": problem.lower, "x0": problem.x0, "y0": problem.y0, "y0_per_task": True,
        "tasks": problem.tasks, "upper_data": problem.upper_data, "lower_data": problem.lower_data,
        "strong_convexity": float(problem.strong_convexity),
    }  # fmt: skip
    return bx.Problem(**{**parts, **changed})


@pytest.mark.parametrize(
    "name",
    [
        "upper",
        "lower_data",
        "tasks",
        "x0",
        "strong_convexity",
        "ridge",
        "lower_step",
        "mixing",
        "batch_size",
        "upper_optimizer",
    ],
)
def test_a_run_is_not_resumed_with_another_problem_or_other_settings(begun, name):
    problem, result = begun
    settings = {"tasks_per_step": 2, **SETTINGS}
    changed = {
        "upper": lambda *given, upper=problem.upper: 2 * upper(*given),
        "lower_data": bx.per_task(jax.tree.map(lambda leaf: leaf + 1e-9, problem.lower_data.arrays)),
        "tasks": problem.tasks + 1, "x0": problem.x0 + 1, "strong_convexity": 0.4, "ridge": True,
    }  # fmt: skip
    if name in changed:
        problem = other_problem(problem, **{name: changed[name]})
    else:
        new = {
            "lower_step": 0.2,
            "mixing": bx.power(0.1, 1, 1 / 3),
            "batch_size": 3,
            "upper_optimizer": optax.sgd(0.02),
        }
        settings[name] = new[name]
    with pytest.raises(ValueError, match=f"resume must come from a run of rsvrb .* not the same are {name}"):
        bx.solve(problem, bx.rsvrb(**settings), steps=4, resume=result, metrics=None)


def test_a_run_is_resumed_with_an_equal_problem_and_equal_settings(begun):
    problem, result = begun
    again = bx.solve(
        other_problem(problem), bx.rsvrb(tasks_per_step=2, **SETTINGS), steps=4, resume=result, metrics=None
    )
    assert again.steps == 4
    with pytest.raises(ValueError, match="resume comes from a run with seed 4, which it keeps; got seed=5"):
        bx.solve(problem, bx.rsvrb(tasks_per_step=2, **SETTINGS), steps=4, resume=result, seed=5, metrics=None)


def test_schedules_and_optimizers_are_known_by_what_they_do():
    from bilevax.identity import describe

    x = jnp.zeros(3)
    assert describe(bx.power(1, 2, 0.5), x) == describe(lambda t: 1 / (2 + jnp.asarray(t, float)) ** 0.5, x)
    assert describe(bx.power(1, 2, 0.5), x) != describe(bx.power(1, 2, 0.6), x)
    late, later = (optax.piecewise_constant_schedule(0.1, {step: 0.1}) for step in (500, 510))
    assert describe(late, x) != describe(later, x)
    assert describe(optax.adam(0.1), x) == describe(optax.adam(0.1), x)
    assert describe(optax.adam(0.1), x) != describe(optax.adam(0.2), x)
    assert describe(0.1, x) == describe(np.float64(0.1), x) != describe(0.2, x)
    assert describe(bx.curvature.dense, x) != describe(bx.curvature.tracked, x)


def test_a_large_array_is_known_by_every_number(monkeypatch):
    from bilevax import identity

    monkeypatch.setattr(identity, "LARGE", 100)
    numbers = np.random.default_rng(0).normal(size=100_003).astype(np.float32)
    known = identity.digest_of(numbers)
    assert identity.digest_of(numbers.copy()) == known
    for place in (0, 777, 50_000, 100_002):
        changed = numbers.copy()
        changed[place] += 1
        assert identity.digest_of(changed) != known
    assert identity.digest_of(numbers[::-1].copy()) != known


def test_a_mixing_of_schedules_is_known_by_what_they_do():
    from bilevax.identity import describe

    mixing = lambda scale: bx.Mixing(*[0.1] * 5, bx.power(scale, 2, 0.5))
    assert describe(mixing(1), jnp.zeros(3)) == describe(mixing(1), jnp.zeros(3))
    assert describe(mixing(1), jnp.zeros(3)) != describe(mixing(0.5), jnp.zeros(3))


def test_the_same_numbers_in_another_order_are_another_array():
    from bilevax.identity import digest_of

    numbers = np.arange(6.0)
    assert digest_of(numbers) == digest_of(numbers.copy())
    assert digest_of(numbers) != digest_of(numbers[[1, 0, 2, 3, 4, 5]])
