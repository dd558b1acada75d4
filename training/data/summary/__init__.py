"""What a corpus holds: documents, tokens and bytes by site, source and snapshot."""
