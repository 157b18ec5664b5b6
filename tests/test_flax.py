"""States and modules of Flax as x, as they are: what is no variable is kept aside and comes back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx

linen = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")

rng = np.random.default_rng(0)
ROWS = {"A": rng.normal(size=(20, 3)), "b": rng.normal(size=20)}
promotes = pytest.mark.usefixtures("usual_promotion")


@pytest.fixture
def usual_promotion():
    """Flax mixes its own types."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class Body(nnx.Module):
    """One layer; its Dropout has a key and a counter, which are no variables."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.layer = nnx.Linear(3, 4, rngs=rngs)
        self.drop = nnx.Dropout(0.0, rngs=rngs)

    def __call__(self, rows):
        """Features of the rows."""
        return jnp.tanh(self.layer(rows))


def problem_of(x0, features):
    """x a body, y a ridge regression on its features."""
    fit = lambda x, y, batch: jnp.mean((features(x, batch["A"]) @ y - batch["b"]) ** 2)
    return bx.Problem(
        upper=lambda x, y, i, batch: fit(x, y, batch),
        lower=lambda x, y, i, batch: fit(x, y, batch) + 0.1 * jnp.sum(y**2),
        x0=x0, y0=jnp.zeros(4), strong_convexity=0.2, lower_data=bx.shared(ROWS), upper_data=bx.shared(ROWS),
    )  # fmt: skip


def of_nnx_module():
    """The module itself."""
    return Body(), lambda x, rows: x(rows)


def of_nnx_state():
    """Its state, keys and counters included."""
    graph, state = nnx.split(Body())
    return state, lambda x, rows: nnx.merge(graph, x)(rows)


def of_linen():
    """The variables of a linen module."""
    model = linen.Dense(4)
    return model.init(jax.random.key(0), ROWS["A"][:1]), lambda x, rows: jnp.tanh(model.apply(x, rows))


@promotes
@pytest.mark.parametrize("kind", [of_nnx_module, of_nnx_state, of_linen])
def test_it_is_optimised_and_comes_back_as_what_it_was(kind):
    x0, features = kind()
    problem = problem_of(x0, features)
    assert problem.dim_x == 16
    result = bx.solve(problem, bx.implicit(), steps=15)
    assert result.trace["objective"][-1] < 0.9 * result.trace["objective"][0]
    assert jax.tree.structure(result.x) == jax.tree.structure(x0)
    assert features(result.x, ROWS["A"]).shape == (20, 4)
