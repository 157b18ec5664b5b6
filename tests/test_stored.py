"""Samples that are not in memory: the same draws and bits as those that are, read ahead or in the middle of a step."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pyarrow
import pytest

import bilevax as bx
from bilevax.run import ahead
from bilevax.samples import Stored
from bilevax.stored import is_stored, read_rows

TASKS, ROWS, WIDTH, STEPS = 4, 10, 3, 30
SETTINGS = {"upper_step": 0.05, "lower_step": 0.1, "batch_size": 2}
ALGORITHMS = {
    "rsvrb": lambda: bx.rsvrb(**SETTINGS, mixing=0.2, tasks_per_step=2),
    "block_soba": lambda: bx.block_soba(tasks_per_step=2, batch_size=2),
    "stable": lambda: bx.stable(**SETTINGS, mixing=0.2),
    "stocbio": lambda: bx.stocbio(**SETTINGS),  # draws in a loop of its own
}


class OnlyRows:
    """An object with a length and single rows by number, nothing else."""

    def __init__(self, array):
        self.array = array

    def __len__(self):
        return len(self.array)

    def __getitem__(self, row):
        if not isinstance(row, int):
            raise TypeError("one row at a time")
        return self.array[row]


class Orthogonal:
    """An array as Zarr has it: rows by `oindex`, and no other way."""

    def __init__(self, array):
        self.array, self.oindex = array, self

    def __len__(self):
        return len(self.array)

    def __getitem__(self, rows):
        assert isinstance(rows, np.ndarray)
        assert (np.diff(rows) > 0).all()
        return self.array[rows]


def on_disk(folder, arrays):
    """The arrays as memory-mapped files."""
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in arrays}


def arrays_of(seed, *shape):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(*shape, WIDTH))
    return {"rows": rows, "target": rows.sum(-1) + rng.normal(size=shape)}


def make_problem(upper_data, lower_data):
    fit = lambda y, batch: 0.5 * jnp.mean((batch["rows"] @ y - batch["target"]) ** 2)
    return bx.Problem(
        upper=lambda x, y, task, batch: fit(y, batch),
        lower=lambda x, y, task, batch: fit(y, batch) + 0.5 * jnp.sum((y - x) ** 2),
        x0=jnp.zeros(WIDTH), y0=jnp.zeros(WIDTH), tasks=TASKS, strong_convexity=1.0,
        upper_data=upper_data, lower_data=lower_data,
    )  # fmt: skip


OFFSETS = np.array([0, 7, 17, 20, 28])
KINDS = {
    "shared": (bx.shared, (ROWS,)),
    "per_task": (bx.per_task, (TASKS, ROWS)),
    "ragged": (lambda arrays: bx.ragged(arrays, OFFSETS), (OFFSETS[-1],)),
}


def both(kind, folder):
    """The same problem with its samples in memory and on disk; `kind` is that of the lower data."""
    make, shape = KINDS[kind]
    held, seen = arrays_of(0, ROWS), arrays_of(1, *shape)
    stored = [on_disk(folder / name, arrays) for name, arrays in (("upper", held), ("lower", seen))]
    return make_problem(bx.shared(held), make(seen)), make_problem(bx.shared(stored[0]), make(stored[1]))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("rsvrb", "shared"), ("block_soba", "per_task"), ("stable", "ragged"), ("stocbio", "ragged")],
)
def test_a_run_on_samples_on_disk_has_the_bits_of_one_in_memory(name, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(ahead, "STEPS", 7)  # several windows, and an end in the middle of one
    in_memory, stored = both(kind, tmp_path)
    algorithm = ALGORITHMS[name]()
    one, two = (bx.solve(made, algorithm, steps=STEPS, metrics=None, progress=False) for made in (in_memory, stored))
    np.testing.assert_array_equal(two.x, one.x)
    np.testing.assert_array_equal(two.y, one.y)
    assert two.cost == one.cost
    is_ahead = ahead.read_ahead(stored, algorithm, jax.random.key(0), one.state) if name == "stocbio" else True
    assert bool(is_ahead) == (name != "stocbio")


def test_a_run_on_disk_goes_on_with_the_same_bits_in_a_problem_that_was_made_again(tmp_path):
    algorithm, first = ALGORITHMS["block_soba"](), both("per_task", tmp_path)[1]
    whole = bx.solve(first, algorithm, steps=20, metrics=None, progress=False)
    bx.solve(first, algorithm, steps=10, metrics=None, checkpoint=tmp_path / "kept", progress=False)
    again = both("per_task", tmp_path)[1]
    end = bx.solve(again, algorithm, steps=20, metrics=None, checkpoint=tmp_path / "kept", progress=False)
    np.testing.assert_array_equal(end.x, whole.x)
    held = np.load(tmp_path / "lower" / "target.npy", mmap_mode="r+")
    held[0, 0] += 1
    held.flush()
    with pytest.raises(ValueError, match="not the same are lower_data"):
        bx.solve(both_again(tmp_path), algorithm, steps=20, metrics=None, checkpoint=tmp_path / "kept", progress=False)


def both_again(folder):
    """The problem of files as they are now."""
    load = lambda name: {key: np.load(folder / name / f"{key}.npy", mmap_mode="r") for key in ("rows", "target")}
    return make_problem(bx.shared(load("upper")), bx.per_task(load("lower")))


@pytest.mark.parametrize("kind", ["shared", "ragged"])
@pytest.mark.parametrize("wrapper", [OnlyRows, Orthogonal])
def test_any_object_with_rows_will_do(kind, wrapper):
    make, shape = KINDS[kind]
    seen = arrays_of(1, *shape)
    data, stored = make(seen), make({name: wrapper(array) for name, array in seen.items()})
    indices = jnp.array([2, 0, 2, 1], jnp.int32)
    for i in (0, 2):
        for one, two in zip(*(made.take(jnp.int32(i), indices).values() for made in (data, stored)), strict=True):
            np.testing.assert_array_equal(one, two)


def test_a_column_of_arrow_is_read_by_its_rows():
    column = pyarrow.chunked_array([[1.5, 2.5], [3.5]])
    data = bx.shared(column)
    np.testing.assert_array_equal(data.take(jnp.int32(0), jnp.array([2, 0], jnp.int32)), [3.5, 1.5])


@pytest.mark.parametrize("held", [pandas.Series([1.0, 2.0], index=[5, 0]), [1.0, 2.0], np.arange(2.0), jnp.ones(2)])
def test_what_is_in_memory_stays_there(held):
    assert not is_stored(held)


@pytest.mark.parametrize("kind", KINDS)
def test_all_samples_are_all_or_so_many_at_equal_distances(kind, tmp_path):
    in_memory, stored = both(kind, tmp_path)
    x = jnp.arange(3.0)
    assert float(bx.exact_objective(stored, x)) == pytest.approx(float(bx.exact_objective(in_memory, x)), rel=1e-12)
    shape = KINDS[kind][1]
    seen = on_disk(tmp_path / "more", arrays_of(1, *shape))
    data = bx.ragged(seen, OFFSETS, many=4) if kind == "ragged" else getattr(bx, kind)(seen, many=4)
    assert isinstance(data, Stored)
    assert data.is_partly_seen
    lengths = np.diff(OFFSETS) if kind == "ragged" else np.full(TASKS, ROWS)
    for i in range(TASKS):
        rows = np.arange(lengths[i]) if lengths[i] <= 4 else np.floor(np.arange(4) * lengths[i] / 4).astype(int)
        own = {"shared": lambda a: a, "per_task": lambda a: a[i], "ragged": lambda a: a[OFFSETS[i] :]}[kind]  # noqa: B023
        expected = np.mean(own(np.asarray(seen["target"]))[rows] ** 2)
        found = data.mean(lambda batch: jnp.mean(batch["target"] ** 2), jnp.int32(i))
        assert float(found) == pytest.approx(expected, rel=1e-12)


def test_without_an_algorithm_few_samples_of_many_on_disk_are_drawn(tmp_path):
    stored = on_disk(tmp_path, arrays_of(0, 50))
    problem = make_problem(bx.shared(stored, many=20), bx.shared(stored, many=20))
    result = bx.solve(problem, steps=20, progress=False)
    assert result.origin["algorithm"] == "block_soba"
    assert "of 20 samples, always the same ones" in result.explain()


BAD = {
    "some in memory": (lambda a: bx.shared({"a": a, "b": np.zeros(6)}), "in memory as a whole, or not at all"),
    "other lengths": (lambda a: bx.shared({"a": a, "b": a[:3]}), "must have arrays of one length"),
    "no rows": (lambda a: bx.shared(OnlyRows([])), "at least one sample"),
    "words": (lambda a: bx.shared(OnlyRows(["a", "b"])), "must hold numbers"),
    "no blocks": (lambda a: bx.per_task(OnlyRows(np.zeros((2, 3)))), "must be a memory-mapped array"),
    "other blocks": (lambda a: bx.per_task({"a": a, "b": a[:, :1]}), "memory-mapped array|with the same m and N"),
    "wrong offsets": (lambda a: bx.ragged(a, [0, 3, 7]), "must run from 0 to the number of rows, 6"),
    "shards": (lambda a: bx.shard(both_of(a)), "must be in memory where tasks are on several shards"),
}


def both_of(array):
    data = bx.shared({"rows": array, "target": array[:, 0]})
    return make_problem(data, data)


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_refused(case, tmp_path):
    call, message = BAD[case]
    array = on_disk(tmp_path, {"a": np.arange(18.0).reshape(6, 3)})["a"]
    with pytest.raises((TypeError, ValueError), match=message):
        call(array)


def test_many_rows_of_a_part_of_a_mapped_file_are_those_of_the_array(tmp_path):
    array = np.arange(6000.0).reshape(2000, 3)
    file = on_disk(tmp_path, {"rows": array})["rows"]
    rows = np.arange(0, 1000, 2)
    for part in (np.s_[:], np.s_[1::2], np.s_[:, 1:]):
        np.testing.assert_array_equal(read_rows(file[part], rows), array[part][rows])


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not tell how files are mapped")
def test_the_system_is_told_that_rows_of_a_mapped_file_are_read_at_random(tmp_path):
    """Else it reads 128 kB around each row: a hundred times as much as is needed."""
    file = on_disk(tmp_path, {"random": np.ones((2000, 3))})["random"]
    data = bx.shared(file[1:])
    of_file = Path("/proc/self/smaps").read_text().partition("random.npy")[2]
    flags = next(line for line in of_file.splitlines() if line.startswith("VmFlags"))
    assert "rr" in flags.split()
    assert data.max_length == 1999
