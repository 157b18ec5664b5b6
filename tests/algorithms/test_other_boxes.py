"""The methods that bilevax is compared with equal literal transcriptions of their boxes, on the same draws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference import other_boxes as box
from reference.logistic import Model
from reference.problems import reweighting
from reference.runs import KEY, Power, assert_same_path, library_run, shared_run

import bilevax as bx
from bilevax import chunks, draw
from bilevax.algorithms import saba
from bilevax.algorithms.parts import all_tasks, neumann
from bilevax.curvature import dense, tracked

STEPS = 40
SIZE = 3
THETA, TERMS = 0.4, 4
CHEAP = {"initialization": "cheap", "batch_size": SIZE}
FIXED = {"upper_step": 0.1, "lower_step": 0.1}  # where steps do not matter, but must not be looked for
ALPHA, BETA, MIX = Power(0.4, 3.0, 0.5), Power(0.8, 3.0, 0.4), Power(1.5, 4.0, 2 / 3)
RATES = {"upper_step": ALPHA, "lower_step": BETA}
SERIES = {"neumann_step": THETA, "neumann_terms": TERMS}
RANDOM = neumann.random_length("test", THETA, TERMS, SIZE)
SHRINKING = neumann.whole_sum("test", THETA, [6, 3, 2, 1])  # 12 samples in all, halved from factor to factor
WHOLE = neumann.whole_sum("test", THETA, [SIZE] * TERMS)


@functools.cache
def posed(m, **settings):
    """A model, and its problem."""
    model = Model(m, **settings)
    return model, model.problem()


def run(factory, problem, numbers, **settings):
    """The path of a run of the library."""
    return shared_run(factory, problem, numbers, {}, STEPS, **CHEAP, **settings)


def random_inverse(model):
    """The Neumann series of random length, for a transcription."""
    return lambda i, x, y, v, d: box.random_length(model, i, x, y, v, d["factors"], d["length"][i], TERMS, THETA)


def summed_inverse(model):
    """The sum of the Neumann series, for a transcription."""
    return lambda i, x, y, v, d: box.whole_sum(model, i, x, y, v, d["factors"], THETA)


def drawn(draw_step):
    """What a function of the key draws in each step."""
    keys = jax.vmap(lambda t: jax.random.fold_in(KEY, t))(jnp.arange(1, STEPS + 1))
    every = jax.tree.map(np.asarray, jax.jit(jax.vmap(draw_step))(keys))
    return [jax.tree.map(lambda leaf, t=t: leaf[t], every) for t in range(STEPS)]


def factors_of(problem, series, key):
    """The samples of a Neumann series: all that it could use, and how many it uses."""
    samples = series.draw(problem, key)
    if series is not RANDOM:
        return {"factors": samples}
    length, own = samples
    every = jax.vmap(lambda k: draw.batch_of_all(problem, own, k, SIZE))(jnp.arange(TERMS))
    return {"factors": every, "length": length}


@functools.cache
def nested_draws(m, series, count):
    """What the library draws in a step of BSA, TTSA or StocBio with count(t) inner steps."""
    problem = posed(m)[1]

    def one(key):
        inner, series_key, own = jax.random.split(key, 3)
        (xi,), (zeta,) = draw.batches_of_all(problem, own, (SIZE,), (SIZE,))
        batches = jax.vmap(lambda k: draw.batch_of_all(problem, inner, k, SIZE))(jnp.arange(count(STEPS)))
        return {"inner": batches, "xi": xi, "zeta": zeta, **factors_of(problem, series, series_key)}

    return [{**d, "inner": d["inner"][: count(t)]} for t, d in enumerate(drawn(one), start=1)]


def root(t):
    """⌈√t⌉, the inner steps of BSA."""
    return int(np.ceil(np.sqrt(t)))


def once(t):
    """One inner step, as of TTSA."""
    return 1


def twice(t):
    """Two inner steps, as here of StocBio."""
    return 2


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize(("factory", "count"), [(bx.ttsa, once), (bx.bsa, root)], ids=["ttsa", "bsa"])
def test_ttsa_and_bsa_equal_their_boxes(factory, count, m):
    model, problem = posed(m)
    path = box.nested(model, nested_draws(m, RANDOM, count), ALPHA.at, BETA.at, random_inverse(model))
    assert_same_path(run(factory, problem, RATES, **SERIES), path)


@pytest.mark.parametrize("m", [1, 3])
def test_stocbio_equals_its_box(m):
    model, problem = posed(m)
    path = box.nested(model, nested_draws(m, SHRINKING, twice), ALPHA.at, BETA.at, summed_inverse(model))
    assert_same_path(run(bx.stocbio, problem, RATES, inner_steps=2, neumann_shrink=0.5, **SERIES), path)


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("name", ["sustain", "mrbo"])
def test_sustain_and_mrbo_equal_their_boxes(name, m):
    model, problem = posed(m)
    series, inverse = (RANDOM, random_inverse) if name == "sustain" else (WHOLE, summed_inverse)

    def one(key):
        series_key, own = jax.random.split(key)
        (xi,), (zeta, cross) = draw.batches_of_all(problem, own, (SIZE,), (SIZE, SIZE))
        return {"xi": xi, "zeta": zeta, "cross": cross, **factors_of(problem, series, series_key)}

    path = box.hyper_storm(model, drawn(one), ALPHA.at, BETA.at, lambda t: 0.3, MIX.at, inverse(model))
    mixing = bx.Mixing(*[0.5] * 5, MIX)._replace(g_y=0.3)
    assert_same_path(run(getattr(bx, name), problem, {"mixing": mixing, **RATES}, **SERIES), path)


@pytest.mark.parametrize("bounds", [{}, {"C_gxy": 0.15}], ids=["free", "projected"])
@pytest.mark.parametrize("m", [1, 3])
def test_stable_equals_its_box(m, bounds):
    model, problem = posed(m, **bounds)
    path = box.stable(model, both_draws(m), ALPHA.at, BETA.at, MIX.at, range(6))
    assert_same_path(run(bx.stable, problem, {"mixing": MIX, **RATES}, initial_batch_size=6), path)


@functools.cache
def both_draws(m):
    """One batch of each loss for every task, in every step."""
    one = lambda key: draw.batches_of_all(posed(m)[1], key, (SIZE,), (SIZE,))
    return [{"xi": xi, "zeta": zeta} for (xi,), (zeta,) in drawn(one)]


@pytest.mark.parametrize("bounds", [{}, {"C_fy": 0.3}], ids=["free", "ball"])
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("name", ["soba", "ma_soba", "srba"])
def test_the_single_loop_family_equals_its_boxes(name, m, bounds):
    model, problem = posed(m, **bounds)
    estimate = {
        "soba": lambda: box.soba(model),
        "ma_soba": lambda: box.ma_soba(model, MIX.at),
        "srba": lambda: box.srba(model, 5, range(6)),
    }[name]()
    numbers = {**RATES, "mixing": bx.Mixing(*[0.9] * 5, MIX)} if name == "ma_soba" else RATES
    own = {"period": 5} if name == "srba" else {}
    path = box.three_directions(model, both_draws(m), ALPHA.at, BETA.at, estimate)
    assert_same_path(run(getattr(bx, name), problem, numbers, **own), path)


@pytest.mark.parametrize(("n", "blocks"), [(6, [[0, 1, 2], [3, 4, 5]]), (7, [[0, 1, 2], [3, 4], [5, 6]])])
@pytest.mark.parametrize("m", [1, 3])
def test_saba_equals_its_box_also_with_blocks_of_two_sizes(m, n, blocks):
    model, problem = posed(m, n=n)
    split = saba.split(problem.lower_data, SIZE)

    def one(key):
        samples = [draw.below(jax.random.bits(k, (2, m), np.uint32), n) for k in jax.random.split(key)]
        return {"upper_block": split.block_of(samples[0]), "lower_block": split.block_of(samples[1])}

    path = box.three_directions(model, drawn(one), ALPHA.at, BETA.at, box.saba(model, blocks))
    assert_same_path(run(bx.saba, problem, RATES), path)


def test_saba_with_blocks_of_two_sizes_stays_in_float32():
    problem = Model(2, n=7).problem(np.float32)
    algorithm = bx.saba(**FIXED, **CHEAP)
    state = jax.eval_shape(algorithm.init, problem, KEY)
    after, info = jax.eval_shape(algorithm.step, problem, state, KEY)
    assert jax.tree.map(lambda leaf: leaf.dtype, after) == jax.tree.map(lambda leaf: leaf.dtype, state)
    assert state.tables[1].cross.dtype == np.float32
    assert info.cost.samples.shape == ()


def test_blocks_are_drawn_as_often_as_they_have_samples():
    split = saba.Split(blocks=3, base=2, longer=1, whole=False)
    blocks = split.block_of(jnp.arange(7))
    np.testing.assert_array_equal(blocks, [0, 0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(split.size(jnp.arange(3)), [3, 2, 2])
    assert split.samples == 7


@pytest.mark.parametrize("terms", [1, 2, 25])
def test_both_neumann_series_have_the_mean_that_they_should(terms):
    """With all samples the sum is a geometric series, and the random length's mean over p its first Q terms."""
    model = Model(2)
    problem = model.problem()
    x, y = jnp.asarray(model.x0), jnp.asarray(model.y0)
    v = jnp.asarray(np.random.default_rng(0).normal(size=y.shape))
    H = [model.gyy(i, model.x0, model.y0[i], range(6)) for i in range(2)]
    series = lambda count: np.stack(
        [
            THETA * sum(np.linalg.matrix_power(np.eye(2) - THETA * H[i], q) for q in range(count)) @ v[i]
            for i in range(2)
        ]
    )
    summed = neumann.whole_sum("test", THETA, [None] * terms)
    theta = jnp.asarray(THETA)
    sum_of = jax.jit(lambda v: summed.apply(problem, theta, x, y, v, [None] * terms))
    np.testing.assert_allclose(sum_of(v), series(terms + 1), rtol=1e-12)
    random = neumann.random_length("test", THETA, terms, None)
    of_lengths = jax.jit(lambda lengths: random.apply(problem, theta, x, y, v, (lengths, KEY)))
    each = [of_lengths(jnp.array([p, terms - 1 - p])) for p in range(terms)]
    np.testing.assert_allclose(np.mean(each, axis=0), series(terms), rtol=1e-12)
    lengths = jax.jit(jax.vmap(lambda key: random.draw(problem, key)[0]))(jax.random.split(KEY, 400 * terms))
    assert set(np.ravel(lengths)) == set(range(terms))
    products = np.prod(np.asarray(lengths) - (terms - 1) / 2, axis=1)  # of independent lengths: their mean is zero
    assert abs(products.mean()) <= 5 * products.std() / np.sqrt(len(products))


@pytest.mark.parametrize("case", ["many", "no data", "linear models"])
def test_soba_saba_and_srba_are_one_method_on_all_samples(case):
    """Without sampling all estimates are the directions themselves; also where f has no x, and without any data."""
    problem = {
        "many": lambda: Model(3).problem(),
        "linear models": lambda: reweighting.problem_of(2),
        "no data": without_data,
    }[case]()
    settings = {"upper_step": 0.1, "lower_step": 0.2, "batch_size": None, "initialization": "cheap"}
    paths = [library_run(problem, make(**settings), 20) for make in (bx.soba, bx.saba, bx.srba)]
    averaged = library_run(problem, bx.ma_soba(mixing=1.0, **settings), 20)
    for xs, ys, _ in (*paths[1:], averaged):
        np.testing.assert_allclose(xs, paths[0][0], rtol=1e-10)
        np.testing.assert_allclose(ys, paths[0][1], rtol=1e-10)
    assert np.abs(paths[0][0][-1] - problem.x0).max() > 1e-3


def without_data():
    """Two tasks without samples, x and y as pytrees, a bound for each task."""
    return bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum((y["u"] - 1) ** 2) + 0.1 * jnp.sum(x["w"] ** 2),
        lower=lambda x, y, i, batch: (1 + i) * jnp.sum((y["u"] - jnp.sin(x["w"])) ** 2),
        x0={"w": jnp.array([0.3, -0.2])}, y0={"u": jnp.zeros(2)}, y0_per_task=False, tasks=jnp.array([0.0, 1.0]),
        strong_convexity=1.0, bounds=bx.Bounds(f_y=jnp.array([0.7, 2.5])),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["soba", "stable", "mrbo", "ttsa"])
def test_a_plain_optax_step_is_the_plain_step(name):
    """The plain run is one of a program that is compared with its box."""
    factory, problem = getattr(bx, name), posed(3)[1]
    mixed = {"stable": 0.2, "mrbo": bx.Mixing(*[0.5] * 5, 0.2)}
    own = {"stable": {"initial_batch_size": 6}, "mrbo": SERIES, "ttsa": SERIES}.get(name, {})
    given = {"lower_step": 0.1, **({"mixing": mixed[name]} if name in mixed else {})}
    as_power = {"lower_step": Power(0.1), "mixing": Power(0.2)}
    if name == "mrbo":
        as_power["mixing"] = mixed[name]._replace(direction=Power(0.2))
    plain = run(factory, problem, {"upper_step": Power(0.02), **{key: as_power[key] for key in given}}, **own)
    through = library_run(problem, factory(upper_optimizer=optax.sgd(0.02), **given, **own, **CHEAP), 10)
    np.testing.assert_allclose(through[0], plain[0][:10], rtol=1e-12)


def test_the_theorems_start_solves_every_lower_problem():
    problem = Model(3).problem()
    state = jax.jit(bx.soba(**FIXED).init)(problem, KEY)
    gradients = all_tasks.lower_gradients(problem, state.x, state.own.y, None)
    assert float(jnp.abs(gradients).max()) < 1e-10
    assert int(state.initial_cost.samples) == 3 * 6
    assert float(state.initial_cost.gradients) >= 3 * 6
    assert float(state.initial_cost.products) == 0


def test_what_is_kept_at_the_start_is_counted():
    problem = Model(3).problem()
    cost = lambda algorithm: tuple(map(float, jax.jit(algorithm.init)(problem, KEY).initial_cost))
    mixed = {**FIXED, **CHEAP, "mixing": 0.1}
    assert cost(bx.stable(**mixed)) == (3 * SIZE, 0, 3 * SIZE * 2 * 2)
    assert cost(bx.saba(**FIXED, **CHEAP)) == (3 * 12, 3 * 12, 2 * 3 * 6)
    assert cost(bx.bsvrb_v2(**mixed)) == (3 * 2 * SIZE, 3 * 2 * SIZE, 2 * 3 * SIZE)
    assert cost(bx.srba(**FIXED, **CHEAP)) == cost(bx.mrbo(**SERIES, **mixed)) == (0, 0, 0)


@pytest.mark.parametrize("x64", [False, True])
def test_a_neumann_step_of_any_type_leaves_float32_as_it_is(x64):
    with jax.enable_x64(x64):
        problem = Model(2).problem(np.float32)
        for name, own in (("ttsa", {}), ("mrbo", {"mixing": 0.1})):
            algorithm = getattr(bx, name)(neumann_step=np.float64(0.3), neumann_terms=3, **own, **CHEAP, **FIXED)
            state = jax.jit(algorithm.init)(problem, jax.random.key(0))
            after, info = jax.jit(algorithm.step)(problem, state, jax.random.key(1))
            assert jax.tree.map(lambda leaf: leaf.dtype, after) == jax.tree.map(lambda leaf: leaf.dtype, state)
            assert after.x.dtype == np.float32
            assert info.finite


def test_a_table_that_does_not_fit_is_refused_with_what_would(monkeypatch):
    monkeypatch.setattr(chunks, "available_bytes", lambda: 300)
    with pytest.raises(MemoryError, match=r"saba's table of 6 blocks does not fit: give a larger batch_size"):
        bx.solve(Model(3).problem(), bx.saba(batch_size=3), steps=1)


@pytest.mark.parametrize("name", ["bsa", "ttsa", "stocbio", "sustain", "mrbo"])
def test_a_neumann_step_of_nothing_is_named(name):
    with pytest.raises(TypeError, match=f"{name} .* needs neumann_step, at most 1/L_g"):
        getattr(bx, name)(neumann_step=None)


def test_what_a_method_cannot_take_is_refused():
    with pytest.raises(TypeError, match="stable needs V and H themselves: curvature must be"):
        bx.stable(curvature=tracked)
    ragged = bx.Problem(
        upper=lambda x, y, i, batch: jnp.mean(batch) * jnp.sum(y),
        lower=lambda x, y, i, batch: jnp.sum((y - x) ** 2) * jnp.mean(batch),
        x0=jnp.zeros(2), y0=jnp.zeros(2), y0_per_task=False, tasks=2, strong_convexity=1.0,
        upper_data=bx.shared(jnp.ones(4)), lower_data=bx.ragged(jnp.ones(5), offsets=np.array([0, 2, 5])),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"saba .* lower_data must be .*; it is ragged"):
        bx.solve(ragged, bx.saba(), steps=1)
    assert bx.solve(ragged, bx.srba(batch_size=2, **FIXED), steps=3, metrics=None).status == "done"


def test_stable_with_a_linear_model_equals_stable_with_dense_matrices():
    """Float64, the same draws, floors that do not bind; sparse rows too."""
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(12, 3)) * (rng.random((12, 3)) < 0.7), np.where(rng.random(12) < 0.5, 1.0, -1.0)
    make = lambda rows: bx.problems.reweighting(
        train_features=A, train_labels=b, trusted_features=A[:6], trusted_labels=-b[:6],
        temperatures=[1.0, 2.0, 0.7], ridge=0.4, rows=rows,
    )  # fmt: skip
    settings = {"upper_step": 0.5, "lower_step": 0.1, "mixing": 0.3, "batch_size": 4, "initialization": "cheap"}
    x_dense, y_dense, _ = library_run(make("dense"), bx.stable(curvature=dense, **settings), 80)
    for problem in (make("dense"), make("sparse")):
        xs, ys, _ = library_run(problem, bx.stable(**settings), 80)
        np.testing.assert_allclose(xs, x_dense, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(ys, y_dense, rtol=1e-8, atol=1e-10)
        assert np.abs(xs[-1] - problem.x0).max() > 0.1


def test_each_loss_has_blocks_of_its_own_samples():
    """Four samples of f and seven of g for each of three tasks, in blocks of two at most."""
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.mean(batch) * jnp.sum(y) + jnp.sum(x),
        lower=lambda x, y, i, batch: jnp.sum((y - x) ** 2) + jnp.mean(batch) * jnp.sum(y),
        x0=jnp.zeros(1), y0=jnp.zeros(1), y0_per_task=False, strong_convexity=2.0,
        upper_data=bx.per_task(np.zeros((3, 4))), lower_data=bx.per_task(np.zeros((3, 7))),
    )  # fmt: skip
    upper, lower = jax.eval_shape(bx.saba(batch_size=2).init, problem, KEY).tables
    assert [len(leaf) for leaf in (*upper, *lower)] == 2 * [3 * 2] + 3 * [3 * 4]
