"""One file a cause: definition, detection, what separates it from its look-alikes, advice."""
