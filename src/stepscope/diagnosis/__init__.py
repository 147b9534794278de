"""Root causes with evidence: attribution, ranking, prediction and advice."""
