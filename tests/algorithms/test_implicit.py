"""Implicit differentiation on all samples: L-BFGS as its box says, F that never rises, an end by itself."""

import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.problems import reweighting

import bilevax as bx
from bilevax.algorithms.parts import lbfgs
from bilevax.algorithms.parts.lbfgs import StepPairs, direction, remember
from bilevax.algorithms.parts.stages import Stage, samples_of, stage_sizes
from bilevax.exact import follow
from bilevax.exact.follow import LowerPoint

rng = np.random.default_rng(0)


def dense_bfgs(pairs, gradient):
    """−B∇F with B from the BFGS formula itself, oldest pair first, from γI (Nocedal, Wright, 6.17 and 7.20)."""
    (s, c), n = pairs[-1], len(gradient)
    B = (s @ c) / (c @ c) * np.eye(n)
    for s, c in pairs:
        rho = 1 / (s @ c)
        left = np.eye(n) - rho * np.outer(s, c)
        B = left @ B @ left.T + rho * np.outer(s, s)
    return -B @ gradient


def test_the_direction_is_that_of_the_bfgs_formula_for_the_pairs_in_memory():
    n, memory = 7, 3
    M = rng.normal(size=(n, n))
    H = M @ M.T + np.eye(n)
    steps = rng.normal(size=(5, n))
    pairs = StepPairs(jnp.zeros((memory, n)), jnp.zeros((memory, n)), jnp.zeros(memory))
    for step in steps:
        pairs = remember(pairs, jnp.asarray(step), jnp.asarray(H @ step))
    gradient = rng.normal(size=n)
    right = dense_bfgs([(s, H @ s) for s in steps[-memory:]], gradient)
    np.testing.assert_allclose(direction(pairs, jnp.asarray(gradient), jnp.asarray(1.0), 0.01), right, rtol=1e-9)


def test_a_pair_along_which_f_curves_downwards_is_not_remembered():
    pairs = StepPairs(jnp.zeros((2, 3)), jnp.zeros((2, 3)), jnp.zeros(2))
    after = remember(pairs, jnp.ones(3), -jnp.ones(3))
    assert (after.weights == 0).all()
    without = direction(after, jnp.asarray([3.0, 4.0, 0.0]), jnp.asarray(2.0), 0.01)
    np.testing.assert_allclose(without, -0.02 / 25 * np.asarray([3.0, 4.0, 0.0]))  # F = 2 would be 1.98, were it linear


def test_conjugate_gradients_solve_and_a_good_inverse_saves_products():
    M = rng.normal(size=(30, 30))
    H, v = jnp.asarray(M @ M.T + np.eye(30)), jnp.asarray(rng.normal(size=30))
    product, zero = (lambda h: H @ h), jnp.zeros(30)
    near = jnp.linalg.inv(H + 0.01 * jnp.eye(30))
    h, few = follow.conjugate_gradients(product, near, v, zero, 1e-8)
    np.testing.assert_allclose(h, np.linalg.solve(H, v), rtol=1e-5)
    plain, many = follow.conjugate_gradients(product, jnp.ones(30), v, zero, 1e-8)
    np.testing.assert_allclose(plain, np.linalg.solve(H, v), rtol=1e-3, atol=1e-5)
    assert 3 * int(few) < int(many)


@pytest.mark.parametrize("as_matrix", [True, False])
def test_followed_values_are_the_exact_ones_to_first_order(as_matrix):
    problem = reweighting.problem_of(3)
    m, x = problem.num_tasks, problem.x0 + 0.3
    y = jnp.stack([problem.y0_of(i) for i in range(m)])
    near = jnp.stack([follow.invert(problem, problem.x0, y[i], i, as_matrix) for i in range(m)])
    looks = [follow.follow(problem, x, LowerPoint(y[i], jnp.zeros_like(y[i]), near[i]), i)[0] for i in range(m)]
    term = jax.tree.map(lambda *leaves: sum(leaves) / m, *looks)
    exact = bx.exact_values(problem, x)
    np.testing.assert_allclose(term.objective, exact.objective, rtol=1e-4)
    scale = float(jnp.max(jnp.abs(exact.gradient)))
    np.testing.assert_allclose(term.gradient, exact.gradient, atol=2e-2 * scale)


def test_the_minimum_of_a_quadratic_problem_is_reached_and_the_run_ends_by_itself():
    quadratic = bx.problems.quadratic(num_tasks=5, dim_x=6, dim_y=3, noise=0.1, num_samples=8)
    result = bx.solve(quadratic.problem, bx.implicit(), steps=500)
    assert result.status == "done"
    assert result.steps < 100
    assert "no further step" in result.message
    np.testing.assert_allclose(result.x, quadratic.solution, atol=1e-4)
    assert (np.diff(result.trace["objective"]) <= 1e-9).all()


def test_f_never_rises_where_it_is_not_convex_and_far_points_are_not_taken():
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum(jnp.cos(3 * y)) + 0.01 * jnp.sum(x**4),
        lower=lambda x, y, i, batch: jnp.sum(jnp.cosh(y - x)),
        x0=jnp.asarray([0.3, -0.2]),
        y0=jnp.zeros(2),
        strong_convexity=1.0,
    )
    result = bx.solve(problem, bx.implicit(memory=3), steps=60, record_every=1)
    F = result.trace["objective"]
    assert (np.diff(F) <= 1e-6).all()
    assert F[-1] < -1.9
    assert result.trace["grad_norm"][-1] < 1e-3


def wells(x0, far=6.0, wide=8.0):
    """y* = x, and F has a deep well at 0.5 and a shallow, wide one further away."""
    depth = lambda t: 1000 - 4 * jnp.exp(-((t - 0.5) ** 2) / 0.1) - 3 * jnp.exp(-((t - far) ** 2) / wide)
    return bx.Problem(
        upper=lambda x, y, i, batch: depth(y[0]),
        lower=lambda x, y, i, batch: 0.5 * jnp.sum((y - x) ** 2),
        x0=jnp.asarray([x0]),
        y0=jnp.zeros(1),
        strong_convexity=1.0,
    )


def test_where_f_is_not_convex_a_second_descent_finds_the_better_minimum_and_the_better_one_counts():
    algorithm = bx.implicit()
    ends = {x0: float(bx.solve(wells(x0), algorithm, steps=200, metrics=None).x[0]) for x0 in (0.0, 0.1)}
    assert ends[0.0] == pytest.approx(0.5, abs=0.01)  # a first step of 1 % of |F| leads across to the other well
    assert ends[0.1] == pytest.approx(0.5, abs=0.01)
    alone = bx.solve(wells(0.0), bx.implicit(descents=1), steps=200, metrics=None)
    assert float(alone.x[0]) == pytest.approx(6.0, abs=0.01)


def test_f_does_not_rise_while_a_further_descent_is_under_way():
    problem = wells(0.1)  # the first descent ends in the better well
    result = bx.solve(problem, bx.implicit(), steps=200, record_every=1)
    assert (np.diff(result.trace["objective"]) <= 1e-9).all()
    assert result.steps > bx.solve(problem, bx.implicit(descents=1), steps=200, metrics=None).steps


def test_steps_grow_where_f_falls_faster_and_faster():
    """F = −exp(−(x − 5)²) from x = 0: 1 % of |F| = e⁻²⁵ in each step would take 2,500 of them."""
    problem = bx.Problem(
        upper=lambda x, y, i, batch: -jnp.exp(-((y[0] - 5) ** 2)),
        lower=lambda x, y, i, batch: 0.5 * jnp.sum((y - x) ** 2),
        x0=jnp.zeros(1), y0=jnp.zeros(1), strong_convexity=1.0,
    )  # fmt: skip
    result = bx.solve(problem, bx.implicit(descents=1), steps=200, metrics=None)
    assert float(result.x[0]) == pytest.approx(5.0, abs=1e-3)
    assert result.steps < 40


def test_a_start_of_its_own_where_f_is_not_finite_is_passed_over():
    """F = Σ y − log y, from 0.1: random starts around it have negative entries."""
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum(y - jnp.log(y)),
        lower=lambda x, y, i, batch: 0.5 * jnp.sum((y - x) ** 2),
        x0=jnp.full(8, 0.1), y0=jnp.full(8, 0.1), strong_convexity=1.0,
    )  # fmt: skip
    result = bx.solve(problem, bx.implicit(), steps=300, metrics=None)
    assert result.status == "done"
    assert int(result.state.own.best.descents) == 8  # one that was lost ended elsewhere
    np.testing.assert_allclose(result.x, 1.0, rtol=1e-4)


@pytest.mark.parametrize("descents", [0, 2.5])
def test_no_descent_is_refused(descents):
    with pytest.raises((ValueError, TypeError), match="descents"):
        bx.implicit(descents=descents)


def test_an_optimizer_of_optax_takes_every_point():
    quadratic = bx.problems.quadratic(num_tasks=2, dim_x=4, dim_y=3, noise=0.0)
    problem, eta = quadratic.problem, 0.05
    result = bx.solve(problem, bx.implicit(upper_optimizer=optax.sgd(eta)), steps=5)
    x = problem.x0
    for _ in range(5):
        x = x - eta * quadratic.gradient(x)
    np.testing.assert_allclose(result.x, x, rtol=1e-3, atol=1e-5)


def test_a_start_where_f_is_not_finite_is_told():
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum(jnp.log(x) + y**2),
        lower=lambda x, y, i, batch: 0.5 * jnp.sum((y - x) ** 2),
        x0=-jnp.ones(2),
        y0=jnp.zeros(2),
        strong_convexity=1.0,
    )
    assert bx.solve(problem, bx.implicit(), steps=5, metrics=None).status == "diverged"


@pytest.mark.parametrize("memory", [0, -1, 2.5])
def test_a_memory_of_nothing_is_refused(memory):
    with pytest.raises((ValueError, TypeError), match="memory"):
        bx.implicit(memory=memory)


def test_tasks_with_many_variables_are_followed_with_a_diagonal(monkeypatch):
    from bilevax.algorithms import implicit

    monkeypatch.setattr(implicit, "MOST_NUMBERS", 0)
    quadratic = bx.problems.quadratic(num_tasks=3, dim_x=4, dim_y=6, noise=0.1, num_samples=8)
    result = bx.solve(quadratic.problem, bx.implicit(), steps=100, metrics=None)
    np.testing.assert_allclose(result.x, quadratic.solution, atol=1e-4)
    assert jax.tree.leaves(result.state.own.tasks.near)[0].shape == (3, 6)


SOME_SAMPLES = {"LARGE": 1, "FIRST_SAMPLES": 64, "SAMPLES_FOR_Y": 1, "SAMPLES_FOR_X": 1}


@pytest.fixture
def some_samples(monkeypatch):
    """Stages of 32, 256 and all of a task's samples."""
    for name, value in SOME_SAMPLES.items():
        monkeypatch.setattr(f"bilevax.algorithms.parts.stages.{name}", value)


def means(samples, dim=3):
    """Two tasks, y_i* = x + the weighted mean of a; F has its minimum where all y_i are at the mean of b."""
    a, b = rng.normal(size=(2, samples, dim)), 5 + rng.normal(size=(2, samples, dim))
    w = rng.uniform(0.5, 1.5, size=(2, samples))
    problem = bx.Problem(
        upper=lambda x, y, i, batch: 0.5 * jnp.mean(jnp.sum((y[None] - batch) ** 2, axis=1)),
        lower=lambda x, y, i, batch: 0.5 * jnp.mean(batch["w"] * jnp.sum(((y - x)[None] - batch["a"]) ** 2, axis=1)),
        x0=jnp.zeros(dim), y0=jnp.zeros(dim), strong_convexity=0.5, y0_per_task=False,
        lower_data=bx.per_task({"a": a, "w": w}), upper_data=bx.per_task(b),
    )  # fmt: skip
    shift = np.sum(w[:, :, None] * a, axis=1) / np.sum(w, axis=1)[:, None]
    return problem, np.mean(b.mean(axis=1) - shift, axis=0)


def test_a_run_begins_with_some_samples_and_ends_at_the_minimum_for_all(some_samples):
    problem, minimum = means(2000)
    result = bx.solve(problem, bx.implicit(descents=1), steps=100, record_every=1, metrics=None)
    drawn = np.diff(result.trace["samples"])
    both = 2 * 2  # tasks, and samples of f and of g
    assert set(drawn) == {both * 32, both * 256, both * 2000}
    assert (np.diff(drawn) >= 0).all()
    np.testing.assert_allclose(result.x, minimum, rtol=1e-6)


def test_a_stage_looks_once_at_other_samples_and_more_are_asked_for_where_noise_is_half_of_the_gradient(some_samples):
    problem, _ = means(2000)
    steps = [bx.solve(problem, bx.implicit(descents=1), steps=k, metrics=None).state for k in (1, 2, 3)]
    first, probe, next_look = (state.own for state in steps)
    assert bool(first.stage.is_probe)
    assert float(first.stage.noise) == 0
    assert float(probe.stage.noise) > 0
    np.testing.assert_array_equal(steps[0].x, steps[1].x)
    np.testing.assert_array_equal(first.descent.trial, probe.descent.trial)  # nothing but the noise is learned
    np.testing.assert_array_equal(steps[2].x, first.descent.trial)
    # ∇F of 32 samples of two tasks: its parts have variances of about (1 + 1.08)/64, times three variables
    assert 0.1 * 0.1 < float(probe.stage.noise) < 10 * 0.1
    assert int(next_look.stage.number) == 0  # ∇F is still about 5√3


def test_weights_on_samples_and_small_data_begin_with_all_samples():
    def sizes(m, upper, lower, dim_x, dim_y):
        lengths = {"upper_data": SimpleNamespace(max_length=upper), "lower_data": SimpleNamespace(max_length=lower)}
        return stage_sizes(SimpleNamespace(num_tasks=m, dim_x=dim_x, dim_y=dim_y, **lengths))

    million = 1_000_000
    assert sizes(1, 1000, million, 20, 20) == (4096, 8 * 4096, None)
    assert sizes(1, million, 1000, 20, 20) == (4096, 8 * 4096, None)
    assert sizes(1, 1000, million, million, 20) == (None,)  # x_j belongs to a sample
    assert sizes(1, 1000, 10_000, 20, 20) == (None,)  # compiling would take longer
    assert sizes(20, 1000, 50_000, 20, 20) == (32 * 20, 8 * 32 * 20, None)  # enough for each y_i


def test_a_first_stage_has_samples_for_every_variable_of_all_tasks_together_and_of_each():
    lengths = lambda longest: {name: SimpleNamespace(max_length=longest) for name in ("upper_data", "lower_data")}
    first = lambda m, longest, dim_x, dim_y: stage_sizes(
        SimpleNamespace(num_tasks=m, dim_x=dim_x, dim_y=dim_y, **lengths(longest))
    )[0]
    assert first(3, 10**7, 1, 1) == 1366  # 4,096 of three tasks, and no fewer
    assert first(1, 10**7, 5000, 1) == 8 * 5000
    assert first(4, 10**7, 5000, 1) == 8 * 5000 / 4
    assert first(4, 10**7, 1, 5000) == 32 * 5000
    assert first(1, 4 * 4096, 1, 1000) is None  # 32,000 for y are not a quarter of them
    assert first(1, 4 * 32_000, 1, 1000) == 32_000
    assert first(1, 4 * 32_000 - 1, 1, 1000) is None


def test_samples_are_the_same_in_every_look_of_a_stage_and_others_in_a_probe_a_task_and_another_stage():
    data = {"upper_data": bx.per_task(np.zeros((2, 500))), "lower_data": bx.per_task(np.zeros((2, 9000)))}
    drawn = lambda number, probe, i: samples_of(
        SimpleNamespace(**data), Stage(jnp.int32(number), jnp.uint32(7), jnp.asarray(probe), None), 600, jnp.int32(i)
    )
    cases = [(number, probe, i) for number in (0, 1, 2) for probe in (False, True) for i in (0, 1)]
    zetas = [np.asarray(drawn(*case)[1]) for case in cases]
    assert len({zeta.tobytes() for zeta in zetas}) == len(cases)
    np.testing.assert_array_equal(drawn(*cases[0])[1], zetas[0])
    assert all(zeta.shape == (600,) and zeta.max() > 8000 for zeta in zetas)
    assert drawn(*cases[0])[0] is None  # all 500 of f


@pytest.fixture(scope="module")
def path():
    """A problem with many samples, and the states of a run on it with stages of 32, 256 and all of them."""
    problem, _ = means(2000)
    states, algorithm = [], bx.implicit(descents=1)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SOME_SAMPLES.items():
            patch.setattr(f"bilevax.algorithms.parts.stages.{name}", value)
        state, step = jax.jit(algorithm.init)(problem, jax.random.key(0)), jax.jit(algorithm.step)
        while len(states) < 20 and (not states or int(states[-1].own.stage.number) < 2):
            states.append(state)
            state, _ = step(problem, state, jax.random.key(len(states)))
    return problem, states


def test_the_noise_is_half_the_square_between_the_gradients_on_two_sets_of_samples(path):
    problem, (_, first, probe, *_) = path

    def gradient(stage):
        """mean_i y_i* − the mean of b, on the samples of a stage."""
        parts = []
        for i in range(2):
            xi, zeta = samples_of(problem, stage, 32, jnp.int32(i))
            b, rows = problem.upper_data.take(i, xi), problem.lower_data.take(i, zeta)
            parts.append(first.x + np.average(rows["a"], axis=0, weights=rows["w"]) - np.mean(b, axis=0))
        return np.mean(parts, axis=0)

    here, there = (gradient(first.own.stage._replace(is_probe=jnp.asarray(yes))) for yes in (False, True))
    np.testing.assert_allclose(first.own.descent.gradient, here, rtol=1e-2)
    np.testing.assert_allclose(probe.own.stage.noise, np.sum((here - there) ** 2) / 2, rtol=2e-2)


def test_a_point_that_is_taken_asks_for_more_samples_where_noise_is_more_than_half_of_the_gradient(path):
    seen = set()
    for before, after in itertools.pairwise(path[1]):
        if bool(before.own.stage.is_probe) or (before.x == after.x).all():
            continue
        gradient = np.asarray(after.own.descent.gradient)
        is_noisy = float(before.own.stage.noise) > 0.25 * gradient @ gradient
        assert int(after.own.stage.number) - int(before.own.stage.number) == is_noisy
        if is_noisy:
            assert float(after.own.stage.noise) == 0  # not known for the new samples
            np.testing.assert_array_equal(after.own.descent.trial, after.x)  # x is looked at again with them
        seen.add(is_noisy)
    assert seen == {False, True}


@pytest.mark.parametrize(("minimum", "share"), [(0.3, 0.3), (0.01, 0.1), (0.9, 0.5), (np.inf, 0.5), (None, 0.1)])
def test_after_a_point_that_is_not_taken_the_next_is_at_the_minimum_of_a_parabola_between_a_tenth_and_a_half(
    minimum, share
):
    """F = 2 − t + t²/(2·minimum) along the step; `None`: F is not finite there."""
    x, gradient, step = jnp.ones(2), jnp.asarray([-3.0, -4.0]), jnp.asarray([0.2, 0.1])
    slope = gradient @ step
    descent = lbfgs.start_descent(x, 2)._replace(
        objective=jnp.asarray(2.0), gradient=gradient, trial=x + step, slope=slope
    )
    F = jnp.nan if minimum is None else 2 + slope - slope / (2 * minimum)
    after = lbfgs.reject(descent, x, jnp.asarray(F), jnp.isfinite(F))
    np.testing.assert_allclose(after.trial, x + share * step)
    np.testing.assert_allclose(after.slope, share * slope)
    assert int(after.rejections) == 1
    last = lbfgs.reject(
        descent._replace(rejections=jnp.int32(lbfgs.REJECTIONS - 1)), x, jnp.asarray(F), jnp.isfinite(F)
    )
    np.testing.assert_allclose(last.trial, x + jnp.linalg.norm(step) * jnp.asarray([0.6, 0.8]))  # along −∇F, as far


def test_steps_that_lower_f_by_rounding_alone_are_counted_in_a_row_and_no_step_is_three_times_as_long_as_the_last():
    x, before = jnp.ones(2), jnp.asarray([-3.0, -4.0])
    descent = lbfgs.start_descent(x, 2)._replace(
        objective=jnp.asarray(2.0), gradient=before, trial=x + 0.1, idle_steps=jnp.int32(2), rejections=jnp.int32(5)
    )
    accept = lambda F: lbfgs.accept(descent, x, jnp.asarray(F), 0.99 * before, 0.01, jnp.asarray(1e-9))
    falls, idles = accept(1.5), accept(2.0 - 1e-10)
    assert (int(falls.idle_steps), int(idles.idle_steps)) == (0, 3)
    assert int(falls.rejections) == 0
    np.testing.assert_allclose(jnp.linalg.norm(falls.trial - x - 0.1), 3 * 0.1 * 2**0.5)  # L-BFGS asks for far more


def test_a_step_that_l_bfgs_asks_for_is_made_as_it_is_where_it_is_not_long():
    x, before, after = jnp.ones(2), jnp.asarray([-3.0, -4.0]), jnp.asarray([-0.6, -1.0])
    descent = lbfgs.start_descent(x, 2)._replace(objective=jnp.asarray(2.0), gradient=before, trial=x + 0.1)
    taken = lbfgs.accept(descent, x, jnp.asarray(1.5), after, 0.01, jnp.asarray(1e-9))
    toward = dense_bfgs([(np.full(2, 0.1), np.asarray(after - before))], np.asarray(after))
    assert np.linalg.norm(toward) < 0.1
    np.testing.assert_allclose(taken.trial, x + 0.1 + toward)
    np.testing.assert_allclose(taken.slope, after @ toward)


def test_a_lower_problem_of_known_curvature_is_solved_on_its_own_samples():
    """y_i = x + the mean of the samples ζ of task i, and h_i = ∇y f_i/λ."""
    a = rng.normal(size=(3, 50, 2))
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum(y**2),
        lower=lambda x, y, i, batch: 1.5 * jnp.mean(jnp.sum(((y - x)[None] - batch) ** 2, axis=1)),
        x0=jnp.zeros(2), y0=jnp.zeros(2), y0_per_task=False, strong_convexity=3.0, lower_data=bx.per_task(a),
    )  # fmt: skip
    assert not problem.structure.estimates_hessian
    x, zeta = jnp.asarray([1.0, -1.0]), jnp.asarray([3, 3, 40])
    at = LowerPoint(jnp.zeros(2), jnp.zeros(2), jnp.zeros(0))
    term, y, h = follow.follow(problem, x, at, jnp.int32(2), None, zeta)
    np.testing.assert_allclose(y, x + a[2, np.asarray(zeta)].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(h, 2 * y / 3.0, rtol=1e-9)
    np.testing.assert_allclose(term.gradient, 2 * y, rtol=1e-6)


def test_a_lower_problem_that_is_where_it_belongs_takes_one_newton_step():
    problem = reweighting.problem_of(1)
    y = bx.lower_solution(problem, problem.x0, task=0)
    near = follow.invert(problem, problem.x0, y, 0, True)
    after, products = follow.approach(problem, problem.x0, y + 1e-6, near, 0)
    np.testing.assert_allclose(after, y, atol=1e-9)
    assert int(products) <= 3


@pytest.mark.parametrize("seed", [0, 3])  # and rounding, where x has gone far, is not taken for a lack of curvature
def test_f_is_believed_only_where_y_is_found_also_where_x_goes_far_in_single_precision(seed):
    """Scales of columns in a logarithm: x of 20 and more leaves the lower problems badly conditioned."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(12, 2)) * (rng.random((12, 1)) < 0.3)
    A = rng.normal(size=(120, 12)).astype(np.float32)
    b = np.sign(A @ truth + rng.normal(size=(120, 2))).astype(np.float32)

    def loss(x, y, i, batch):
        margin = batch["b"][:, i] * (batch["A"] @ (jnp.exp(x) * y))
        return jnp.mean(jax.nn.relu(1 - margin) ** 2)

    zeros = jnp.zeros(12, jnp.float32)
    problem = bx.Problem(
        upper=loss, lower=lambda x, y, i, batch: loss(x, y, i, batch) + jnp.float32(0.05) * jnp.sum(y**2), x0=zeros,
        y0=zeros, tasks=2, strong_convexity=0.1, y0_per_task=False, lower_data=bx.shared({"A": A[:60], "b": b[:60]}),
        upper_data=bx.shared({"A": A[60:], "b": b[60:]}),
    )  # fmt: skip
    result = bx.solve(problem, bx.implicit(), steps=2000, metrics=None, progress=False)
    exact = float(bx.exact.evaluation.objective(problem, result.x))
    assert exact == pytest.approx(float(result.state.own.best.objective), rel=1e-3)
    assert exact < 0.9 * float(bx.exact.evaluation.objective(problem, problem.x0))
