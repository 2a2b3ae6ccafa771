"""What the gallery does between two examples."""

import sklearn


def reset(gallery_conf, fname):
    """Turn metadata routing off: an example may have turned it on."""
    sklearn.set_config(enable_metadata_routing=False)
