"""Per-task state is read, written in place, and refused before it is too large."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax import chunks, device, tasks


def compiled_loop(problem, algorithm):
    """A compiled loop of steps, and the shapes of what it carries."""
    state = jax.eval_shape(algorithm.init, problem, jax.random.key(0))

    def loop(problem, state, key):
        body = lambda t, state: algorithm.step(problem, state, jax.random.fold_in(key, t))[0]
        return jax.lax.fori_loop(0, 10, body, state)

    return jax.jit(loop, donate_argnums=1).lower(problem, state, jax.random.key(0)).compile(), state


def temporary_bytes(num_tasks, factory=bx.rsvrb, **settings):
    """What a loop of steps on a small problem with many tasks needs beside its arguments."""
    truth = bx.problems.quadratic(num_tasks=num_tasks, dim_x=3, dim_y=2, num_samples=8)
    algorithm = factory(tasks_per_step=4, batch_size=2, initialization="cheap", **settings)
    return compiled_loop(truth.problem, algorithm)[0].memory_analysis().temp_size_in_bytes


def test_rows_are_written_where_they_belong_and_nowhere_else():
    table = {"a": jnp.zeros((6, 2)), "b": jnp.arange(6)}
    new = {"a": jnp.ones((2, 2)), "b": jnp.array([70, 80])}
    written = tasks.write(table, jnp.array([4, 1]), new, keep=jnp.asarray(False))
    np.testing.assert_array_equal(written["b"], [0, 80, 2, 3, 70, 5])
    np.testing.assert_array_equal(written["a"][:, 0], [0, 1, 0, 0, 1, 0])
    np.testing.assert_array_equal(tasks.read(written, jnp.array([4, 1]))["b"], [70, 80])
    kept = tasks.write(table, jnp.array([4, 1]), new, keep=jnp.asarray(True))
    np.testing.assert_array_equal(kept["b"], table["b"])


def test_long_rows_are_written_at_their_entries_and_scaled_elsewhere():
    """Twice the same task, a scale that has become too small, and a step that is not taken."""
    rng = np.random.default_rng(0)
    values, scale = rng.normal(size=(4, 6)), np.array([1.0, 0.5, 2.0, 1.0])
    table = tasks.ScaledRow(jnp.asarray(values), jnp.asarray(scale))
    drawn, entries = jnp.array([2, 1, 2]), jnp.array([[0, 3], [5, 5], [0, 3]])
    view = tasks.read(table, drawn, entries)
    np.testing.assert_allclose(view.values[0], 2.0 * values[2, [0, 3]])
    factor = jnp.array([1e-12, 0.1, 1e-12])
    fresh = jnp.array([[7.0, 8.0], [9.0, 9.0], [7.0, 8.0]])
    new = tasks.ScaledRow(fresh, factor * view.scale)
    written = tasks.write(table, drawn, new, jnp.asarray(False), entries)
    whole = np.asarray(written.scale[:, None] * written.values)
    want = values * scale[:, None]
    want[2] *= 1e-12
    want[1] *= 0.1
    want[2, [0, 3]], want[1, 5] = [7, 8], 9
    np.testing.assert_allclose(whole, want, rtol=1e-14)
    assert float(written.scale[2]) == 1.0
    kept = tasks.write(table, drawn, new, jnp.asarray(True), entries)
    np.testing.assert_array_equal(kept.values, values)
    np.testing.assert_array_equal(kept.scale, scale)


@pytest.mark.parametrize("settings", [{}, {"relaxation": bx.power(2, 8, 1 / 3)}], ids=["constant", "schedule"])
def test_a_loop_of_steps_copies_nothing_that_grows_with_the_number_of_tasks(settings):
    """All that a compiled loop needs beside its arguments is the same for 100 and for 20,000 tasks, and little."""
    few, many = (temporary_bytes(m, **settings) for m in (100, 20_000))
    assert many <= few + 4096
    assert many < tasks.ERAS * 3 * 8 / 10  # a copy of the table of eras would show


def test_a_loop_of_block_soba_copies_nothing_either():
    few, many = (temporary_bytes(m, bx.block_soba, inner_steps=3) for m in (100, 20_000))
    assert many <= few + 4096


def test_sabas_table_is_neither_copied_nor_read_as_a_whole():
    """A step of a compiled loop needs far less memory than the table, beside its arguments."""
    truth = bx.problems.quadratic(dim_x=100, num_samples=8000)
    compiled, state = compiled_loop(
        truth.problem, bx.saba(upper_step=0.1, lower_step=0.1, batch_size=4, initialization="cheap")
    )
    table = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.tables))
    assert table == 2000 * (2 * 100 + 3 * 4) * 8
    assert compiled.memory_analysis().temp_size_in_bytes < table / 20


def test_a_state_that_does_not_fit_is_refused_before_it_is_allocated(monkeypatch):
    monkeypatch.setattr(chunks, "available_bytes", lambda: 10_000_000)
    truth = bx.problems.quadratic(num_tasks=5000, dim_x=20, dim_y=10, num_samples=8)
    with pytest.raises(MemoryError) as caught:
        bx.solve(truth.problem, bx.rsvrb(), steps=1)
    said = str(caught.value)
    assert "state of 5000 tasks needs 15.4 MB and 10 MB are available" in said
    assert "VH.cross 8 MB" in said
    assert "float32" in said


def test_the_bytes_that_are_computed_are_the_bytes_that_are_kept():
    truth = bx.problems.quadratic(num_tasks=7)
    state = jax.jit(bx.rsvrb(initialization="cheap").init)(truth.problem, jax.random.key(0))
    row = jax.eval_shape(lambda rows: jax.tree.map(lambda leaf: leaf[0], rows), state.tables.tasks)
    assert chunks.require(row, 7) == sum(leaf.nbytes for leaf in jax.tree.leaves(state.tables.tasks))


@pytest.mark.parametrize("each", [1, 2**25, 2**30])
def test_all_tasks_are_visited_once_whatever_the_chunks(each):
    build = lambda i: jnp.stack([i.astype(float), 1.0])
    np.testing.assert_array_equal(chunks.for_all(build, 71, each)[:, 0], np.arange(71))
    np.testing.assert_allclose(chunks.mean_of_all(build, 71, each), [35, 1])


def test_who_listens_hears_how_much_of_very_many_tasks_is_done():
    shares, build = [], lambda i: i.astype(float)
    mean = jax.jit(lambda: chunks.mean_of_all(build, 64 * chunks.LONG))
    with chunks.heard(shares.append):
        np.testing.assert_allclose(mean(), (64 * chunks.LONG - 1) / 2)
    assert len(shares) >= 100
    np.testing.assert_allclose(sorted(shares), np.arange(len(shares)) / len(shares), atol=0.01)
    mean()
    assert len(shares) < 110  # nobody listens any more


def test_this_machine_tells_how_much_memory_it_has():
    assert device.available_bytes() > 1e6
