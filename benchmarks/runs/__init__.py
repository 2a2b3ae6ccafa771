"""Runs of many fits, each made once, that end in tables of results.

A setting (``settings.py``) is a problem of ``problems.py``, a net, how clients train, and the
strategies by which they are selected. ``runner.py`` makes the runs that its table (``tables.py``)
lacks, several at a time. An interrupted run is repeated; a finished one is not.
"""
