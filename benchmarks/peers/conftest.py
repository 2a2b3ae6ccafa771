"""Keep pytest from importing these modules for doctests: they need the peers' packages."""

collect_ignore_glob = ["*"]
