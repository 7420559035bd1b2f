"""Pages of the configuration: the same documents, checks and revisions as `tangram apply`."""
