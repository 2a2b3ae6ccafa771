"""Which rule of selection helps: rule by data by condition by seed, each rule tuned alike.

``python -m benchmarks.selection`` runs a tier; ``--list`` shows its cells. A cell
(``cells.py``) is data (``data.py``, ``splits.py``), a model and a condition (``conditions.py``).
Every rule (``rules.py``) is tuned by as many trials (``tuning.py``). The runs end in one table
(``table.py``), from which the answer, the page and the pictures are made. It keeps the cells that
are in it already, whose runs may be on another machine; a cell that is run again is replaced.
"""
