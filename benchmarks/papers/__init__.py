"""Every experiment of both papers, with one command each: see ``python -m benchmarks.papers -h``.

A new figure or table is one new file in ``fedalign/`` or ``power_of_choice/``:
``fedalign/fig7.py``, say, defines ``EXPERIMENT``, an ``Experiment`` of ``experiment.py``, and
``catalogue.py`` finds it by its file name, as ``fedalign-fig7``. Modules whose names begin with an
underscore hold what several figures of a paper share.

An experiment has panels. A panel shows some strategies of a setting of ``benchmarks.runs``.
Experiments that share a setting share its table of results. ``pictures.py`` and ``report.py`` read
the tables alone, ``claims.py`` checks the papers' claims.

RESULTS.md begins with one line for each main claim of a paper (``_headlines.py``), judged by
``summary.py``. Each claim that the paper makes belongs to one of these lines; bounds of our own,
and claims that are not in the paper, to none.
"""
