"""Average precision beside LibAUC's SOAP: the same rows, the same network, the same start, as many steps.

    pip install 'bilevax[peers]' && pip install --no-deps libauc     (PyTorch; nothing else of bilevax needs it)
    python -m benchmarks.soap [--cases w8a,a8a] [--seeds 3] [--short] [--json FILE]

A network with 32 hidden units is trained on the logistic loss; then both go on from there for average precision with
Adam, 2000 steps, 64 positive samples a step that are compared with 256 others (bilevax) or a batch of 320 samples of
which 64 are positive (SOAP, with its own settings: squared hinge, γ = 0.9). Each takes the best of three learning rates
on a fifth of the training rows. Seconds are those of one run, with what is compiled for it, and of its steps alone.
"""

import importlib.util
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.metrics import average_precision_score
from sklearn.model_selection import train_test_split

import bilevax as bx
from benchmarks import harness
from bilevax.models import network

HIDDEN, RIDGE, RATES = 32, 1e-5, (3e-4, 1e-3, 3e-3)
POSITIVE, PAIRS = 64, 128


def begin(rows, signs, steps, seed):
    """The network trained on the logistic loss."""
    random_key, draw_key = jax.random.split(jax.random.key(seed))
    layers = network.random_layers(random_key, (rows.shape[1], HIDDEN, 1), jnp.float32)
    return network.fit_logistic(
        layers, jnp.asarray(rows), jnp.asarray(signs, jnp.float32), RIDGE, draw_key,
        score=network.scores, steps=steps, batch=PAIRS,
    )  # fmt: skip


def with_bilevax(rows, signs, layers, rate, steps, seed):
    """What scores rows after so many steps of block SOBA, and the seconds of the steps."""
    problem = bx.problems.average_precision(
        features=rows, labels=signs, score=network.scores, x0=layers, group=POSITIVE, width=1.0,
        ridge=RIDGE, penalty=network.half_squares,
    )  # fmt: skip
    algorithm = bx.block_soba(
        lower_step=0.5, mixing=1.0, batch_size=PAIRS, initial_batch_size=8 * PAIRS,
        upper_optimizer=optax.adam(optax.cosine_decay_schedule(rate, steps)),
    )  # fmt: skip
    result = bx.solve(problem, algorithm, steps=steps, seed=seed, metrics=None)
    return lambda new: np.asarray(network.scores(result.x, jnp.asarray(new))), result.seconds


def with_soap(rows, signs, layers, rate, steps, seed):
    """What scores rows after so many steps of LibAUC's SOAP, and the seconds of the steps."""
    import torch
    from libauc.losses import APLoss
    from libauc.optimizers import SOAP

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(rows.shape[1], HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    with torch.no_grad():
        for layer, start in zip((model[0], model[2]), layers, strict=True):
            layer.weight.copy_(torch.tensor(np.asarray(start["weights"]).T))
            layer.bias.copy_(torch.tensor(np.asarray(start["shift"])))
    held, target = torch.tensor(rows), torch.tensor(signs > 0)
    places = [torch.where(target)[0], torch.where(~target)[0]]
    loss = APLoss(data_len=len(rows))
    optimizer = SOAP(model.parameters(), lr=rate, mode="adam", weight_decay=RIDGE, verbose=False)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 0.5 * (1 + np.cos(np.pi * t / steps)))
    clock = time.perf_counter()
    for _ in range(steps):
        sizes = (POSITIVE, 2 * PAIRS)
        drawn = torch.cat([own[torch.randint(len(own), (n,))] for own, n in zip(places, sizes, strict=True)])
        optimizer.zero_grad()
        loss(model(held[drawn]), target[drawn].float(), drawn).backward()
        optimizer.step()
        falling.step()
    seconds = time.perf_counter() - clock
    return lambda new: model(torch.tensor(new)).detach().numpy()[:, 0], seconds


def judged(train, rows, signs, layers, steps, seed, new):
    """The scores of the run with the best learning rate, its seconds, and those of its steps."""
    parts = train_test_split(rows, signs, test_size=0.2, stratify=signs, random_state=seed)
    fit_rows, check_rows, fit_signs, check_signs = parts
    value = lambda rate: average_precision_score(
        check_signs, train(fit_rows, fit_signs, layers(fit_rows, fit_signs), rate, steps, seed)[0](check_rows)
    )
    best = max(RATES, key=value)
    begun = layers(rows, signs)
    clock = time.perf_counter()
    scores, seconds = train(rows, signs, begun, best, steps, seed)
    return scores(new), time.perf_counter() - clock, seconds


def measure(case, ways, steps, seeds, most):
    """Test average precision and seconds of each way, a row for each seed."""
    data, _ = harness.load(case)
    rows, signs = data.features.toarray().astype(np.float32)[:most], data.labels[:most]
    found = {name: [] for name in ("logistic loss", *ways)}
    for seed in range(seeds):
        parts = train_test_split(rows, signs, test_size=0.3, stratify=signs, random_state=seed)
        train, new, train_signs, new_signs = parts
        layers = lambda rows, signs, seed=seed: begin(rows, signs, steps, seed)
        start = np.asarray(network.scores(layers(train, train_signs), jnp.asarray(new)))
        found["logistic loss"].append((average_precision_score(new_signs, start), np.nan, np.nan))
        for name, way in ways.items():
            scores, *seconds = judged(way, train, train_signs, layers, steps, seed, new)
            found[name].append((average_precision_score(new_signs, scores), *seconds))
    return found


def main(arguments=None):
    """Run the benchmark and return its figures."""
    parser = harness.options(__doc__)
    parser.add_argument("--cases", default="w8a,a8a", help="data sets")
    parser.add_argument("--seeds", type=int, default=3, help="splits into training and test rows")
    chosen = parser.parse_args(arguments)
    steps, seeds, most = (50, 1, 2000) if chosen.short else (2000, chosen.seeds, None)
    ways = {"bilevax": with_bilevax}
    if all(importlib.util.find_spec(name) for name in ("libauc", "torch")):
        ways["LibAUC SOAP"] = with_soap
    else:
        print("libauc and torch are not installed (--help says how): bilevax alone.")
    figures, shown = {}, []
    for case in chosen.cases.split(","):
        for name, measured in measure(case, ways, steps, seeds, most).items():
            (precision, whole, steady), spread = np.mean(measured, 0), np.std(measured, 0)[0]
            shown.append((case, name, f"{precision:.4f} ± {spread:.4f}", f"{whole:.1f}", f"{steady:.2f}"))
            figures |= {f"{case}.{name}.precision": float(precision), f"{case}.{name}.seconds": float(steady)}
    title = f"{harness.where_from()}, {steps} steps, {seeds} seeds"
    harness.show(title, ("data", "trained for", "test average precision", "seconds of a run", "of its steps"), shown)
    harness.conclude(figures, chosen.json)
    return figures


if __name__ == "__main__":
    main()
