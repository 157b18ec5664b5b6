"""Runs stored as an experiment stores them, with made-up numbers."""

from bilevax.run.trace import Trace

MARKUP = "<b>me</b><script>alert('&')</script>"


def rows_of(samples, objective, times=None):
    """Rows of a trace; a sample takes a millisecond if no times are given."""
    times = [0.001 * s for s in samples] if times is None else times
    return [
        {"step": k, "samples": s, "gradients": s, "products": 0, "seconds": t, "objective": f}
        for k, (s, t, f) in enumerate(zip(samples, times, objective, strict=True))
    ]


def store(folder, rows, problem="a1a", algorithm="svrb", seed=0, experiment="figure1", **more):
    """Save one run as an experiment would; more settings go in as they are."""
    held = folder / "runs"
    held.mkdir(parents=True, exist_ok=True)
    known = {"experiment": experiment, "problem": problem, "algorithm": algorithm, "seed": seed, "status": "done"}
    known |= {"label": {"svrb": "SVRB", "re_rsvrb": "RE-RSVRB", "stable": "STABLE"}.get(algorithm, algorithm)} | more
    path = held / f"{experiment}-{problem}-{algorithm}-{seed}.json"
    Trace(rows, known).save(path)
    return path
