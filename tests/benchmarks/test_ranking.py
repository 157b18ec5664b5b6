"""The benchmark of ranking models runs, and counts what is lost."""

import numpy as np

from benchmarks import imbalanced, ranking, ranking_tasks


def test_a_short_run_gives_the_figures_of_the_linear_model_and_of_trees():
    ways = "logistic,balanced logistic,linear,boosting,balanced boosting,trees"
    figures = ranking.main(["--tables", "digits", "--short", "--ways", ways])
    assert figures["ranking_linear_mean_gain"] > -0.2
    assert figures["ranking_trees_mean_gain"] > -0.2


def test_a_table_is_lost_where_it_loses_more_than_the_spread_over_the_seeds():
    mean, worst, lost = ranking.summarise([np.array([0.1, 0.1]), np.array([-0.02, -0.03]), np.array([-0.1, 0.09])])
    np.testing.assert_allclose([mean, worst, lost], [0.07 / 3, -0.025, 1])


def test_gains_are_over_the_better_of_two():
    found = {
        "logistic": np.array([0.1, 0.2]),
        "balanced logistic": np.array([0.2, 0.2]),
        "linear": np.array([0.3, 0.1]),
    }
    np.testing.assert_allclose(ranking.compare(found)["linear"], [0.1, -0.1])


def test_tables_have_the_shares_that_they_name_and_halves_that_share_none():
    assert set(imbalanced.HALVES["develop"]) & set(imbalanced.HALVES["judge"]) == set()
    for table in imbalanced.TABLES.values():
        _, y, _, labels = table.split(0, short=True)
        np.testing.assert_allclose([y.mean(), labels.mean()], table.share, atol=0.01)


def test_a_short_run_on_tasks_gives_an_area_for_every_way():
    found = ranking_tasks.measure("alike", seeds=1, short=True)
    assert set(found) == {"logistic", "boosting", "shared"}
    assert found["shared"][0] > 0.6


def test_the_tasks_are_halved_too():
    assert set(ranking_tasks.HALVES["develop"]) & set(ranking_tasks.HALVES["judge"]) == set()
