"""Callbacks of skorch and scikit-learn, and the progress bar, once a round."""
