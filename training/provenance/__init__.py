"""From models to pages and back: the index of pages, the steps that see a document, withdrawal and erasure."""
