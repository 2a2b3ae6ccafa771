"""Every experiment of both papers, with one command each: see ``python -m benchmarks.papers -h``.

``fedalign/`` and ``power_of_choice/`` hold a module a figure or table. A module names panels; a
panel shows some strategies of a setting (``settings.py``: a problem of ``problems.py``, a net, how
clients train); experiments that share a setting share its table of results. ``runner.py`` runs what
is missing, ``pictures.py`` and ``report.py`` work from the tables alone, ``claims.py`` says what
holds. A run that is cut short is run again; finished ones are not.
"""
