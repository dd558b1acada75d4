"""Parts by name: one file each in a package of parts, or from the user's own environment, held to the job's bounds."""
