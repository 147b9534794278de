"""One file a cause: definition, detection, what separates it from its differential, advice."""
