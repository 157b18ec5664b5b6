"""What a user got wrong is said before anything is compiled: the argument, what was given, what is right."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.logistic import Model

import bilevax as bx
from bilevax.bounds import as_bounds


def upper(x, y, task, batch):
    return jnp.mean((batch @ y - 1) ** 2) + jnp.sum(x**2)


def lower(x, y, task, batch):
    return jnp.mean((batch @ (y - x)) ** 2) + jnp.sum(y**2)


ROWS = np.random.default_rng(0).normal(size=(8, 3))
GOOD = {
    "upper": upper,
    "lower": lower,
    "x0": np.ones(3),
    "y0": np.zeros(3),
    "upper_data": bx.shared(ROWS),
    "lower_data": bx.shared(ROWS),
    "strong_convexity": 1.0,
    "tasks": 5,
}
WITH_NAN = np.where(np.arange(24).reshape(8, 3) == 4, np.nan, ROWS)

WRONG = {
    "vector loss": ({"upper": lambda x, y, t, b: b @ y}, ValueError, "upper must return one real number.*shape"),
    "integer loss": ({"lower": lambda x, y, t, b: jnp.int32(1)}, ValueError, "lower must return one .*int32"),
    "tuple loss": ({"lower": lambda x, y, t, b: (1.0, 2.0)}, ValueError, "lower must return one real number.*tuple"),
    "no function": ({"upper": 3}, TypeError, "upper must be a function.*got 3"),
    "integer x0": ({"x0": np.array([1, 2, 3])}, TypeError, "x0 must be of a floating type.*int"),
    "half x0": ({"x0": np.ones(3, np.float16)}, TypeError, "x0 must be of a floating type, float32 or .*float16"),
    "text x0": ({"x0": "abc"}, TypeError, "x0 must be of a floating type"),
    "number of tasks": ({"tasks": 5.0}, TypeError, "tasks must be a whole number, or a pytree.*got 5.0"),
    "bounds as text": ({"bounds": bx.Bounds(y="a")}, TypeError, "bounds.y must be a number > 0.*'a'"),
    "bounds as bool": ({"bounds": bx.Bounds(y=True)}, TypeError, "bounds.y must be a number > 0.*True"),
    "integer y0": ({"y0": np.zeros(3, int)}, TypeError, "y0 must be of a floating type.*int"),
    "NaN in x0": ({"x0": np.array([1, np.nan, 2.0])}, ValueError, "x0 must be finite; 1 of its 3"),
    "empty x0": ({"x0": {}}, ValueError, "x0 must hold at least one array"),
    "zero λ": ({"strong_convexity": 0.0}, ValueError, r"strong_convexity must be a finite number > 0; got 0\.0"),
    "negative λ": ({"strong_convexity": -1.0}, ValueError, r"strong_convexity .*got -1\.0"),
    "λ as text": ({"strong_convexity": "much"}, TypeError, "strong_convexity must be .*'much'"),
    "raw arrays": ({"lower_data": ROWS}, TypeError, "lower_data must come from bilevax.shared.*got ndarray"),
    "task counts": (
        {"lower_data": bx.per_task(np.zeros((4, 8, 3)))},
        ValueError,
        "agree on the number of tasks; lower_data has 4, tasks has 5",
    ),
    "no tasks": ({"tasks": 0}, ValueError, "tasks must be a whole number of at least 1; got 0"),
    "y0 of other tasks": ({"y0": np.zeros((4, 3)), "y0_per_task": True}, ValueError, "per_task=True .* 5 tasks; got 4"),
    "bounds": ({"bounds": bx.Bounds(f_y=-1.0)}, ValueError, r"bounds.f_y must be a number > 0.*got -1\.0"),
    "bounds of other tasks": ({"bounds": bx.Bounds(y=np.ones(3))}, ValueError, r"bounds.y must be .* 5 of them"),
    "bounds as dict": ({"bounds": {"f_y": 1}}, TypeError, "bounds must be a bilevax.Bounds"),
    "unknown keyword": ({"strong_convex": 1.0}, TypeError, "'strong_convex': did you mean 'strong_convexity'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_problem_is_refused(case):
    changed, error, match = WRONG[case]
    with pytest.raises(error, match=match):
        bx.Problem(**{**GOOD, **changed})


def test_the_good_problem_is_accepted():
    problem = bx.Problem(**GOOD)
    assert (problem.num_tasks, problem.dim_x, problem.dim_y) == (5, 3, 3)


def test_an_error_inside_a_loss_says_how_it_was_called():
    with pytest.raises(TypeError) as caught:
        bx.Problem(**{**GOOD, "y0": np.zeros(4)})
    assert "raised by upper(x, y, task, batch)" in " ".join(caught.value.__notes__)


def test_a_loss_for_batches_of_two_samples_alone_is_named():
    two = lambda x, y, task, batch: jnp.sum(y**2) + jnp.sum(jnp.arange(2) * batch["a"][:, 0])
    with pytest.raises(TypeError) as caught:
        bx.Problem(**{**GOOD, "lower": two})
    assert "raised by lower(x, y, task, batch)" in " ".join(caught.value.__notes__)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: bx.shared(np.zeros((0, 3))), "at least one sample"),
        (lambda: bx.shared(WITH_NAN), r"shared\(arrays\) must be finite; 1 of its 24"),
        (
            lambda: bx.shared({"a": np.zeros((3, 1)), "b": np.zeros((4, 1))}),
            r"same length along axis 0.*'a'.*3.*'b'.*4",
        ),
        (lambda: bx.shared(3.0), "at least 1 axis"),
        (lambda: bx.shared({}), "at least one array"),
        (lambda: bx.per_task(np.zeros(3)), "at least 2 axes"),
        (lambda: bx.per_task(np.zeros((2, 0))), "one sample for each task"),
        (lambda: bx.ragged(np.zeros(4), np.array([0, 2, 5])), "from 0 to the number of rows, 4; got 0 to 5"),
        (lambda: bx.ragged(np.zeros(4), np.array([0, 2, 2, 4])), "gives task 1 0"),
        (lambda: bx.ragged(np.zeros(4), np.array([0.0, 4.0])), "integer array"),
        (lambda: bx.ragged(np.zeros(4), np.array([0, 3, 2, 4], np.uint32)), "gives task 1 -1"),
        (lambda: bx.shared([[1.0, 2.0], [3.0, 4.0]]), "A list is a pytree of its entries"),
    ],
)
def test_wrong_data_are_refused(build, match):
    with pytest.raises(ValueError, match=match):
        build()


def test_y0_with_a_leading_axis_is_one_start_for_each_task():
    starts = np.arange(15.0).reshape(5, 3)
    problem = bx.Problem(**{**GOOD, "y0": starts})
    np.testing.assert_array_equal(problem.y0_of(3), starts[3])


def test_y0_that_could_be_both_must_be_said():
    square = {
        **GOOD,
        "tasks": 3,
        "lower": lambda x, y, t, b: jnp.sum(y**2),
        "upper": lambda x, y, t, b: jnp.sum(y**2),
    }
    with pytest.raises(ValueError, match=r"y0_per_task=False .*y0_per_task=True"):
        bx.Problem(**{**square, "y0": np.zeros(3)})
    assert bx.Problem(**{**square, "y0": np.zeros(3), "y0_per_task": False}).dim_y == 3
    assert bx.Problem(**{**square, "y0": np.zeros(3), "y0_per_task": True}).dim_y == 1


WRONG_SETTINGS = {
    "mixing above one": ({"mixing": 1.5}, r"mixing must be a number in \(0, 1\]; got 1.5"),
    "mixing zero": ({"mixing": 0}, r"mixing must be a number in \(0, 1\]; got 0"),
    "one mixing": ({"mixing": bx.Mixing(*[0.1] * 5, 2.0)}, r"mixing.direction must be .*got 2.0"),
    "mixing schedule": ({"mixing": lambda t: 3.0}, r"mixing\(1\) must be .*got 3.0"),
    "negative step": ({"upper_step": -0.1}, r"upper_step must be a finite number > 0; got -0.1"),
    "infinite step": ({"lower_step": np.inf}, r"lower_step must be a finite number > 0; got inf"),
    "relaxation": ({"relaxation": 1.2}, r"relaxation must be a number in \(0, 1\]; got 1.2"),
    "no tasks": ({"tasks_per_step": 0}, "tasks_per_step must be a whole number of at least 1; got 0"),
    "no batch": ({"batch_size": 0}, "batch_size must be a whole number of at least 1; got 0"),
    "p sum": ({"task_probabilities": [0.5, 0.6]}, r"task_probabilities must sum to 1; they sum to 1.1"),
    "p zero": ({"task_probabilities": [1.0, 0.0]}, "task_probabilities must all be > 0.*entry 1 is 0.0"),
    "p NaN": ({"task_probabilities": [1.0, np.nan]}, "task_probabilities must all be > 0.*entry 1 is nan"),
    "p matrix": ({"task_probabilities": np.ones((1, 1))}, "task_probabilities must be a vector.*shape"),
    "start": ({"initialization": "warm"}, "initialization must be one of 'theorem', 'cheap'; got 'warm'"),
}


@pytest.mark.parametrize("case", WRONG_SETTINGS)
@pytest.mark.parametrize("factory", [bx.rsvrb, bx.re_rsvrb])
def test_wrong_settings_are_refused(case, factory):
    changed, match = WRONG_SETTINGS[case]
    with pytest.raises((ValueError, TypeError), match=match if case != "mixing schedule" else "mixing"):
        factory(**changed)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"upper_optimizer": optax.adam}, "upper_optimizer must be an optax transformation"),
        ({"curvature": "dense"}, "curvature must be one of"),
        ({"task_probabilities": "uniform"}, "task_probabilities must be a vector of numbers; got 'uniform'"),
    ],
)
def test_settings_of_a_wrong_kind_are_refused(changed, match):
    with pytest.raises(TypeError, match=match):
        bx.rsvrb(**changed)


@pytest.mark.parametrize("name", ["upper_step", "lower_step", "relaxation", "mixing"])
def test_stages_take_no_other_schedules(name):
    for value in (lambda t: 0.1, bx.Mixing(*[lambda t: 0.1] * 6)):
        if name == "mixing" or not isinstance(value, bx.Mixing):
            with pytest.raises(TypeError, match=f"{name} of re_rsvrb must be a number"):
                bx.re_rsvrb(**{name: value})


def test_bounds_and_strong_convexity_take_the_type_of_the_variables():
    problem = bx.Problem(**{**GOOD, "x0": np.ones(3, np.float32), "y0": np.zeros(3, np.float32),
                            "lower_data": bx.shared(ROWS.astype(np.float32)),
                            "upper_data": bx.shared(ROWS.astype(np.float32)),
                            "bounds": bx.Bounds(f_y=[1.0] * 5, y=2.0)})  # fmt: skip
    held = (problem.strong_convexity, problem.bounds.f_y, problem.bounds.y)
    assert {value.dtype for value in held} == {np.dtype(np.float32)}
    result = bx.solve(problem, bx.rsvrb(initialization="cheap", lower_step=0.01), steps=3, metrics=None)
    assert result.x.dtype == np.float32


@pytest.mark.parametrize("factory", [bx.svrb, bx.rsvrb, bx.re_rsvrb])
def test_an_unknown_setting_is_refused_with_the_nearest_known_one(factory):
    with pytest.raises(TypeError, match="no argument 'lower_stp': did you mean 'lower_step'"):
        factory(lower_stp=0.1)


@pytest.mark.parametrize(
    ("algorithm", "match"),
    [
        (bx.rsvrb(tasks_per_step=6), "tasks_per_step must be at most the number of tasks, 5; got 6"),
        (bx.rsvrb(task_probabilities=[0.5, 0.5]), "one entry for each of the 5 tasks; got 2"),
        (bx.svrb(), "svrb is for one lower problem, this one has 5"),
    ],
)
def test_an_algorithm_refuses_a_problem_that_does_not_fit(algorithm, match):
    with pytest.raises(ValueError, match=match):
        bx.solve(Model(5).problem(), algorithm, steps=1)


@pytest.mark.parametrize("value", ["a", None, [1, 2]])
def test_a_step_that_is_no_number_is_refused(value):
    with pytest.raises(TypeError, match="upper_step must be a finite number"):
        bx.rsvrb(upper_step=value)


@pytest.mark.parametrize(
    ("upper", "uses"),
    [
        (lambda x, y, t, b: x["b"], True),
        (lambda x, y, t, b: x["b"] * jnp.sum(y), True),
        (lambda x, y, t, b: x["a"] @ y, True),
        (lambda x, y, t, b: jnp.sum(y), False),
        (lambda x, y, t, b: jnp.sum(y) + x["a"].shape[0], False),
    ],
)
def test_a_problem_knows_whether_its_upper_loss_looks_at_x(upper, uses):
    x0 = {"a": np.ones(3), "b": np.float64(1)}
    problem = bx.Problem(upper=upper, lower=lambda x, y, t, b: jnp.sum((y - x["a"]) ** 2), x0=x0, y0=np.zeros(3),
                         strong_convexity=2.0)  # fmt: skip
    assert problem.structure.upper_uses_x == uses


def test_bounds_are_kept_where_they_bind_any_task_and_each_task_has_its_own():
    given = bx.Bounds(f_x=2.0, f_y=np.array([1.0, np.inf]), g_xy=np.inf, y=bx.Box(np.array([-1.0, 0.0]), 3.0))
    bounds = as_bounds(given, 2)
    assert bounds.g_xy is None
    with jax.enable_x64(False):
        assert float(as_bounds(bx.Bounds(f_x=10**12, y=bx.Box(0, 10**12)), 2).y.high) == np.float32(1e12)
    of = Model(2).problem().replace(bounds=bounds).bounds_of
    own = of(1)
    assert (float(own.f_x), float(own.f_y), float(own.y.low), float(own.y.high)) == (2, np.inf, 0, 3)
    assert float(of(0).f_y) == 1
    assert list(bounds.by_name) == ["f_x", "f_y", "g_xy", "y"]
    assert [bounds.by_name[name] is getattr(bounds, name) for name in bounds.by_name] == [True] * 4


@pytest.mark.parametrize(
    ("bounds", "match"),
    [
        ({"f_y": np.array([1.0, 0.0])}, "bounds.f_y must be a number > 0, or 2 of them"),
        ({"f_x": np.ones(3)}, "bounds.f_x must be a number > 0, or 2 of them"),
        ({"g_xy": np.nan}, "bounds.g_xy must be"),
        ({"y": bx.Box(np.zeros(2), np.array([1.0, 0.0]))}, "bounds.y must be a Box of numbers, or 2 of them"),
        ({"y": bx.Box(np.zeros(3), 1.0)}, "bounds.y must be a Box of numbers"),
        ({"y": bx.Box(0.0, np.ones(3))}, "bounds.y must be a Box of numbers"),
        ({"f_x": bx.Box(0.0, 1.0)}, "bounds.f_x"),
    ],
)
def test_bounds_that_are_none_for_one_task_are_refused(bounds, match):
    with pytest.raises((ValueError, TypeError), match=match):
        as_bounds(bx.Bounds(**bounds), 2)
