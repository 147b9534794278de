"""What importers of several formats share."""
