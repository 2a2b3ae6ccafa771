"""A reset function for sphinx-gallery, called between two examples."""

import sklearn


def reset(gallery_conf, fname):
    """Turn off metadata routing, which an example may have turned on."""
    sklearn.set_config(enable_metadata_routing=False)
