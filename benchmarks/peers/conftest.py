"""Keep pytest, which imports modules for their doctests, away from what needs a peer."""

collect_ignore_glob = ["*"]
