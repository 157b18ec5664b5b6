"""Results as files: all of it comes back, and nothing else is taken for one."""

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

import bilevax as bx
from bilevax.run import saved


def problem_of():
    return bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum((y["a"] - 1) ** 2) + jnp.sum(x[0] ** 2),
        lower=lambda x, y, i, batch: 0.5 * jnp.sum((y["a"] - x[1]["w"]) ** 2),
        x0=(jnp.ones(2), {"w": jnp.zeros(3)}),
        y0={"a": jnp.zeros(3)},
        tasks=2,
        strong_convexity=1.0,
    )


@pytest.fixture(scope="module")
def result():
    return bx.solve(problem_of(), bx.implicit(), steps=20)


def test_all_of_a_result_comes_back(result, tmp_path):
    result.save(tmp_path / "run.npz")
    again = bx.Result.load(tmp_path / "run.npz")
    assert jax.tree.structure(again.x) == jax.tree.structure(result.x)
    for new, old in zip(jax.tree.leaves((again.x, again.y)), jax.tree.leaves((result.x, result.y)), strict=True):
        np.testing.assert_array_equal(new, old)
        assert new.dtype == old.dtype
    for name in ("status", "message", "steps", "cost", "seconds", "seed", "origin", "notes"):
        assert getattr(again, name) == getattr(result, name)
    assert again.trace.rows == result.trace.rows
    assert repr(again) == repr(result)


def test_with_the_problem_x_is_as_its_user_gave_it(result, tmp_path):
    result.save(tmp_path / "run.npz")
    again = bx.Result.load(tmp_path / "run.npz", problem_of())
    np.testing.assert_array_equal(again.x[1]["w"], result.x[1]["w"])
    np.testing.assert_array_equal(again.y["a"], result.y["a"])


def test_a_problem_with_other_variables_is_refused(result, tmp_path):
    result.save(tmp_path / "run.npz")
    other = bx.problems.quadratic(dim_x=5, dim_y=3, num_tasks=3, num_samples=2).problem
    with pytest.raises(ValueError, match="5 numbers in x and 9 in y, the file has 5 and 6"):
        bx.Result.load(tmp_path / "run.npz", other)
    with pytest.raises(TypeError, match=r"problem must be a bilevax\.Problem"):
        bx.Result.load(tmp_path / "run.npz", "mine")


@pytest.mark.parametrize(("path", "words"), [("", "is a folder"), ("run.xyz", "must end in one of"), (3, "path must")])
def test_a_picture_that_cannot_be_written_is_refused_by_its_path(result, path, words):
    with pytest.raises((ValueError, TypeError, OSError), match=words):
        result.plot(path)


@pytest.mark.parametrize("damage", [lambda b: b[:100], lambda b: b"text", lambda b: b[:-40] + b"x" * 40])
def test_a_file_that_is_no_result_is_refused_by_its_name(result, tmp_path, damage):
    path = tmp_path / "run.npz"
    result.save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"run\.npz is not a result that bilevax saved"):
        bx.Result.load(path)


def test_another_algorithm_does_not_go_on_from_a_file(result, tmp_path):
    result.save(tmp_path / "run.npz")
    with pytest.raises(ValueError, match="implicit"):
        bx.solve(problem_of(), bx.soba(), steps=40, resume=bx.Result.load(tmp_path / "run.npz"))


def test_a_result_can_be_drawn_and_shown_in_a_notebook(result, tmp_path):
    result.plot(tmp_path / "run.png")
    assert matplotlib.image.imread(tmp_path / "run.png").std() > 0.01
    assert "<td>done: " in result._repr_html_()
    with pytest.raises(ValueError, match="no metric"):
        bx.Trace([{"step": 0, "seconds": 0.0}]).plot()


def test_names_with_dots_do_not_get_into_each_others_way(tmp_path):
    tree = {"a": {"b": np.ones(2)}, "a.b": np.zeros(3), "list": [np.full(1, 5.0), (np.full(1, 6.0),)]}
    read = saved.unpack(bytes(saved.pack({}, {"x": tree}, {})), tmp_path / "r.npz")[1]["x"]
    assert jax.tree.structure(read) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, read, tree)
